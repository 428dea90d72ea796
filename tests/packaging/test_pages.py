"""Statements of the pages at the top that the tree can check: files, sizes, variables."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from quizzes.claims.claim_list import load_claims
from quizzes.lint import SEEDS
from quizzes.question_bank import codes
from quizzes.yaml_format import WIDTH
from tests.packaging.test_shape import MOST_LINES
from tests.unfilled import left_to_fill

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True).stdout.split()
)
PAGES_AND_CODE = subprocess.run(
    ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True
).stdout.splitlines()
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
TREE_PATH = re.compile(r"`((?:prep_common|kernels|engine|quizzes|app|tests|docs)/[\w./*<>-]+)`")


@pytest.mark.parametrize("page", PAGES)
def test_links_and_paths_on_pages_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    links = [target for target in LINK.findall(text) if "://" not in target]
    missing = [target for target in links if not ((ROOT / page).parent / target).exists()]
    paths = [path for path in TREE_PATH.findall(text) if not re.search(r"[<>*]", path)]
    missing += [
        path for path in paths if not any((base / path).exists() for base in (ROOT, (ROOT / page).parent))
    ]
    assert not missing, f"{page}: {missing}"


def lines(*patterns: str) -> int:
    """Lines of tracked code below `patterns`; data such as YAML, traces and weights do not count."""
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True).stdout
    code = (".py", ".cpp", ".h", ".cu", ".cuh", ".js", ".css", ".html")
    files = [ROOT / name for name in listed.splitlines() if name.endswith(code)]
    return sum(file.read_text().count("\n") for file in files)


README_LINES = 180


def test_the_readme_is_short_and_leads_to_every_page() -> None:
    """It links the pages of docs/ and of the folders at the top; each of these leads to the pages below it."""
    readme = (ROOT / "README.md").read_text()
    assert readme.count("\n") <= README_LINES
    top = [page for page in PAGES if re.fullmatch(r"docs/[^/]+|\w+/README\.md|[A-Z]+\.md", page)]
    assert len(top) > 12 and set(top) - {"README.md"} <= set(LINK.findall(readme))


def test_the_sizes_on_the_page_of_the_reading_order_are_true() -> None:
    readme = (ROOT / "docs" / "reading_the_code.md").read_text()
    order = readme.split("Then read in this order")[1].split("How much there is to read")[0]
    reading = re.findall(r"`([\w/]+\.(?:py|cpp))`", order)
    assert len(reading) >= 15
    true = [
        lines(*reading),
        lines("engine/core"),
        lines("engine", "kernels"),
        lines("quizzes", "app", "prep_common", "lessons", "interview"),
        lines("tests"),
    ]
    table = readme.split("How much there is to read:")[1].split("\n\n## ")[0]
    told = [int(number.replace(",", "")) for number in re.findall(r"\| ([\d,]+) \|", table)]
    assert len(told) == len(true)
    for said, counted in zip(told, true, strict=True):
        assert said == pytest.approx(counted, rel=0.05), f"the page says {said:,}, the tree has {counted:,}"


def grep(pattern: str) -> str:
    folders = ["prep", "app", "interview", "lessons", "engine", "kernels", "quizzes", "prep_common"]
    command = ["git", "grep", "-hoE", pattern, "--", *folders]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout


def test_contributing_lists_the_environment_variables_that_are_read() -> None:
    listed = set(re.findall(r"`(PREP_\w+)`", (ROOT / "CONTRIBUTING.md").read_text()))
    pattern = r"(environ[^\n]*|= |envvar=|export )\"?PREP_[A-Z_]+|\$\{PREP_[A-Z_]+"
    code = grep(pattern)
    read = set(re.findall(r"PREP_[A-Z_]+", code))
    assert read - listed == set(), "read by the code and missing in CONTRIBUTING.md"
    tree = re.findall(r"PREP_[A-Z_]+", grep("PREP_[A-Z_]+"))
    assert listed - set(tree) == set(), "listed and read nowhere"


def beside(folder: Path) -> list[str]:
    """Return the folders and the files of code in a folder, tracked or new."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    paths = subprocess.run(listed, cwd=folder, capture_output=True, text=True).stdout.split()
    names = {path.split("/")[0] for path in paths if (folder / path).exists()} - {"conftest.py"}
    code = (".py", ".cpp", ".h", ".cu", ".cuh", ".js")
    return sorted(
        name for name in names if name[0] not in "_." and (name.endswith(code) or (folder / name).is_dir())
    )


TABLE = re.compile(r"^\|(?P<head>.*)\|\n\|[-|]+\|\n(?P<rows>(?:\|.*\n?)+)", re.MULTILINE)
OF_FILES = re.compile(r"\b(files?|folders?|read first)\b(?: of `([\w/]+)/`)?")
ITEMS = {"lessons/labs", "quizzes/bank", "quizzes/experiments"}
"""Their folders are items of one kind, which commands list."""


@pytest.mark.parametrize("page", [page for page in PAGES if page.endswith("/README.md")])
def test_tables_of_files_are_complete_and_their_files_exist(page: str) -> None:
    text, own = (ROOT / page).read_text(), (ROOT / page).parent
    tables = [(OF_FILES.search(table["head"]), table["rows"]) for table in TABLE.finditer(text)]
    wrong: list[str] = []
    for folder in {own / (match[2] or "") for match, _ in tables if match}:
        names = [
            name for name in beside(folder) if page.removesuffix("/README.md") not in ITEMS or "." in name
        ]
        wrong += [
            f"no row for {name}" for name in names if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)
        ]
    known = {part for path in PAGES_AND_CODE for part in (path, *path.split("/"))}
    for rows in (rows for match, rows in tables if match):
        for name in re.findall(r"`([\w/]+(?:\.(?:py|cpp|h|cu|cuh|js|css|yaml)|/))`", rows):
            bare = name.rstrip("/").removeprefix("/")
            if not ((own / bare).exists() or (ROOT / bare).exists() or bare in known or "NN" in bare):
                wrong.append(f"{name} does not exist")
    assert not wrong, "\n".join([page, *wrong])


def test_nothing_is_left_to_fill_in() -> None:
    """`prep new` leaves places to its user, in files that are tracked or new; not in tests, which hold the words."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    paths = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    others = [path for path in paths if not path.startswith("tests/") and path != "prep_common/text.py"]
    files = [ROOT / path for path in others if (ROOT / path).exists()]
    left = left_to_fill(*files)
    assert not left, "\n".join(left)


def figures() -> dict[str, dict[str, object]]:
    """Return for pages the figures in their sentences: pattern -> what the code says."""
    numbers = {letter: sum(code.startswith(letter) for code in codes()) for letter in "QXY"}
    return {
        "quizzes/claims/README.md": {r"contain (\d+) claims": len(load_claims())},
        "quizzes/README.md": {
            r"Q001 to Q(\d+)": numbers["Q"],
            r"X1 to X(\d+)": numbers["X"],
            r"Y1 to Y(\d+)": numbers["Y"],
            r"over (\d+) seeds": SEEDS,
        },
        "quizzes/bank/README.md": {r"(\d+) columns": WIDTH, r"for (\d+) seeds": SEEDS},
        "CONTRIBUTING.md": {r"functions of at most (\d+) lines": MOST_LINES, r"for (\d+) seeds": SEEDS},
    }


@pytest.mark.parametrize("page", figures())
def test_figures_in_sentences_are_those_of_the_code(page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    said = {pattern: re.findall(pattern, text) for pattern in figures()[page]}
    assert said == {pattern: [str(true)] for pattern, true in figures()[page].items()}
