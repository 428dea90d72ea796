"""`prep new`: all files or none, and items whose own tests fail by name until they are complete."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from app.cli.main import app as prep
from app.cli.new import _lines
from app.new import KINDS, LINTERS, Item, NotPossible, _start_again, check_room, forms_of, make, write
from tests.app.new_lab import FILLED_LAB
from tests.unfilled import ROOT

NAMES = {"question": "memory.my_question", "experiment": "memory.my_count"}
EACH = pytest.mark.parametrize("kind", KINDS)


def new(*words: str) -> Result:
    return CliRunner().invoke(prep, ["new", *words])


def name_of(kind: str) -> str:
    return NAMES.get(kind, f"my_{kind}")


@EACH
def test_a_skeleton_has_new_files_in_the_tree_and_at_most_six_next_steps_before_the_linters(
    kind: str,
) -> None:
    item = make(kind, name_of(kind))
    check_room(item)
    assert item.files and 2 <= len(item.next_steps) <= 7 and item.next_steps[-1] == LINTERS
    assert not any("NAME" in step for step in item.next_steps)
    assert any("FILL IN " in text for text in item.files.values())
    for path, text in item.files.items():
        assert (ROOT / path).resolve().is_relative_to(ROOT) and text.endswith("\n")
        if path.endswith(".py"):
            compile(text, path, "exec")


@pytest.mark.parametrize("is_long", [False, True])
@EACH
def test_its_code_passes_the_linter(kind: str, is_long: bool) -> None:
    name = name_of(kind)
    for path, text in make(
        kind, f"{name}{'_longer' * 9}"[: name.rfind(".") + 21] if is_long else name
    ).files.items():
        if path.endswith(".py"):
            for words in (["check", "-q"], ["format", "--check", "-q"]):
                command = [sys.executable, "-m", "ruff", *words, "--stdin-filename", path, "-"]
                checked = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True)
                assert checked.returncode == 0, (words, path, checked.stdout)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("labb my_lab", "unknown kind 'labb'; did you mean 'lab'?"),
        ("lab ../up", "'../up' is not a name; use NAME"),
        ("lab 1st", "'1st' is not a name; use NAME"),
        ("lab memory.my_lab", "'memory.my_lab' is not a name; use NAME"),
        ("question my_question", "'my_question' is not a name; use TOPIC.NAME"),
        ("question memry.mine", "unknown topic 'memry'; did you mean 'memory'?"),
        ("question memory.mine --form choise", "a question has no form 'choise'; did you mean 'choice'?"),
        ("page mine --form wide", "a page has no form 'wide'; known: none"),
        ("command class", "'class' is a word of Python's"),
        ("command quiz", "there is a command quiz"),
        ("lesson paged_kv", "there is a lesson paged_kv next: choose another name"),
        ("lab block-manager", "there is a lab block-manager next: choose another name"),
        ("operation rms_norm", "there is an operation rms_norm next: choose another name"),
        ("lab my_lab --form servng", "next: prep new lab my_lab --form serving"),
        ("lab my_lab --form x", f"next: prep new lab my_lab --form {forms_of('lab')[0]}"),
        ("page mine --form wide", "next: prep new page mine"),
        ("experiment batching.static_vs_continuous", "there is an experiment batching.static_vs_continuous"),
        ("page step", "already there: app/debugger/pages/step.py"),
        ("question batching.static_vs_continuous", "already there: quizzes/bank/batching/static_vs"),
    ],
)
def test_what_cannot_be_written_is_refused_with_a_next_step(words: str, said: str) -> None:
    found = new(*words.split())
    assert found.exit_code == 2 and "next: " in found.stderr
    assert said in " ".join(found.stderr.split())


def test_only_what_is_not_in_the_repository_may_be_deleted_to_start_again(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "installed"):
        (root / "tests").mkdir(parents=True)
        for name in ("ours", "yours", "pyproject.toml"):
            (root / name).write_text("")
    assert _start_again(["yours"], tmp_path) == "choose another name", "no repository: git cannot say"
    for words in (["init", "-q"], ["add", "ours"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert (
        _start_again(["ours"], tmp_path) == _start_again(["ours", "yours"], tmp_path) == "choose another name"
    )
    assert _start_again(["yours", "gone"], tmp_path).endswith("to start yours again, delete yours")
    assert _start_again(["yours"], tmp_path / "installed") == "choose another name", (
        "in the user's repository"
    )
    (tmp_path / "pyproject.toml").unlink()
    assert _start_again(["yours"], tmp_path) == "choose another name", "no checkout"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if forms_of(kind)])
def test_a_form_that_is_taken_by_default_is_told_with_the_others(kind: str) -> None:
    first, *others = forms_of(kind)
    told = new(kind, name_of(kind), "--dry-run").stderr
    assert f": {first}; others: --form {', '.join(others)}\n" in told
    assert "others:" not in new(kind, name_of(kind), "--dry-run", "--form", first).stderr
    shown = " ".join(new("--help").stdout.split())
    assert ", ".join([first, *others]) in shown


@pytest.mark.parametrize("columns", [60, 80, 200])
@EACH
def test_next_steps_keep_commands_whole_and_explanations_within_the_screen(kind: str, columns: int) -> None:
    steps = make(kind, name_of(kind)).next_steps
    lines = list(_lines(steps, columns))
    commands = [step.partition("  ")[0] for step in steps]
    assert all(any(line.startswith(f"  {command}") for line in lines) for command in commands)
    assert [line for line in lines if len(line) > columns and line.strip() not in commands] == []
    assert " ".join(" ".join(lines).split()) == " ".join(" ".join(steps).split())


def test_a_name_may_have_hyphens_and_capitals() -> None:
    assert list(make("lab", "My-Lab").files) == list(make("lab", "my_lab").files)


def test_a_dry_run_writes_nothing_and_json_has_the_files_and_the_next_steps() -> None:
    shown = json.loads(new("question", "memory.my_question", "--dry-run", "--json").stdout)
    assert list(shown["files"]) == ["quizzes/bank/memory/my_question.yaml"] and shown["written"] is False
    assert "prep bank lint --run memory.my_question" in " ".join(shown["next"])
    assert not (ROOT / "quizzes/bank/memory/my_question.yaml").exists()
    assert "title: FILL IN the topic" in new("question", "memory.my_question", "--dry-run").stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").touch()
    return tmp_path


def test_it_writes_its_files_once(checkout: Path) -> None:
    item = make("lab", "my_lab", "serving")
    write(item, checkout)
    assert {path: (checkout / path).read_text() for path in item.files} == item.files
    with pytest.raises(NotPossible, match="already there: lessons/labs/my_lab/meta.yaml"):
        write(item, checkout)


def test_it_writes_all_files_or_none(checkout: Path) -> None:
    item = make("command", "my_command")
    taken = checkout / list(item.files)[1]
    taken.parent.mkdir(parents=True)
    taken.write_text("mine\n")
    with pytest.raises(NotPossible, match="already there: tests/app/test_my_command_cli.py"):
        write(item, checkout)
    assert taken.read_text() == "mine\n" and not (checkout / "app").exists()


def test_a_failure_in_the_middle_leaves_nothing_behind(checkout: Path) -> None:
    (checkout / "file").touch()
    item = Item({"new/one.py": "x\n", "file/two.py": "x\n"}, [])
    with pytest.raises(OSError, match="file"):
        write(item, checkout)
    assert sorted(path.name for path in checkout.iterdir()) == ["file", "pyproject.toml", "tests"]


def test_an_installation_without_a_checkout_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotPossible, match="installed without its source tree"):
        write(make("page", "my_page"), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of the tree, of files that share their blocks with it: replace a file, never change it."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for path in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True).stdout.splitlines():
        copy = tmp_path / "tree" / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(ROOT / path, copy)
        except OSError:
            if (ROOT / path).exists():
                shutil.copy2(ROOT / path, copy)
    return tmp_path / "tree"


def run_tests(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run all tests that the words choose, slow ones too, in a copy of the tree."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "slow or not slow",
        *words,
    ]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PREP_HOME": str(tree.parent / "home")}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)


UNFILLED = {
    "question": (
        "tests/quizzes/test_bank.py -k memory.my_question",
        [
            "title: fill in the topic in one line",
            "prompt: fill in",
            "hints[0].text: fill in",
            "explain: fill in",
        ],
    ),
    "experiment": (
        "tests/quizzes/test_registry.py -k memory.my_count",
        ["fill in what it compares", "no oracle of a question, no claim and no test in tests/quizzes checks"],
    ),
    "lab": (
        "tests/lessons/test_labs.py tests/lessons/test_lab_contracts.py -k my-lab",
        ["mutants.py: 1 wrong files, at least 5", "meta.yaml: 0 probes", "follow_ups.md: 1 questions"]
        + ["meta.yaml: unlocks names no question", ": fill in what is wrong", "FILL IN the seam"],
    ),
    "lesson": (
        "tests/lessons/test_lesson_files.py -k complete",
        ["lesson.ipynb: prep lesson build 17", "no row | [17]", "coverage.yaml: no row of features for 17"]
        + ["mutants.py: 17.1 has 1 wrong solutions, at least 4", "meta.yaml: fewer than 2 exercises"]
        + ["lesson.py: this.plot(...) occurs 0 times", "lesson.py: this.explore(...) occurs 0 times"],
    ),
    "page": (
        "tests/app/debugger/test_my_page_page.py tests/app/debugger/test_addresses.py -k list_or_complete",
        ["my_page: no row in PAGES", "pages/my_page.py: no row in PAGES"],
    ),
    "command": (
        "tests/app/test_my_command_cli.py tests/app/test_main.py -k my_command_or_table",
        ["my_command: no row in COMMANDS", "app/cli/my_command.py: no row in COMMANDS"],
    ),
}
"""Kind -> its tests, and what they name while the skeleton is as `prep new` has written it."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", UNFILLED)
def test_the_tests_of_a_skeleton_fail_and_name_what_is_missing(kind: str, tree: Path) -> None:
    write(make(kind, name_of(kind)), tree)
    chosen, named = UNFILLED[kind]
    ended = run_tests(tree, *(word.replace("_or_", " or ") for word in chosen.split()))
    assert ended.returncode == 1, ended.stdout[-3000:] + ended.stderr[-2000:]
    assert [words for words in named if words not in ended.stdout] == [], ended.stdout[-6000:]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["predict", "numeric", "choice"])
def test_a_question_that_is_filled_in_passes(form: str, tree: Path) -> None:
    item = make("question", "memory.my_question", form)
    write(Item({path: text.replace("FILL IN ", "") for path, text in item.files.items()}, []), tree)
    ended = run_tests(tree, "tests/quizzes/test_bank.py", "-k", "memory.my_question or every_file_is")
    assert ended.returncode == 0 and " passed" in ended.stdout, ended.stdout[-4000:]


@pytest.mark.slow
def test_a_lab_that_is_filled_in_passes(tree: Path) -> None:
    files = make("lab", "my_lab", "serving").files
    assert {f"lessons/labs/my_lab/{name}" for name in FILLED_LAB} <= files.keys()
    write(Item({f"lessons/labs/my_lab/{name}": text for name, text in FILLED_LAB.items()}, []), tree)
    words = [
        "tests/lessons/test_labs.py",
        "tests/lessons/test_lab_contracts.py",
        "-k",
        "my-lab or rejects_a_wrong",
    ]
    ended = run_tests(tree, *words)
    assert ended.returncode == 0 and " passed" in ended.stdout, ended.stdout[-4000:]
