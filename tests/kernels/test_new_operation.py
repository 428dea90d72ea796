"""The skeleton of an operation, in a copy of the kernels: its tests name what is missing, and pass when it is there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.new.operation import skeleton

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("tests/kernels/test_operations.py", "tests/kernels/test_check.py")
PARTS = """\
l2_norm has no contract: a function in kernels/ops.py with a docstring and call(...)
l2_norm has no reference: kernels/reference/l2_norm.py raises NotImplementedError
l2_norm has no cases in its entry (kernels/operations/l2_norm.py)
l2_norm has no rows in its entry (kernels/operations/l2_norm.py)
l2_norm has no work in its entry (kernels/operations/l2_norm.py)
l2_norm has no workloads in its entry (kernels/operations/l2_norm.py)
l2_norm has no mutants in its entry (kernels/operations/l2_norm.py)
l2_norm has no row in kernels/README.md: | `l2_norm` | `l2_norm.py` |  |  |  |
kernels/reference/l2_norm.py:1: fill in what l2_norm computes
kernels/operations/l2_norm.py:1: fill in what l2_norm is for"""
FILLED = {
    "kernels/ops.py": ("", '''

def l2_norm(x: Tensor) -> Tensor:
    """x / |x| over the last dimension: x [..., n], like x."""
    return call("l2_norm", kind(x), x)
'''),
    "kernels/README.md": ("", "\n| `l2_norm` | `l2_norm.py` |  |  |  |\n"),
    "kernels/reference/l2_norm.py": (
        "    raise NotImplementedError(",
        "    return (wide(x) / wide(x).norm(dim=-1, keepdim=True)).to(x.dtype)\n    (",
    ),
    "kernels/operations/l2_norm.py": (
        "cases=None", 'cases=_cases, rows=Rows("x"), terms=lambda x: x.shape[-1],\n'
        "    work=lambda x: Work(x.nbytes, x.nbytes), workloads=_workloads,\n"
        '    mutants=(("the mean", "wide(x).norm(dim=-1", "wide(x).mean(dim=-1"),),\n)\n_ = dict(cases=None',
    ),
}  # fmt: skip
"""Texts of an author: old and new; one without an old text goes to the end of its file."""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for folder in ("kernels", "prep_common"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for test in TESTS:
        (tmp_path / test).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / test, tmp_path / test)
    shutil.copy(ROOT / "tests/unfilled.py", tmp_path / "tests")
    for path, text in skeleton("l2_norm").items():
        (tmp_path / path).write_text(text)
    return tmp_path


def outcome(root: Path) -> str:
    """Return the output of the operation's tests in a copy of the tree."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "l2_norm or everything_in",
        *TESTS,
    ]
    return subprocess.run(command, cwd=root, capture_output=True, text=True).stdout


def test_tests_of_a_new_operation_name_what_is_missing(copy: Path) -> None:
    said = outcome(copy)
    assert all(part in said for part in PARTS.splitlines()), said


def test_tests_of_a_filled_operation_pass(copy: Path) -> None:
    for path, (old, new) in FILLED.items():
        text = (copy / path).read_text()
        assert old in text
        (copy / path).write_text((text.replace(old, new, 1) if old else text + new).replace("FILL IN", ""))
    said = outcome(copy)
    assert "failed" not in said and "9 passed" in said, said


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(ValueError, match="there is an operation rms_norm"):
        skeleton("rms_norm")
