"""Read a lesson's folder: facts, cells, exercises, reference solutions.

lessons/l07_paged_kv/
  meta.yaml      title, goal, topics, exercises with hints, probes     -> Lesson
  lesson.py      the cells, py:percent                                 -> cells()
  solution.py    one section per exercise, "# exercise 07.1"           -> solution(); the cells have the docstrings
  checks.py      `checking.py` loads it      mutants.py    `mutants.py` loads it
  lesson.ipynb   built and executed by `notebook_build.py`

lessons/labs/block_manager/
  meta.yaml      track, title, goal, and its one exercise              -> Lab
  solution.py    our file; `lab_stub.py` makes the learner's from it      checks.py, mutants.py as in a lesson
  race.py        the learner's part against ours      follow_ups.md   what an interviewer asks next

quizzes/autopsies/block_manager/                                       -> BugHunt, the lab mend-block-manager
  given.py       the program with its faults; solution.py and checks.py; its question in the bank has the task
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

from lessons.course.lab_stub import native_stub, python_stub
from prep_common.names import unknown_name
from prep_common.text import shown

FOLDER = Path(__file__).resolve().parents[1]
SUFFIXES = {"python": ".py", "cpp": ".cpp", "cuda": ".cu", "triton": ".py"}
HUNTS = "bug hunts"
TRACKS = ("memory", "policies", "decoding", "serving", "kernels", HUNTS)
KEEP = """Keep the names and the arguments that this text gives, and those of the program that it does not
replace. You may change the rest. Each sentence has a check:"""
"""Stands between the task of a bug hunt and the list of its checks."""
_PROGRAMS = FOLDER.parent / "quizzes" / "autopsies"
_QUESTIONS = FOLDER.parent / "quizzes" / "bank" / "code_review"
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
    hints: list[str] = Field(min_length=2, max_length=3)
    explain: str = ""
    """Explanation of the reference solution, shown once the learner's own passes. Exercises of lessons have one."""


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


class Lab(Strict):
    """One larger exercise without a notebook: its meta.yaml. Its exercise has the lab's name as id.

    A folder of the track kernels holds a lab for each language, with the same checks: cpp-rms-norm, cuda-rms-norm.
    """

    track: str
    language: str = "python"
    """A key of SUFFIXES."""
    order: int
    """Place in its track."""
    title: str
    goal: str
    topics: list[str]
    unlocks: list[str]
    """Ids of bank questions that the lab prepares for."""
    exercise: Exercise
    probes: list[Probe] = []
    """Questions of `prep lab interview` about the cost of the code."""
    folder: Path

    @property
    def number(self) -> str:
        return self.exercise.id

    @property
    def name(self) -> str:
        """Name of its package below `lessons`."""
        return f"labs.{self.folder.name}"

    @property
    def checks_id(self) -> str:
        """Exercise number under which its checks are registered."""
        return self.folder.name.replace("_", "-")

    @property
    def file_name(self) -> str:
        """Name of the learner's file."""
        return self.number.replace("-", "_") + SUFFIXES[self.language]

    def read(self, stem: str) -> str:
        """Return the text of the file `stem` in the lab's language."""
        return (self.folder / f"{stem}{SUFFIXES[self.language]}").read_text(encoding="utf-8")

    @property
    def stub(self) -> str:
        """Return the learner's file as they get it."""
        solution = self.read("solution")
        if self.language in ("cpp", "cuda"):
            return native_stub(solution)
        return python_stub(solution, self.exercise.objects, is_triton=self.language == "triton")

    @property
    def follow_up_page(self) -> str:
        """Return the questions that an interviewer asks once the code works, in Markdown."""
        return (self.folder / "follow_ups.md").read_text(encoding="utf-8")

    @property
    def follow_ups(self) -> list[tuple[str, str]]:
        """Return each follow-up: the question, and the rest of its paragraph."""
        found = re.findall(
            r"^\d+\. \*\*(.+?)\*\*(.*?)(?=^\d+\. |\Z)", self.follow_up_page, re.MULTILINE | re.DOTALL
        )
        return [(" ".join(question.split()), " ".join(answer.split())) for question, answer in found]

    @property
    def has_race(self) -> bool:
        return self.language in ("python", "cpp") and (self.folder / "race.py").exists()

    @property
    def exercises(self) -> dict[str, Exercise]:
        return {self.exercise.id: self.exercise}


class BugHunt(Lab):
    """A program of quizzes/autopsies to repair. Its question in the bank has the hints and the follow-ups."""

    questions: list[tuple[str, str]] = []

    @property
    def stub(self) -> str:
        """Return the given program; its docstring has the task and what each check requires."""
        from quizzes.autopsies import programs

        given = self.read("given")
        docstring = ast.parse(given).body[0]
        requirements = [programs.requirement(check) for check in programs.checks(self.folder.name).values()]
        lines = [fill(each, 100, initial_indent="* ", subsequent_indent="  ") for each in requirements]
        text = [(ast.get_docstring(ast.parse(given)) or ""), fill(self.goal, 100), KEEP, "\n".join(lines)]
        program = "".join(given.splitlines(keepends=True)[docstring.end_lineno :])
        return '"""' + "\n\n".join(text) + f'\n"""\n{program}'

    @property
    def follow_up_page(self) -> str:
        asked = "".join(
            f"{number}. **{question}**\n" for number, (question, _) in enumerate(self.questions, 1)
        )
        return f"# {self.title}: what an interviewer asks next\n\n{asked}\n{self.questions[0][1]}\n"

    @property
    def follow_ups(self) -> list[tuple[str, str]]:
        return self.questions


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


@cache
def labs() -> tuple[Lab, ...]:
    """Return all labs, track by track. Raises pydantic.ValidationError if a meta.yaml is wrong."""
    found = [lab for path in sorted((FOLDER / "labs").glob("*/meta.yaml")) for lab in _read_labs(path.parent)]
    found += _read_hunts()
    return tuple(sorted(found, key=lambda lab: (TRACKS.index(lab.track), lab.order)))


def _read_labs(folder: Path) -> list[Lab]:
    """Return the lab of a folder, or one for each of its `languages`."""
    data: dict[str, Any] = yaml.safe_load((folder / "meta.yaml").read_text(encoding="utf-8"))
    name, exercise = folder.name.replace("_", "-"), data.pop("exercise")
    found = []
    for language in data.pop("languages", ["python"]):
        number = name if language == "python" else f"{language}-{name}"
        facts = {"id": number, "title": data["title"], **exercise}
        found.append(Lab.model_validate({**data, "language": language, "exercise": facts, "folder": folder}))
    return found


def _read_hunts() -> list[BugHunt]:
    """Return a lab for each program of quizzes/autopsies, the short ones first."""
    found = []
    for path in sorted(_QUESTIONS.glob("mend_*.yaml")):
        question = yaml.safe_load(path.read_text(encoding="utf-8"))
        folder = _PROGRAMS / question["code"]["folder"]
        program = ast.parse((folder / "given.py").read_text(encoding="utf-8"))
        asked = [each for each in question.get("followups", ()) if "ask" in each]
        exercise = {
            "id": path.stem.replace("_", "-"),
            "title": question["title"],
            "minutes": question["minutes"],
            "objects": [
                each.name for each in program.body if isinstance(each, ast.ClassDef | ast.FunctionDef)
            ],
            "hints": [each["text"] for each in question["hints"]],
        }
        facts = {
            "track": HUNTS,
            "order": question["minutes"],
            "title": question["title"],
            "goal": " ".join(question["prompt"].split()),
            "topics": ["code_review"],
            "unlocks": [question["id"], *(each["goto"] for each in asked if "goto" in each)],
            "questions": [(each["ask"], " ".join(question["explain"].split())) for each in asked],
        }
        found.append(BugHunt.model_validate({**facts, "exercise": exercise, "folder": folder}))
    return found


def find_lab(name: str) -> Lab:
    """Return the lab of this name. Raises UnknownLesson."""
    known = {lab.number: lab for lab in labs()}
    wanted = name.strip().lower().replace("_", "-")
    if wanted not in known:
        raise UnknownLesson(unknown_name("no lab is called", wanted, known, "prep lab lists them all"))
    return known[wanted]


def find_exercise(name: str) -> tuple[Lesson | Lab, Exercise]:
    """Return the exercise that "7.2", "07.2" or the name of a lab names. Raises UnknownLesson."""
    if name in (lab.number for lab in labs()):
        lab = find_lab(name)
        return lab, lab.exercise
    return find_lesson_exercise(name)


def find_lesson_exercise(name: str) -> tuple[Lesson, Exercise]:
    """Return the exercise of a lesson that "7.2" or "07.2" names. Raises UnknownLesson."""
    lesson = find_lesson(name)
    _, dot, number = name.strip().partition(".")
    wanted = f"{lesson.number}.{number}"
    if not dot:
        these = ", ".join(lesson.exercises)
        raise UnknownLesson(f"{shown(name)} is a whole lesson; name one of its exercises: {these}")
    if wanted not in lesson.exercises:
        it_has = f"it has {', '.join(lesson.exercises)}"
        problem = f"lesson {lesson.number} has no exercise"
        raise UnknownLesson(unknown_name(problem, wanted, lesson.exercises, it_has))
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


def exercise_cell(lesson: Lesson, exercise: str) -> str:
    """Return the id of the exercise's cell in the notebook."""
    return f"{lesson.name[:3]}-{exercise.replace('.', '-')}"


def stub(lesson: Lesson | Lab, exercise: str) -> str:
    """Return the source of the exercise's cell, or the lab's file, as the learner gets it."""
    if isinstance(lesson, Lab):
        return lesson.stub
    return next(cell.text for cell in cells(lesson) if cell.exercise == exercise)


@cache
def solution(exercise: str) -> str:
    """Return the reference solution of an exercise: its section of solution.py, or all of a lab's. Raises KeyError."""
    lesson, _ = find_exercise(exercise)
    if isinstance(lesson, Lab):
        return lesson.read("solution")
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
