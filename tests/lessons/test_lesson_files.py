"""Every lesson's folder is complete and consistent: what authors may forget."""

from __future__ import annotations

import ast
import re
from importlib import import_module

import pytest
import yaml

from lessons.course.checking import checks
from lessons.course.lesson_files import (
    FOLDER,
    Lesson,
    UnknownLesson,
    cells,
    find_exercise,
    find_lesson,
    lessons,
    solution,
    split_sections,
    stub,
)
from lessons.course.mutants import mutants
from lessons.course.notebook_build import is_current
from quizzes.question_bank import load_bank
from quizzes.topics import TOPICS
from tests.unfilled import left_to_fill

BANK = load_bank()
EVERY = pytest.mark.parametrize("lesson", lessons(), ids=lambda lesson: lesson.number)
PARTS = (
    "Why an interviewer asks",
    "Predict",
    "Run it",
    "Plot",
    "Explore",
    "Build",
    "Break it",
    "Say it in 60 seconds",
)
MOST_GIVEN = 5
"""Most given code cells before the first cell in which the learner writes code."""


def test_lessons_are_numbered_without_a_gap() -> None:
    assert [lesson.number for lesson in lessons()] == [f"{1 + at:02}" for at in range(len(lessons()))]


def test_all_solutions_together_stay_readable() -> None:
    total = sum((lesson.folder / "solution.py").read_text().count("\n") for lesson in lessons())
    assert total <= 1_500, f"{total} lines"


def test_every_topic_of_the_bank_is_taught() -> None:
    taught = {topic for lesson in lessons() for topic in lesson.topics}
    assert taught >= set(TOPICS) - {"landscape", "code_review"}, sorted(set(TOPICS) - taught)


def test_every_feature_is_taught_by_a_lesson_or_its_place_is_named() -> None:
    sizes = {"A": 20, "B": 19, "C": 13, "D": 12, "E": 12, "F": 4, "G": 7, "H": 8, "I": 13, "J": 9}
    rows = {f"{group}{number:02}" for group, count in sizes.items() for number in range(1, count + 1)}
    table = yaml.safe_load((FOLDER / "coverage.yaml").read_text())
    taught = [row for found in table["lessons"].values() for row in found]
    assert sorted([*taught, *table["elsewhere"]]) == sorted(rows)
    assert set(table["lessons"]) <= {lesson.number for lesson in lessons()}


def test_the_notebooks_together_are_small() -> None:
    sizes = [lesson.notebook.stat().st_size for lesson in lessons() if lesson.notebook.exists()]
    assert sum(sizes) <= 8 * 2**20


@EVERY
def test_its_files_are_complete(lesson: Lesson) -> None:
    """Each missing part is named with the file in which it belongs."""
    taught = yaml.safe_load((FOLDER / "coverage.yaml").read_text())["lessons"]
    row = f"| [{lesson.number}]({lesson.name}/lesson.ipynb) |"
    parts = {
        "meta.yaml: topics names no topic": lesson.topics,
        "meta.yaml: unlocks names no question of the bank": lesson.unlocks,
        "meta.yaml: fewer than 2 exercises": len(lesson.exercises) >= 2,
        f"lessons/coverage.yaml: no row of features for {lesson.number}": taught.get(lesson.number),
        f"lessons/README.md: no row {row}": row in (FOLDER / "README.md").read_text(),
        f"lesson.ipynb: prep lesson build {lesson.number}": lesson.notebook.exists(),
    }
    text = "\n".join(cell.text for cell in cells(lesson) if cell.kind == "code")
    predicted, exercises = text.count("this.predict("), len(lesson.exercises)
    least = {"predict": 2, "reveal": predicted, "check": exercises, "piece": 1, "plot": 1, "explore": 1}
    for name, count in {**least, "holds": 1, "say": 1, "questions": 1}.items():
        used = text.count(f"this.{name}(")
        parts[f"lesson.py: this.{name}(...) occurs {used} times, at least {count}"] = used >= count
    wrong = mutants(lesson)
    for exercise in lesson.exercises:
        count = sum(mutant.exercise == exercise for mutant in wrong)
        parts[f"mutants.py: {exercise} has {count} wrong solutions, at least 4"] = count >= 4
        rejecting = {mutant.check for mutant in wrong if mutant.exercise == exercise}
        for check in checks(exercise):
            parts[f"mutants.py: no wrong solution for {exercise} {check.__name__}"] = (
                check.__name__ in rejecting
            )
    missing = [*(part for part, is_there in parts.items() if not is_there), *left_to_fill(lesson.folder)]
    assert not missing, "\n".join(missing)


@EVERY
def test_the_notebook_was_built_from_its_source(lesson: Lesson) -> None:
    assert is_current(lesson), f"prep lesson build {lesson.number}"


@EVERY
def test_its_names_exist(lesson: Lesson) -> None:
    assert [name for name in lesson.unlocks if name not in BANK] == []
    assert [topic for topic in lesson.topics if topic not in TOPICS] == []
    assert {cell.exercise for cell in cells(lesson)} - {None} == set(lesson.exercises)


@EVERY
def test_it_has_the_eight_parts_in_order(lesson: Lesson) -> None:
    text = "\n".join(cell.text for cell in cells(lesson) if cell.kind == "markdown")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    found = [part for heading in headings for part in PARTS if heading.startswith(part)]
    assert list(dict.fromkeys(found)) == list(PARTS)


@pytest.mark.parametrize("lesson", lessons(), ids=lambda lesson: lesson.number)
def test_the_learner_writes_code_after_at_most_five_given_code_cells(lesson: Lesson) -> None:
    code = [cell for cell in cells(lesson) if cell.kind == "code"]
    first = next(index for index, cell in enumerate(code) if cell.exercise)
    assert first <= MOST_GIVEN, f"{first} code cells before exercise {code[first].exercise}"
    assert code[first].exercise == f"{lesson.number}.1"


@EVERY
def test_no_cell_is_a_wall(lesson: Lesson) -> None:
    for cell in cells(lesson):
        most = 20 if cell.kind == "markdown" else 30 if cell.exercise else 25
        assert cell.text.count("\n") < most, f"{cell.name}: {cell.text.count(chr(10)) + 1} lines"


@EVERY
def test_a_stub_has_the_signatures_of_its_solution(lesson: Lesson) -> None:
    for exercise, facts in lesson.exercises.items():
        given, ours = shapes(stub(lesson, exercise)), shapes(solution(exercise))
        for name in facts.objects:
            assert given[name] == ours[name], f"{exercise} {name}"
        assert "NotImplementedError" in stub(lesson, exercise)
        assert "NotImplementedError" not in solution(exercise)


def shapes(source: str) -> dict[str, tuple[object, ...]]:
    """Name -> arguments of functions, and of the public methods of classes."""
    found: dict[str, tuple[object, ...]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = (ast.unparse(node.args),)
        elif isinstance(node, ast.ClassDef):
            found[node.name] = tuple(
                (each.name, ast.unparse(each.args))
                for each in node.body
                if isinstance(each, ast.FunctionDef)
                and (not each.name.startswith("_") or each.name == "__init__")
            )
    return found


@EVERY
def test_the_text_before_an_exercise_names_the_fields_of_given_types(lesson: Lesson) -> None:
    told, given = "", {}
    for cell in cells(lesson):
        if cell.kind == "markdown":
            told += cell.text
            continue
        nodes = list(ast.walk(ast.parse(cell.text)))
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and f"{node.module}".startswith("lessons.given"):
                module = import_module(f"{node.module}")
                given |= {each.name: getattr(module, each.name) for each in node.names}
        used = {node.id for node in nodes if isinstance(node, ast.Name)} if cell.exercise else set()
        for name in used & given.keys():
            if fields := getattr(given[name], "_fields", ()):
                assert f"`{name}({', '.join(fields)})`" in told, (cell.name, name)


def test_lessons_are_found_by_any_spelling() -> None:
    for name in ("7", "07", "L07", "l07", "07.2", "l07_paged_kv"):
        assert find_lesson(name).number == "07"
    assert find_exercise("7.2")[1].id == "07.2"
    for name in ("", "17", "seven", "07.9", "07", "../07.1"):
        with pytest.raises(UnknownLesson, match="lesson"):
            find_exercise(name)


def test_sections_are_split_at_their_markers() -> None:
    text = "import x\n# exercise 01.1 · a\na = 1\n\n# exercise 01.2\nb = 2\n"
    assert split_sections(text) == {
        "01.1": "# exercise 01.1 · a\na = 1\n",
        "01.2": "# exercise 01.2\nb = 2\n",
    }
