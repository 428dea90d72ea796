"""Read a lesson's folder: facts, cells, exercises, reference solutions.

lessons/l07_paged_kv/
  meta.yaml      title, goal, topics, exercises with hints, probes     -> Lesson
  lesson.py      the cells, py:percent                                 -> cells()
  solution.py    one section per exercise, "# exercise 07.1"           -> solution()
  checks.py      `checking.py` loads it      mutants.py    `mutants.py` loads it
  lesson.ipynb   built and executed by `notebook_build.py`
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

FOLDER = Path(__file__).resolve().parents[1]
_CELL = re.compile(r"^# %%(?P<kind> \[markdown\])?(?P<rest>.*)$")
_MARKER = re.compile(r"^# exercise (\d\d\.\d)\b")


class UnknownLesson(ValueError):
    """Raised for a lesson or exercise that does not exist; the message lists what does."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Exercise(Strict):
    """One piece of code that the learner writes."""

    id: str
    title: str
    minutes: int
    objects: list[str] = Field(min_length=1)
    """Names that the cell defines."""
    imports: list[str] = []
    """Modules imported in the learner's process before its time limit begins."""
    seconds: float = 10
    """Limit of a whole check."""
    hints: list[str] = Field(min_length=3, max_length=3)


class Probe(Strict):
    """A question with a computed or chosen answer that tests what the learner has just said in prose."""

    q: str
    answer: float | str | bool
    unit: str = ""
    options: list[str] = []
    tolerance: float = 0.0
    """Relative."""


class Say(Strict):
    prompt: str
    probes: list[Probe] = Field(min_length=2)


class Lesson(Strict):
    """The facts of a lesson: its meta.yaml."""

    number: str
    title: str
    goal: str
    builds: str
    minutes: int
    topics: list[str]
    unlocks: list[str]
    """Ids of bank questions that the lesson prepares for."""
    features: list[str] = []
    piece: str | None = None
    """Seam of the learner's engine that an exercise fills."""
    exercises: dict[str, Exercise]
    say: Say
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def notebook(self) -> Path:
        """The built notebook, with outputs. Never edited by a learner."""
        return self.folder / "lesson.ipynb"


@dataclass(frozen=True)
class Cell:
    """A cell of a lesson's source."""

    name: str
    kind: str
    """"markdown" or "code"."""
    text: str
    tags: list[str] = field(default_factory=list)

    @property
    def exercise(self) -> str | None:
        """Id of the exercise that is solved here."""
        return self.name if "exercise" in self.tags else None


@cache
def lessons() -> tuple[Lesson, ...]:
    """Return all lessons in order. Raises pydantic.ValidationError if a meta.yaml is wrong."""
    return tuple(_read(path.parent) for path in sorted(FOLDER.glob("l[0-9][0-9]_*/meta.yaml")))


def _read(folder: Path) -> Lesson:
    data: dict[str, Any] = yaml.safe_load((folder / "meta.yaml").read_text(encoding="utf-8"))
    exercises = {name: {"id": name, **values} for name, values in data.pop("exercises").items()}
    return Lesson.model_validate({**data, "exercises": exercises, "folder": folder})


def find_lesson(name: str) -> Lesson:
    """Return the lesson that "7", "07", "L07", "07.2" or "l07_paged_kv" names. Raises UnknownLesson."""
    match = re.fullmatch(r"[lL]?0*(\d{1,2})(\.\d+)?(_\w+)?", name.strip())
    for lesson in lessons():
        if match and int(match[1]) == int(lesson.number):
            return lesson
    known = ", ".join(lesson.number for lesson in lessons())
    raise UnknownLesson(f"no lesson is called {name!r}; the lessons are {known}")


def find_exercise(name: str) -> tuple[Lesson, Exercise]:
    """Return the exercise that "7.2" or "07.2" names. Raises UnknownLesson."""
    lesson = find_lesson(name)
    _, dot, number = name.strip().partition(".")
    wanted = f"{lesson.number}.{number}"
    if wanted not in lesson.exercises:
        close = get_close_matches(wanted, lesson.exercises, n=1) if dot else []
        hint = f"did you mean {close[0]}? " if close else ""
        raise UnknownLesson(
            f"lesson {lesson.number} has no exercise {name!r}; {hint}it has {', '.join(lesson.exercises)}"
        )
    return lesson, lesson.exercises[wanted]


def cells(lesson: Lesson) -> list[Cell]:
    """Return the cells of lesson.py in order. Raises ValueError for a cell without a name of its own."""
    found: list[Cell] = []
    head: re.Match[str] | None = None
    lines: list[str] = []

    def close() -> None:
        if head is not None:
            found.append(_cell(head, lines, lesson.name))

    for line in (lesson.folder / "lesson.py").read_text(encoding="utf-8").splitlines():
        if match := _CELL.match(line):
            close()
            head, lines = match, []
        else:
            lines.append(line)
    close()
    names = [cell.name for cell in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{lesson.name}: cells share the names {', '.join(sorted(twice))}")
    return found


def _cell(head: re.Match[str], lines: list[str], lesson: str) -> Cell:
    name = re.search(r'name="([\w.-]+)"', head["rest"])
    if name is None:
        raise ValueError(f"{lesson}: the cell {head[0]!r} has no name")
    tags = re.search(r"tags=(\[.*?\])", head["rest"])
    if head["kind"]:
        lines = [re.sub(r"^# ?", "", line) for line in lines]
    text = "\n".join(lines).strip("\n")
    return Cell(
        name[1], "markdown" if head["kind"] else "code", text, ast.literal_eval(tags[1]) if tags else []
    )


def exercise_of(source: str) -> str | None:
    """Return the id in the first line of an exercise's cell, "# exercise 07.1", or None."""
    match = _MARKER.match(source.lstrip())
    return match[1] if match else None


def stub(lesson: Lesson, exercise: str) -> str:
    """Return the source of the exercise's cell as the learner gets it."""
    return next(cell.text for cell in cells(lesson) if cell.exercise == exercise)


@cache
def solution(exercise: str) -> str:
    """Return the reference solution of an exercise: its section of solution.py. Raises KeyError."""
    lesson, _ = find_exercise(exercise)
    return split_sections((lesson.folder / "solution.py").read_text(encoding="utf-8"))[exercise]


def split_sections(text: str) -> dict[str, str]:
    """Split a text at lines that start with "# exercise NN.N"; what comes before the first is left out."""
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in text.splitlines():
        if match := _MARKER.match(line):
            current = found.setdefault(match[1], [])
        if current is not None:
            current.append(line)
    return {name: "\n".join(lines).strip("\n") + "\n" for name, lines in found.items()}
