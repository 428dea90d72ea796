"""The worst habits of our prose, kept out by a list (CONTRIBUTING.md, "Language").

python tests/packaging/test_language.py [FOLDER ...]     lists what the test would refuse
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (".py", ".md", ".yaml", ".js", ".html", ".css", ".cpp", ".h", ".cu", ".cuh", ".toml")
QUOTES_BAD_EXAMPLES = {
    "CONTRIBUTING.md",
    "tests/packaging/test_language.py",
    "quizzes/claims/FOUND.md",
    "quizzes/experiments/speculation/live.py",
}
"""Files that show what not to write, quote other authors, or hold prompts."""

NOT_LITERAL = re.compile(
    r"\b(nobody|somebody|whoever|whomever|anybody|everybody|one who|those who|he who)\b"
    r"|\bper cent\b|\bis to be had\b|\bare to be had\b|\band to whom\b|\bis told of\b"
    r"|\bis no (date|trace|object|number|column)\b"
    r"|\bcan(?:not)? be had\b|\bfor want of\b|\bwent where it went\b|; alone: "
    r"|\bat the door\b|\bof one's own\b|\bone's own\b",
    re.IGNORECASE,
)
UNCOUNTED = re.compile(
    r"(?<!of )\{(?:len|sum)\([^{}]*\)(?::,)?\} (?:requests|blocks|tokens|steps|questions|rows|prompts|answers|cards"
    r"|pages|events|characters|adapters|replicas|experiments|images|layers|rounds|charts|problems|words|entries)\b"
)
"""A count that may be 1 beside a plural, in a message: `prep_common.text.counted` writes both forms."""
FRAGMENT = re.compile(r"(Of|That|Why|How|Who|Whose|Whom|What|Where|Which|With|To|By|Not|Nothing) ")
"""A docstring starts with a verb or a noun phrase."""


def tracked(folders: list[str]) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in listed.stdout.splitlines() if name.endswith(TEXT) and (ROOT / name).exists()]


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Strings that document a module, class, function or field: (line, text)."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                if isinstance(statement.value.value, str):
                    yield statement.lineno, statement.value.value.strip()


def findings(name: str) -> list[str]:
    text = (ROOT / name).read_text()
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if match := NOT_LITERAL.search(line):
            found.append(f"{name}:{number}: {match[0]!r} names no actor or is no idiom: {line.strip()[:90]}")
    if name.endswith(".py"):
        for number, docstring in docstrings(text):
            if FRAGMENT.match(docstring):
                found.append(f"{name}:{number}: the docstring starts with a fragment: {docstring[:70]}")
    return found


def all_findings(folders: list[str]) -> list[str]:
    names = [name for name in tracked(folders) if name not in QUOTES_BAD_EXAMPLES]
    return [finding for name in names for finding in findings(name)]


@pytest.mark.parametrize(
    "folder", ["prep_common", "kernels", "engine", "quizzes", "lessons", "interview", "app", "tests", "docs"]
)
def test_texts_avoid_the_worst_habits(folder: str) -> None:
    found = all_findings([folder])
    assert not found, f"{len(found)} findings:\n" + "\n".join(found[:40])


def test_pages_at_the_top_avoid_the_worst_habits() -> None:
    found = all_findings([":(glob)*.md", ":(glob)*.toml", "prep"])
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", ["app", "prep_common", "engine", "interview"])
def test_messages_write_one_as_a_singular(folder: str) -> None:
    lines = [
        f"{name}:{number}: {line.strip()}"
        for name in tracked([folder])
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)
        if UNCOUNTED.search(line)
    ]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize(
    "bad",
    [
        '"""Of each side."""',
        'x = 1\n"""That were seen."""',
        "# nobody waits",
        'raise ValueError("12 per cent")',
    ],
)
def test_the_lint_sees_what_it_is_for(tmp_path: Path, bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.py").write_text(bad + "\n")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert findings("page.py")


if __name__ == "__main__":
    print("\n".join(all_findings(sys.argv[1:] or ["."])))
