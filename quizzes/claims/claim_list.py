"""Index of all claims: `bank/<topic>.yaml`, each a list of claims of that topic.

A file whose name is not a topic (`facts_s3.yaml`) may contain claims of any topic.

claims = load_claims()
claims.entries["S0-13"].claim
claims.claim("S0-13").test
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quizzes import yaml_files
from quizzes.topics import TOPICS
from quizzes.yaml_files import BadFile, Document, Index

BANK = Path(__file__).parent / "bank"
_SCHEMA_FILES = [BANK.parents[1] / name for name in ("claims/claim.py", "question.py", "topics.py")]


@dataclass(frozen=True, slots=True)
class Entry:
    """Index entry of a claim."""

    id: str
    topic: str
    where: str
    claim: str
    kind: str
    run: str
    """Its experiment; "" without a test."""
    fact: str
    """The verdict of a dated source; "" without one."""


class Claims(Index[Entry]):
    """Claims by id."""

    def claim(self, claim_id: str) -> Any:
        """Return the whole claim (`claim.Claim`). Case does not matter. Raises UnknownId."""
        from quizzes.claims.claim import Claim

        problem = "no claim is called"
        return Claim.model_validate(self.data(claim_id.strip().upper(), problem, "prep claims list"))


def load_claims(folder: Path | None = None) -> Claims:
    """Load every claim. Broken entries are left out and listed in `problems`."""
    folder = folder or BANK
    documents, problems = yaml_files.load(folder, _check, _SCHEMA_FILES)
    return _collect(documents, list(problems), folder)


def read_claims(path: Path) -> Claims:
    """Read the claims of one file without the cache, for authors."""
    documents, problems = yaml_files.read_file(path, _check, path.name)
    return _collect(documents, problems, path.parent)


def _collect(documents: list[Document], problems: list[BadFile], folder: Path) -> Claims:
    kept: dict[str, Document] = {}
    for document in documents:
        claim_id, topic = document.data["id"], document.data["topic"]
        path = document.path
        if Path(path).stem in TOPICS and topic != Path(path).stem:
            said = f"{claim_id} has topic {topic}, but its file is {Path(path).name}"
            problems.append(BadFile(path, _lines_of(folder / path, claim_id)[0], said))
        elif claim_id in kept:
            problems.append(
                BadFile(path, _lines_of(folder / path, claim_id)[-1], f"{claim_id} appears twice")
            )
        else:
            kept[claim_id] = document
    in_order = sorted(kept, key=lambda name: (name[:2], int(name[3:])))  # S0-9 before S0-13
    return Claims({name: _entry(kept[name].data) for name in in_order}, problems, kept)


def _check(data: dict[str, Any]) -> None:
    from quizzes.claims.claim import Claim

    Claim.model_validate(data)


def _entry(data: dict[str, Any]) -> Entry:
    return Entry(
        **{name: data[name] for name in ("id", "topic", "where", "kind")},
        claim=" ".join(data["claim"].split()),
        run=(data.get("test") or {}).get("run", ""),
        fact=(data.get("fact") or {}).get("verdict", ""),
    )


def _lines_of(path: Path, claim_id: str) -> list[int]:
    """Return the lines of the id; [1] if it is not found."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return [1]
    return [at for at, line in enumerate(lines, 1) if re.search(rf"\bid: *['\"]?{claim_id}\b", line)] or [1]
