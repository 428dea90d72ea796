"""The question bank: an index of all questions, each parsed when needed.

bank = load_bank()
bank.entries["batching.static_vs_continuous"].difficulty
bank.question("batching.static_vs_continuous")
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from quizzes import yaml_files
from quizzes.yaml_files import BadFile

BANK = Path(__file__).parent / "bank"
_SCHEMA_FILES = [Path(__file__).parent / name for name in ("question.py", "topics.py", "question_bank.py")]


class UnknownQuestion(ValueError):
    """Raised for an unknown question id; the message names a similar one."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Index entry of a question."""

    id: str
    title: str
    kind: str
    stage: str
    roles: tuple[str, ...]
    difficulty: int
    minutes: float
    covers: tuple[str, ...]
    status: str
    revision: int
    needs_probes: tuple[str, ...]
    """Probes: questions that are asked after it."""

    @property
    def topic(self) -> str:
        return self.id.split(".")[0]


@dataclass
class Bank:
    """Questions by id. Broken files are listed only in `problems`."""

    entries: dict[str, Entry]
    problems: list[BadFile]
    _data: dict[str, dict[str, Any]] = field(repr=False)
    _files: dict[str, str] = field(repr=False)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())

    def __contains__(self, question_id: object) -> bool:
        return question_id in self.entries

    def question(self, question_id: str) -> Any:
        """Return the whole question (`question.Question`). Raises UnknownQuestion."""
        from quizzes.question import Question

        if question_id not in self._data:
            close = get_close_matches(question_id, self._data, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise UnknownQuestion(
                f"no question is called {question_id!r}; {hint}prep bank list shows all ids"
            )
        return Question.model_validate(self._data[question_id])

    def covering(self, code: str) -> list[str]:
        """Return the ids of the questions that cover a code (Q021, X5), those with an interview answer first."""
        found = [
            name
            for name, data in self._data.items()
            if code in data.get("covers", ()) or code in data.get("contradictions", ())
        ]
        return sorted(found, key=lambda name: "interview" not in self._data[name])

    def file(self, question_id: str) -> str:
        """Return its file, relative to the bank's folder."""
        return self._files[question_id]


def codes() -> dict[str, str]:
    """Return the texts of the numbered interview questions (Q021) and of the contradictions (X5, Y3)."""
    import yaml

    return dict(yaml.safe_load((BANK.parent / "codes.yaml").read_text(encoding="utf-8")))


def load_bank(folder: Path = BANK) -> Bank:
    """Load every question that is not retired. Broken files are left out and listed in `problems`."""
    documents, problems = yaml_files.load(folder, _check, _SCHEMA_FILES)
    entries: dict[str, Entry] = {}
    data: dict[str, dict[str, Any]] = {}
    files: dict[str, str] = {}
    for document in documents:
        question_id = document.data["id"]
        place = str(Path(document.path).with_suffix("")).replace("/", ".")
        if question_id != place:
            problems = [
                *problems,
                BadFile(document.path, 1, f"its id is {question_id}, but its path implies {place}"),
            ]
            continue
        if document.data.get("status") == "retired":
            continue
        entries[question_id] = _entry(document.data)
        data[question_id] = document.data
        files[question_id] = document.path
    return Bank(entries, problems, data, files)


def _check(data: dict[str, Any]) -> None:
    from quizzes.question import Question

    Question.model_validate(data)


def _entry(data: dict[str, Any]) -> Entry:
    return Entry(
        id=data["id"],
        title=data["title"],
        kind=data["kind"],
        stage=data["stage"],
        roles=tuple(data["roles"]),
        difficulty=data["difficulty"],
        minutes=data["minutes"],
        covers=tuple(data.get("covers", ())),
        status=data.get("status", "stable"),
        revision=data.get("revision", 1),
        needs_probes=tuple(probe for point in data.get("keypoints", ()) for probe in point.get("probes", ())),
    )
