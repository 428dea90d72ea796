"""The formatter of question and claim files changes layout and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from app.new.question import skeleton
from quizzes.lint import bank_files, fix_format, lint_format
from quizzes.topics import KINDS
from quizzes.yaml_format import WIDTH, formatted, long_lines

WORDS = "the scheduler preempts a request when no block is free; " * 6
MESSY = f"""\
# about the file
id: x.y   # behind a value
# before a key
choices:
  - {{id: first, text: "{WORDS}", right: true}}   # behind an item
  - {{id: second, text: "short",   right: false}}

lens: [{", ".join(map(str, range(100, 160)))}]
when:    {{
    answer: wait,  # inside of a flow mapping
    equals: "=1" }}
empty:
nothing: {{}}
"true": "no"
number: 0x10
says: >-
  short
two: >
  First paragraph: {WORDS}

  second
prompt: |
  {WORDS}
  goes on. {{{{ lens | join(', ') }}}} - and a dash, 3. and a number

  - an item: {WORDS}
  - another

      indented   code
exhibit: |
  def f():  # no comment of YAML
      return "{WORDS}"
# at the end
"""


def test_format_keeps_values_comments_and_the_order_of_keys() -> None:
    new = formatted(MESSY)
    before, after = yaml.safe_load(MESSY), yaml.safe_load(new)
    for text in ("prompt",):  # the one kind of text whose line breaks may move
        assert before[text] != after[text]
        assert before.pop(text).split() == after.pop(text).split()
    assert after == before and list(after) == list(before)
    for comment in (
        "about the file",
        "behind a value",
        "before a key",
        "behind an item",
        "inside of a",
        "at the end",
    ):
        assert new.count(f"# {comment}") == MESSY.count(f"# {comment}") == 1
    lines = new.splitlines()
    assert lines[0] == "# about the file" and lines[-1] == "# at the end"
    assert "id: x.y  # behind a value" in lines
    assert lines[lines.index("# before a key") + 1] == "choices:"


def test_format_breaks_what_is_too_long_and_leaves_the_rest_on_one_line() -> None:
    new = formatted(MESSY)
    assert [new.splitlines()[line - 1].strip()[:6] for line in long_lines(new)] == ["return"]  # code stays
    assert '  - {id: second, text: "short", right: false}' in new.splitlines()
    assert "  - id: first  # behind an item\n    text: >-\n      the scheduler" in new
    assert "lens: [100, 101," in new and "says: short\n" in new and 'number: 0x10\n"' not in new
    assert "{{ lens | join(', ') }}" in new.replace("\n  ", " ")
    assert not any(line.lstrip().startswith(("- and", "3. and")) for line in new.splitlines())


def test_formatting_twice_changes_nothing() -> None:
    assert formatted(MESSY) != MESSY
    assert formatted(formatted(MESSY)) == formatted(MESSY)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_question_is_formatted(kind: str) -> None:
    [text] = skeleton("memory.my_question", kind).values()
    assert formatted(text) == text


def test_every_question_and_claim_is_formatted() -> None:
    files = bank_files()
    assert [finding for path in files for finding in lint_format(path)] == []


def test_lint_names_long_lines_and_unformatted_files_and_fix_mends_them(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(f'id: x.y\nhints:\n  - {{text: "{WORDS}"}}\n')
    assert [finding.split("one.yaml")[1] for finding in lint_format(path)] == [
        f":3: a line has more than {WIDTH} columns",
        ": not formatted; run prep bank lint --fix",
    ]
    assert fix_format(path) and not fix_format(path)
    assert list(lint_format(path)) == []


def test_fix_leaves_a_file_that_is_not_yaml_alone(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("id: [x\n")
    assert not fix_format(path)
    assert path.read_text() == "id: [x\n" and "broken.yaml" in next(iter(lint_format(path)))
