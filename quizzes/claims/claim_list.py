"""Index of all claims: `bank/<topic>.yaml`, each a list of claims of that topic.

A file whose name is not a topic (`facts_s3.yaml`) may contain claims of any topic.

claims = load_claims()
claims.entries["S0-13"].claim
claims.claim("S0-13").test
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from quizzes import yaml_files
from quizzes.topics import TOPICS
from quizzes.yaml_files import BadFile, Document

BANK = Path(__file__).parent / "bank"
_PACKAGE = Path(__file__).parent.parent
_SCHEMA_FILES = [Path(__file__).parent / "claim.py", _PACKAGE / "question.py", _PACKAGE / "topics.py"]


class UnknownClaim(ValueError):
    """Raised for an unknown claim id; the message names a similar one."""


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


@dataclass
class Claims:
    """Claims by id. Broken entries are listed only in `problems`."""

    entries: dict[str, Entry]
    problems: list[BadFile]
    _data: dict[str, dict[str, Any]] = field(repr=False)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())

    def __contains__(self, claim_id: object) -> bool:
        return claim_id in self.entries

    def claim(self, claim_id: str) -> Any:
        """Return the whole claim (`claim.Claim`). Case does not matter. Raises UnknownClaim."""
        from quizzes.claims.claim import Claim

        name = claim_id.strip().upper()
        if name not in self._data:
            close = get_close_matches(name, self._data, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise UnknownClaim(f"no claim is called {claim_id!r}; {hint}prep claims list shows all ids")
        return Claim.model_validate(self._data[name])


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
    entries: dict[str, Entry] = {}
    data: dict[str, dict[str, Any]] = {}
    for document in documents:
        claim_id, topic = document.data["id"], document.data["topic"]
        place = Path(document.path).stem
        if place in TOPICS and topic != place:
            said = f"{claim_id} has topic {topic}, but its file is {place}.yaml"
            problems.append(BadFile(document.path, _line_of(folder / document.path, claim_id), said))
        elif claim_id in data:
            said = f"{claim_id} appears twice"
            problems.append(
                BadFile(document.path, _line_of(folder / document.path, claim_id, last=True), said)
            )
        else:
            data[claim_id] = document.data
    for claim_id in sorted(data, key=_by_document):
        entries[claim_id] = _entry(data[claim_id])
    return Claims(entries, problems, data)


def _check(data: dict[str, Any]) -> None:
    from quizzes.claims.claim import Claim

    Claim.model_validate(data)


def _entry(data: dict[str, Any]) -> Entry:
    return Entry(
        id=data["id"],
        topic=data["topic"],
        where=data["where"],
        claim=" ".join(data["claim"].split()),
        kind=data["kind"],
        run=(data.get("test") or {}).get("run", ""),
        fact=(data.get("fact") or {}).get("verdict", ""),
    )


def _by_document(claim_id: str) -> tuple[str, int]:
    document, _, number = claim_id.partition("-")
    return document, int(number)


def _line_of(path: Path, claim_id: str, *, last: bool = False) -> int:
    """Return the line of the id; 1 if it is not found."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 1
    found = [at for at, line in enumerate(lines, 1) if re.search(rf"\bid: *['\"]?{claim_id}\b", line)]
    return (found[-1] if last else found[0]) if found else 1
