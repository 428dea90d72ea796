"""Cache of the verdicts computed on this machine, valid until the engine, an experiment or a claim changes.

Lists of claims show them without running tests. Deleting the file is safe: `prep claims verify` recomputes it.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from prep_common.paths import cache_dir, write_atomically
from quizzes.claims.court import Ruling
from quizzes.experiments.results_cache import source_revision


def known() -> dict[str, dict[str, Any]]:
    """Return claim id -> `Ruling.to_json()`; empty if the sources have changed."""
    try:
        kept = json.loads(_path().read_text(encoding="utf-8"))
        return dict(kept["rulings"]) if kept["revision"] == _revision() else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def remember(rulings: Iterable[Ruling]) -> None:
    """Cache the rulings of tests. Facts and discussions are in their files."""
    new = {ruling.id: ruling.to_json() for ruling in rulings if ruling.decided_by == "test"}
    text = json.dumps({"revision": _revision(), "rulings": {**known(), **new}}, ensure_ascii=False)
    with suppress(OSError):  # without a cache only time is lost
        write_atomically(_path(), text)


def _path() -> Path:
    return cache_dir() / "verdicts.json"


def _revision() -> str:
    """Return the revision of the engine, the experiments and the claims."""
    from quizzes.claims import claim_list

    claims = [(path.name, path.stat().st_mtime_ns) for path in sorted(claim_list.BANK.glob("*.yaml"))]
    return f"{source_revision()}:{claims}"
