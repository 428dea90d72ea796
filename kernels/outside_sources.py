"""Compilation of a kernel that is not part of this package: the commands and reports, with the flags of our own.

The labs (`lessons/course/native.py`) compile what learners write.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kernels.compile_report import ARCHITECTURES, KernelReport, parse_ptxas
from kernels.cpu.build import find_compiler
from kernels.cpu.compile import FLAGS, BuildError, NoPlace
from kernels.cuda import compile as nvrtc
from kernels.cuda.shim.build import FLAGS as SHIM_FLAGS
from kernels.cuda.shim.build import WATCHED, watching_runtime

CPU = Path(__file__).parent / "cpu"
LIBRARIES = ["-lstdc++", "-lm", "-lc", "-lgcc_s"]

__all__ = ["BuildError", "CompilePlan", "cpp_plan", "cuda_plan", "cuda_reports"]


@dataclass(frozen=True)
class CompilePlan:
    """A command that makes `kernel.so` of the files in its folder."""

    command: list[str]
    files: dict[str, str]
    readable: list[str]
    """Folders and files that it reads beside the system's."""


def cpp_plan(source: str, names: Sequence[str], beside: Mapping[str, str] | None = None) -> CompilePlan:
    """C++ with the C functions `names`; it may include `vector.h`. Raises BuildError if there is no compiler.

    beside: more C++ files for the library, by name.
    """
    # a linker that is asked for a name that is missing says so
    wanted = [f"-Wl,--require-defined={name}" for name in names] if sys.platform == "linux" else []
    files = {"learner.cpp": source, **(beside or {})}
    options = [*FLAGS, "-fopenmp-simd", f"-I{CPU}", "-shared", *wanted, *files, "-o", "kernel.so"]
    return CompilePlan([find_compiler(), *options], files, [str(CPU)])


def cuda_plan(source: str, names: Sequence[str], beside: Mapping[str, str] | None = None) -> CompilePlan:
    """CUDA C++ with the kernels `names`, for the host shim, which watches for races. Raises as `cpp_plan`."""
    folder = nvrtc.source_folder()
    try:
        shim = [str(path) for path in watching_runtime()]
    except NoPlace:  # nothing can be kept
        shim = [str(folder / "shim" / name) for name in ("runtime.cpp", "races.cpp")]
    exports = "".join(f"SHIM_EXPORT({name})\n" for name in names)
    unit = f'#include "learner.cu"\n#include "shim/export.h"\n{exports}'
    files = {"learner.cu": source, "unit.cpp": unit, **(beside or {})}
    made = ["-shared", "-DPREP_HOST_SHIM", f"-I{folder}", "unit.cpp", *(beside or {}), *shim, *LIBRARIES]
    command = [find_compiler(), *SHIM_FLAGS, *WATCHED, *made, "-o", "kernel.so"]
    return CompilePlan(command, files, [str(folder), *shim])


def cuda_reports(source: str, name: str, threads: int, shared_bytes: int) -> list[KernelReport]:
    """Compile a kernel with NVRTC for each architecture. Raises BuildError."""
    if (problem := nvrtc.problem()) is not None:
        raise BuildError(problem)
    reports = []
    with TemporaryDirectory(prefix="prep-nvrtc-") as scratch:
        folder = Path(scratch)
        for path in nvrtc.source_folder().glob("*.cuh"):
            (folder / path.name).write_bytes(path.read_bytes())
        (folder / "learner.cu").write_text(source, encoding="utf-8")
        for arch in ARCHITECTURES:
            try:
                made = nvrtc.compiled("learner.cu", (), arch, folder)
            except nvrtc.CompileError as error:
                raise BuildError(str(error)) from None
            used = parse_ptxas(made.log)[name]
            spills = used.spill_store_bytes, used.spill_load_bytes
            shared = used.static_shared_bytes + shared_bytes
            reports.append(
                KernelReport(name, "learner.cu", arch, used.registers, shared, *spills, threads, made.ptx)
            )
    return reports
