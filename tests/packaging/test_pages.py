"""Statements of the pages at the top that the tree can check: files, sizes, variables."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True).stdout.split()
)
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


def test_the_sizes_in_the_readme_are_true() -> None:
    readme = (ROOT / "README.md").read_text()
    order = readme.split("Then read in this order")[1].split("The code is organised in layers")[0]
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
        assert said == pytest.approx(counted, rel=0.05), f"README says {said:,}, the tree has {counted:,}"


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
