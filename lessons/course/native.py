"""Labs in C++ and CUDA: compile a learner's file, call its functions in a guest, measure them.

    cpp    one translation unit, plain C++17              --g++--> kernel.so
    cuda   the same with the host shim of kernels/cuda    --g++--> kernel.so; for GPUs: `gpu_reports`

The compiler runs confined (`common/sandbox/compiler.py`), the library in a guest.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.sandbox import Guest, Limits
from common.sandbox.compiler import CompilerRefused, compiled
from kernels.compile_report import KernelReport, parse_ptxas
from kernels.cpu.build import FLAGS, BuildError, find_compiler
from kernels.cuda import compile as nvrtc
from kernels.cuda.shim.build import FLAGS as SHIM_FLAGS
from lessons.course.checking import Failed, Learner, NotCompiled
from lessons.course.lesson_files import Lab

_GUEST = 'from pathlib import Path\n\nfrom lessons.given.native import Bench, run\n\nFOLDER = str(Path(__file__).parent)\n'
IMPORTS = ("numpy", "ctypes", "lessons.given.native")
_WRITE_IT = "write it:"
"""Begins the text of `#error` in every stub."""


@dataclass(frozen=True)
class Out:
    """An argument that the function writes; it begins with the values of `array`."""

    array: NDArray[Any]


@dataclass(frozen=True)
class Grid:
    """How a CUDA kernel is launched."""

    blocks: tuple[int, ...]
    threads: int
    shared_bytes: int = 0

    def shape(self, backwards: bool) -> Any:
        grid = [*self.blocks, 1, 1][:3]
        return grid, [self.threads, 1, 1], self.shared_bytes, backwards


def library(lab: Lab, source: str) -> bytes:
    """Compile a learner's file. Raises NotCompiled, also if there is no compiler or a function is missing."""
    try:
        return _library(lab.language, source, tuple(lab.exercise.objects))
    except (CompilerRefused, BuildError) as error:
        _, is_stub, what = str(error).partition(_WRITE_IT)
        if is_stub:
            raise NotCompiled(f"not written yet: {what.strip().strip(chr(34))}", is_stub=True) from None
        raise NotCompiled(str(error)) from None


@cache
def _library(language: str, source: str, names: tuple[str, ...]) -> bytes:
    compiler = find_compiler()
    if language == "cpp":
        # a linker that is asked for a name that is missing says so
        wanted = [f"-Wl,--require-defined={name}" for name in names] if sys.platform == "linux" else []
        options = [*FLAGS, "-fopenmp-simd", "-shared", *wanted, "learner.cpp", "-o", "kernel.so"]
        return compiled([compiler, *options], {"learner.cpp": source}, "kernel.so")
    folder = nvrtc.source_folder()
    exports = "".join(f"SHIM_EXPORT({name})\n" for name in names)
    unit = f'#include "learner.cu"\n#include "shim/export.h"\n{exports}'
    options = [*SHIM_FLAGS, "-DPREP_HOST_SHIM", f"-I{folder}", "unit.cpp", str(folder / "shim/runtime.cpp")]
    files = {"learner.cu": source, "unit.cpp": unit}
    return compiled([compiler, *options, "-o", "kernel.so"], files, "kernel.so", [str(folder)])


def guest_files(lab: Lab, source: str) -> dict[str, str | bytes]:
    """Return the files of a guest for the learner's code in the lab's language. Raises as `library`."""
    if lab.language == "python":
        return {"learner.py": source}
    return {"learner.py": _GUEST, "kernel.so": library(lab, source)}


def run(
    learner: Learner, name: str, *args: Any, grid: Grid | None = None, backwards: bool = False
) -> list[NDArray[Any]]:
    """Call a function once; return the arrays of its `Out` arguments. Raises Failed if it leaves its arrays.

    grid: in the CUDA form, the launch. backwards: threads of a block run from the last to the first.
    """
    letters, values, outputs = flatten(args)
    shape = grid.shape(backwards) if grid and learner.language == "cuda" else None
    found = learner.call("run", learner.get("FOLDER"), name, letters, values, outputs, shape)
    if isinstance(found, str):
        raise Failed(found)
    return list(found)


def flatten(args: Sequence[Any]) -> tuple[str, list[Any], list[int]]:
    """Return the letters of the arguments, their values, and the places of those that are written.

    Arrays are pointers, int is int32, float is float.
    """
    letters, values, outputs = "", [], []
    for place, arg in enumerate(args):
        if isinstance(arg, Out):
            outputs.append(place)
            arg = arg.array
        letters += "p" if isinstance(arg, np.ndarray) else "f" if isinstance(arg, float) else "i"
        values.append(arg)
    return letters, values, outputs


def seconds_per_call(guest: Guest, name: str, args: Sequence[Any], *, grid: Grid | None = None) -> float:
    """Return the median time of a call in the guest, from five rounds of about 30 ms, after one to warm up."""
    letters, values, _ = flatten(args)
    folder = guest.get("FOLDER")
    bench = guest.new("Bench", folder, name, letters, values, grid and grid.shape(False))

    def timed(times: int) -> float:
        start = time.perf_counter()
        bench.repeat(times)
        return (time.perf_counter() - start) / times

    times = max(1, int(0.03 / max(timed(1), 1e-6)))
    return median(timed(times) for _ in range(5))


def guest_of(lab: Lab, source: str, seconds: float = 60.0) -> Guest:
    """Return a guest with the compiled file, for measurements."""
    return Guest(guest_files(lab, source), limits=Limits(seconds=seconds, megabytes=1_024), imports=IMPORTS)


def gpu_reports(source: str, name: str, threads: int, shared_bytes: int = 0) -> list[KernelReport]:
    """Compile a CUDA file for sm_80 and sm_90. Raises nvrtc.CompileError."""
    found = []
    with TemporaryDirectory(prefix="prep-nvrtc-") as scratch:
        for path in nvrtc.source_folder().glob("*.cuh"):
            (Path(scratch) / path.name).write_bytes(path.read_bytes())
        (Path(scratch) / "learner.cu").write_text(source, encoding="utf-8")
        for arch in (80, 90):
            made = nvrtc.compiled("learner.cu", (), arch, Path(scratch))
            usage = parse_ptxas(made.log)[name]
            found.append(
                KernelReport(
                    name=name,
                    file="learner.cu",
                    arch=arch,
                    registers=usage.registers,
                    shared_bytes=usage.static_shared_bytes + shared_bytes,
                    spill_store_bytes=usage.spill_store_bytes,
                    spill_load_bytes=usage.spill_load_bytes,
                    threads=threads,
                    ptx=made.ptx,
                )
            )
    return found
