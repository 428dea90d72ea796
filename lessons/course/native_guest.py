"""Start a guest with a learner's kernel, compiled if its language needs it.

    cpp     one translation unit, C++17, kernels/cpu/*.h   --g++--> kernel.so
    cuda    the same with the host shim of kernels/cuda    --g++--> kernel.so
    triton  a Python file, in Triton's interpreter

The compiler runs confined (`prep_common/sandbox/compiler.py`), the library in a guest. Registers and occupancy on GPUs:
`gpu_report.py`.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from kernels import INSTALL_COMPILERS
from lessons.course.lesson_files import Lab
from prep_common.sandbox import Guest, Limits
from prep_common.sandbox.compiler import CompilerRefused, compiled

_GUEST = """from pathlib import Path

from lessons.given.native import Bench, largest_share, run, run_within_walls

FOLDER = str(Path(__file__).parent)
"""
IMPORTS = {
    "cpp": ("numpy", "ctypes", "lessons.given.native"),
    "cuda": ("numpy", "ctypes", "lessons.given.native"),
    "triton": ("lessons.given.triton_interpreter",),
}
"""Modules of a guest by language."""
_WALLS = Path(__file__).parents[1] / "given" / "walls.cpp"
_WRITE_IT = "write it:"
"""Begins the text of `#error` in every stub."""


class NotCompiled(ValueError):
    """A file in C++ or CUDA gives no library: why, in one sentence."""

    def __init__(self, why: str, *, is_stub: bool = False) -> None:
        super().__init__(why)
        self.is_stub = is_stub


def compiled_guest(lab: Lab, source: str, limits: Limits) -> Guest:
    """Start a guest with the learner's file. Raises NotCompiled, GuestError, GuestStopped."""
    return Guest(guest_files(lab, source), limits=limits, imports=IMPORTS[lab.language])


def _no_triton() -> str | None:
    """Return why a file cannot run in Triton's interpreter, or None."""
    if find_spec("triton") is not None:
        return None
    return f"triton is not installed, and the checks run its interpreter; {INSTALL_COMPILERS}"


def library(lab: Lab, source: str) -> bytes:
    """Compile a learner's file. Raises NotCompiled, also if there is no compiler or a function is missing."""
    from kernels.outside_sources import BuildError  # imports the compilers' packages

    try:
        return _library(lab.language, source, tuple(lab.exercise.objects))
    except (CompilerRefused, BuildError) as error:
        _, is_stub, what = str(error).partition(_WRITE_IT)
        if is_stub:
            raise NotCompiled(f"not written yet: write {what.strip().strip(chr(34))}", is_stub=True) from None
        raise NotCompiled(str(error)) from None


@cache
def _library(language: str, source: str, names: tuple[str, ...]) -> bytes:
    from kernels.outside_sources import cpp_plan, cuda_plan

    beside = {"walls.cpp": _WALLS.read_text(encoding="utf-8")} if sys.platform == "linux" else {}
    plan = (cpp_plan if language == "cpp" else cuda_plan)(source, names, beside)
    return compiled(plan.command, plan.files, "kernel.so", plan.readable)


def guest_files(lab: Lab, source: str) -> dict[str, str | bytes]:
    """Return the files of a guest for the learner's code in the lab's language. Raises as `library`."""
    if lab.language == "triton":
        if (problem := _no_triton()) is not None:
            raise NotCompiled(problem)
        return {"learner.py": source}
    return {"learner.py": _GUEST, "kernel.so": library(lab, source)}
