"""The learner's file of a lab is made from the solution: the contract, and nothing of how ours does it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lessons.course.lab_stub import native_stub, python_stub
from lessons.course.lesson_files import HUNTS, Lab, labs

WRITTEN = [lab for lab in labs() if lab.track != HUNTS]
SOLUTION = '''\
"""Lab window: keep the last numbers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

SIZE = 8
"""Default size."""
_TINY = 1e-9


class Node:
    """A helper of ours."""


class Window:
    """The last numbers."""

    is_open = True

    def __init__(self, size: int = SIZE) -> None:
        """Start empty."""
        # our thought about it
        self.numbers = deque(maxlen=size)

    @property
    def mean(self) -> float:
        """Mean of the numbers."""
        return math.fsum(self.numbers) / self._count()

    def extend(self, numbers: Sequence[float]) -> None:
        """Add all. Given."""
        for each in numbers:
            self.numbers.append(each)
        # that is all
        # given up to here

    # why we count
    def _count(self) -> float:
        """Return their number."""
        return len(self.numbers) + _TINY


def merged(left: Window, right: Window) -> Window:
    # the left one
    return left


def _ours() -> None:
    """Do it."""
'''
STUB = '''\
"""Lab window: keep the last numbers."""

from __future__ import annotations

from collections.abc import Sequence

SIZE = 8
"""Default size."""


class Window:
    """The last numbers."""

    is_open = True

    def __init__(self, size: int = SIZE) -> None:
        """Start empty."""
        raise NotImplementedError("write Window")

    @property
    def mean(self) -> float:
        """Mean of the numbers."""
        raise NotImplementedError("write mean")

    def extend(self, numbers: Sequence[float]) -> None:
        """Add all. Given."""
        for each in numbers:
            self.numbers.append(each)
        # that is all


def merged(left: Window, right: Window) -> Window:
    raise NotImplementedError("write merged")
'''
NATIVE = """\
// Lab cuda-half: half of each number.
#include "common.cuh"

constexpr int THREADS = 128;

// given up to here

__device__ float part(float x) { return x / 2; }

extern "C" __global__ void half_of(const float* x,
                                   float* out) {
    if (threadIdx.x < THREADS) {
        out[threadIdx.x] = part(x[threadIdx.x]);
    }
}

// again
extern "C" void twice(float* x) {
    x[0] *= 2;
}
"""
NATIVE_STUB = """\
// Lab cuda-half: half of each number.
#include "common.cuh"

constexpr int THREADS = 128;

extern "C" __global__ void half_of(const float* x,
                                   float* out) {
#error "write it: half_of"
}

extern "C" void twice(float* x) {
#error "write it: twice"
}
"""


def test_a_stub_has_the_contract_and_what_is_given_and_nothing_of_ours() -> None:
    assert python_stub(SOLUTION, ["Window", "merged"]) == STUB


def test_a_stub_in_cuda_has_the_given_top_and_the_heads_of_its_functions() -> None:
    assert native_stub(NATIVE) == NATIVE_STUB
    given, mark, ours = NATIVE.partition(
        "// given up to here\n\n__device__ float part(float x) { return x / 2; }\n\n"
    )
    assert mark and native_stub(given + ours) == NATIVE_STUB


@pytest.mark.parametrize("each", WRITTEN, ids=lambda each: each.number)
def test_a_stub_has_no_statement_of_the_solution_that_is_not_given(each: Lab) -> None:
    """A body is its docstring and an error, unless the solution marks what it gives."""
    if not each.file_name.endswith(".py"):
        functions = each.stub.split('extern "C"')[1:]
        assert len(functions) == len(each.exercise.objects)
        assert all(re.fullmatch(r"[^{]*\{\n#error .*\n\}\n*", text) for text in functions)
        return
    bodies = [
        node.body
        for node in ast.walk(ast.parse(each.stub))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    free = [body for body in bodies if not isinstance(body[-1], ast.Raise)]
    assert len(free) == each.read("solution").count("# given up to here")
    assert each.language != "triton" or (free and "import triton.language as tl\n" in each.stub)


def test_the_stubs_are_formatted_and_define_what_they_use(tmp_path: Path) -> None:
    for each in WRITTEN:
        if each.file_name.endswith(".py"):
            (tmp_path / each.file_name).write_text(each.stub)
    root = Path(__file__).resolve().parents[2]
    for words in (["check", "--ignore", "F401,F841"], ["format", "--check"]):
        command = [
            sys.executable,
            "-m",
            "ruff",
            *words,
            "--config",
            str(root / "pyproject.toml"),
            str(tmp_path),
        ]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr
