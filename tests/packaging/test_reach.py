"""The push tier runs the slow tests that a change can reach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.import_graph import Graph
from tests.reach import ROOT, Change, Source, change, leads, reached, sentence


@pytest.fixture(scope="module")
def graph() -> Graph:
    return leads()


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        (
            "engine/core/scheduler.py",
            "core/test_mutations engine/test_everything_at_once server/test_server quizzes/test_bank "
            "quizzes/test_claims_bank lessons/test_mine_engine app/debugger/test_step_browser",
        ),
        ("quizzes/bank/preemption/first_victim.yaml", "quizzes/test_bank quizzes/test_mutations"),
        ("lessons/labs/sampler/solution.py", "lessons/test_labs lessons/test_hostile_labs"),
        ("app/debugger/step_view/block_map.js", "app/debugger/test_canvas_scales_browser"),
        ("engine/models/llama.py", "differential/test_config_fields differential/test_shop_tokens"),
        ("engine/layers/norm.py", "differential/test_config_fields differential/test_shop_tokens"),
        ("engine/models/families/qwen.py", "differential/test_config_fields"),
        ("kernels/operations/dense.py", "kernels/test_check"),
        ("kernels/cpu/attention.cpp", "kernels/test_cpu_attention differential/test_shop_tokens"),
        ("README.md", "packaging/test_commands_on_pages packaging/test_site"),
        ("docs/speed.md", "packaging/test_commands_on_pages packaging/test_site"),
    ],
)
def test_a_change_selects_the_slow_tests_that_it_can_reach(graph: Graph, file: str, tests: str) -> None:
    assert (ROOT / file).exists(), file
    found = reached([file], graph)
    assert found is not None
    assert not {f"tests/{test}.py" for test in tests.split()} - found


@pytest.mark.parametrize(
    "file",
    [
        "app/debugger/step_view/block_map.js",
        "tests/kernels/test_cpu_norm.py",
        "tests/sample/harness.py",
        "README.md",
    ],
)
def test_a_change_of_one_part_leaves_others_out(graph: Graph, file: str) -> None:
    found = reached([file], graph)
    assert found is not None
    assert not {"tests/core/test_mutations.py", "tests/quizzes/test_claims_bank.py"} & found


def test_a_command_stands_at_the_start_of_a_text_or_behind_prep_and_in_no_docstring(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(
        '"""Serve it."""\nline = ["run", "zoo eval", "./prep quiz --once", "the mock ends", "$ prep"]\n'
    )
    assert Source(path, tmp_path).typed == {"run", "zoo", "./prep", "quiz", "the", "$"}


def test_a_path_is_not_also_the_file_of_its_name_at_the_top(tmp_path: Path) -> None:
    path = tmp_path / "engine" / "it.py"
    path.parent.mkdir()
    path.write_text('paths = ROOT / "zoo" / "a.md", Path(__file__).with_name("b.md"), ROOT / "c.md"\n')
    assert Source(path, tmp_path).words == {"zoo", "zoo/a.md", "engine/b.md", "c.md"}


def test_a_file_that_is_not_python_yet_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "engine" / "core.py").write_text("def (")
    (tmp_path / "tests" / "test_core.py").write_text("import engine.core")
    graph = leads(tmp_path)
    assert graph["engine/core.py"] == set()
    assert reached(["engine/core.py"], graph) == {"tests/test_core.py"}


@pytest.mark.parametrize(
    "file", ["tests/conftest.py", "pyproject.toml", "tests/waiting.py", "tests/app/conftest.py"]
)
def test_what_all_tests_share_reaches_all(file: str) -> None:
    assert reached(["README.md", file]) is None
    assert "all" in sentence(Change("0" * 40, frozenset([file])), None)


@pytest.fixture(scope="module")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (ROOT / ".git").exists():
        pytest.skip("needs the history")
    folder = tmp_path_factory.mktemp("reach") / "clone"
    git(ROOT, "clone", "--quiet", "--shared", str(ROOT), str(folder))
    return folder


@pytest.fixture
def clone(cloned: Path) -> Path:
    """A clone of this project in which the last commit is known as green."""
    git(cloned, "reset", "--quiet", "--hard")
    git(cloned, "clean", "-fdq")
    green(cloned, git(cloned, "rev-parse", "HEAD").strip())
    return cloned


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def green(root: Path, commit: str) -> None:
    (root / "tests/last_green.json").write_text(json.dumps({"commit": commit}))


def change_in(root: Path) -> Change | None:
    return change(root / "tests/last_green.json", root)


def test_a_change_is_what_differs_from_the_last_green_commit(clone: Path) -> None:
    nothing = change_in(clone)
    assert nothing is not None and not nothing.files
    (clone / "engine/core/scheduler.py").write_text("")
    (clone / "engine/core/new one.py").write_text("")
    (clone / "CHANGELOG.md").write_text("")
    git(clone, "mv", "kernels/ops.py", "kernels/operations.py")
    changed = change_in(clone)
    assert changed is not None
    assert changed.files == {
        "engine/core/scheduler.py",
        "engine/core/new one.py",
        "CHANGELOG.md",
        "kernels/ops.py",
        "kernels/operations.py",
    }


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", json.dumps({"commit": "f" * 40}), json.dumps({"commit": "--all"})]
)
def test_without_a_known_commit_everything_counts_as_changed(clone: Path, content: str) -> None:
    (clone / "tests/last_green.json").write_text(content)
    assert change_in(clone) is None
    (clone / "tests/last_green.json").unlink()
    assert change_in(clone) is None


def test_pytest_selects_the_slow_tests_of_a_changed_core_and_leaves_others_out(clone: Path) -> None:
    files = ["tests/core/test_shadow_transfer.py", "tests/kernels/test_cpu_norm.py"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}

    def selected() -> set[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "reached", *files]
        shown = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True).stdout
        return {line.partition("::")[0] for line in shown.splitlines() if "::" in line}

    assert not selected()
    with (clone / "engine/core/scheduler.py").open("a") as file:
        file.write("# changed\n")
    assert selected() == {files[0]}
    with (clone / "tests/conftest.py").open("a") as file:
        file.write("# changed\n")
    assert selected() == set(files)
