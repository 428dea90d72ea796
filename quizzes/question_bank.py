"""The question bank: an index of all questions, each parsed when needed.

bank = load_bank()
bank.entries["batching.static_vs_continuous"].difficulty
bank.question("batching.static_vs_continuous")
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quizzes import yaml_files
from quizzes.yaml_files import BadFile, Document, Index

BANK = Path(__file__).parent / "bank"
_SCHEMA_FILES = [Path(__file__).parent / name for name in ("question.py", "topics.py", "question_bank.py")]


@dataclass(frozen=True, slots=True)
class Entry:
    """Index entry of a question."""

    id: str
    title: str
    kind: str
    stage: str
    roles: tuple[str, ...]
    """Roles that are asked it. An applied engineer is asked what a platform engineer is."""
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


class Bank(Index[Entry]):
    """Questions by id."""

    def question(self, question_id: str) -> Any:
        """Return the whole question (`question.Question`). Raises UnknownId."""
        from quizzes.question import Question

        problem = "no question is called"
        return Question.model_validate(self.data(question_id, problem, "prep bank list"))

    def covering(self, code: str) -> list[str]:
        """Return the ids of the questions that cover a code (Q021, X5), those with an interview answer first."""
        covers = {
            name: "interview" not in document.data
            for name, document in self.documents.items()
            if code in (*document.data.get("covers", ()), *document.data.get("contradictions", ()))
        }
        return sorted(covers, key=covers.__getitem__)

    def file(self, question_id: str) -> str:
        """Return its file, relative to the bank's folder."""
        return self.documents[question_id].path


def codes() -> dict[str, str]:
    """Return the texts of the numbered interview questions (Q021) and of the contradictions (X5, Y3)."""
    import yaml

    return dict(yaml.safe_load((BANK.parent / "codes.yaml").read_text(encoding="utf-8")))


def load_bank(folder: Path = BANK) -> Bank:
    """Load every question that is not retired. Broken files are left out and listed in `problems`."""
    documents, problems = yaml_files.load(folder, _check, _SCHEMA_FILES)
    kept: dict[str, Document] = {}
    for document in documents:
        question_id = document.data["id"]
        place = str(Path(document.path).with_suffix("")).replace("/", ".")
        if question_id != place:
            said = f"its id is {question_id}, but its path implies {place}"
            problems = [*problems, BadFile(document.path, 1, said)]
        elif document.data.get("status") != "retired":
            kept[question_id] = document
    return Bank({name: _entry(document.data) for name, document in kept.items()}, problems, kept)


def _check(data: dict[str, Any]) -> None:
    from quizzes.question import Question

    Question.model_validate(data)


def _entry(data: dict[str, Any]) -> Entry:
    return Entry(
        **{name: data[name] for name in ("id", "title", "kind", "stage", "difficulty", "minutes")},
        roles=(*data["roles"], *(["applied"] if "platform" in data["roles"] else [])),
        covers=tuple(data.get("covers", ())),
        status=data.get("status", "stable"),
        revision=data.get("revision", 1),
        needs_probes=tuple(probe for point in data.get("keypoints", ()) for probe in point.get("probes", ())),
    )
