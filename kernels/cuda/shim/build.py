"""Compile a `.cu` file as C++ and load it: the kernels as functions of a shared library.

    runtime.cpp --g++--> runtime.so               the scheduler of the fibers, once
    norm.cu + export.h --g++--> norm.so           for every combination of defines
    runtime.cpp, races.cpp --g++--> *.o           for kernels of learners, once

All are kept in the user's cache under a key that covers sources, defines, options and the compiler's file.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from threading import Lock

from kernels.cpu.build import cache_folder, find_compiler
from kernels.cpu.compile import COMPILE_TIMEOUT_S, BuildError, no_place, scratch_folder
from kernels.cuda.compile import Defines, source_folder

FLAGS = "-std=c++17 -O1 -fPIC -ffp-contract=off -fno-strict-aliasing -Wall -Wno-unknown-pragmas".split()
WATCHED = ["-fsanitize=thread", "-nodefaultlibs"]
"""Call a function before each access to memory, one of races.cpp and not of the compiler's library."""

_running = Lock()
"""Shared memory and the fibers are globals of the libraries: one launch at a time."""


class ShimError(RuntimeError):
    """A kernel did what a GPU does not forgive; the message names the kernel, the block and the line."""


class HostKernel:
    """One kernel, compiled for the host shim."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self._launch = getattr(library, f"shim_launch_{name}")
        self._launch.restype = ctypes.c_char_p
        signature = getattr(library, f"shim_signature_{name}")
        signature.restype = ctypes.c_char_p
        self.signature: str = signature().decode()
        """A letter per parameter, as the C++ compiler sees it: p pointer, i int32, l int64, f float."""

    def launch(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        shared_bytes: int,
        arguments: list[ctypes._SimpleCData],
        *,
        backwards: bool = False,
    ) -> None:
        """Run all blocks. `backwards`: the threads of a block take their turns from the last to the first."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        dimensions = ctypes.c_uint * 3
        with _running:
            error = self._launch(
                dimensions(*grid), dimensions(*block), ctypes.c_size_t(shared_bytes), pointers, int(backwards)
            )
        if error is not None:
            raise ShimError(error.decode())


def problem() -> str | None:
    """Reason why the shim cannot be used here; None if it can."""
    if not sys.platform.startswith("linux"):
        return f"the host shim for CUDA kernels needs Linux, this is {sys.platform}"
    try:
        find_compiler()
        cache_folder().mkdir(parents=True, exist_ok=True)
    except BuildError as error:
        return str(error)
    except (OSError, RuntimeError) as error:
        return str(no_place(error))
    return None


@cache
def load(source: str, kernel: str, defines: Defines, folder: Path) -> HostKernel:
    """`kernel` of the file `source` in `folder`. Raises BuildError if it does not compile."""
    return HostKernel(_library(source, kernel, defines, folder), kernel)


def _library(source: str, kernel: str, defines: Defines, folder: Path) -> ctypes.CDLL:
    compiler = find_compiler()
    runtime = _runtime(compiler)
    unit = f'#include "{source}"\n#include "shim/export.h"\nSHIM_EXPORT({kernel})\n'
    sources = [path.read_text() for path in sorted([*folder.glob("*.cu*"), *folder.glob("shim/*.h")])]
    options = ["-DPREP_HOST_SHIM", *(f"-D{name}={value}" for name, value in defines), f"-I{folder}"]
    key = _key(compiler, unit, defines, str(runtime), *sources)
    options = ["-shared", *options, str(runtime)]
    return ctypes.CDLL(str(_compiled(compiler, f"{kernel}-{key}.so", unit, options)))


@cache
def _runtime(compiler: str) -> Path:
    folder = source_folder() / "shim"
    headers = [(folder / name).read_text() for name in ("cuda_shim.h", "export.h")]
    unit = (folder / "runtime.cpp").read_text()
    options = ["-shared", f"-I{folder}"]
    return _compiled(compiler, f"runtime-{_key(compiler, unit, *headers)}.so", unit, options)


def watching_runtime() -> list[Path]:
    """Return the runtime as object files that watch accesses of code compiled with `WATCHED`. Raises BuildError."""
    folder, compiler = source_folder() / "shim", find_compiler()
    sources = {path.name: path.read_text() for path in sorted(folder.glob("*.[ch]*"))}
    options = ["-c", *WATCHED, f"-I{folder}"]
    key = _key(compiler, WATCHED, *sources.items())
    return [
        _compiled(compiler, f"{name}-{key}.o", sources[f"{name}.cpp"], options)
        for name in ("runtime", "races")
    ]


def _key(compiler: str, *parts: object) -> str:
    real = Path(compiler).resolve()
    file = real.stat()
    made_by = (str(real), file.st_size, file.st_mtime_ns, platform.machine())
    return hashlib.sha256(repr((FLAGS, made_by, *parts)).encode()).hexdigest()[:16]


def _compiled(compiler: str, name: str, unit: str, options: list[str]) -> Path:
    """Return what the compiler makes of this translation unit, from the cache or made now. Raises BuildError."""
    folder = cache_folder() / "shim"
    target = folder / name
    if target.exists():
        return target
    scratch = scratch_folder(folder)
    try:
        (scratch / "unit.cpp").write_text(unit)
        command = [compiler, *FLAGS, str(scratch / "unit.cpp"), "-o", str(scratch / name), *options]
        result = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
        if result.returncode:
            errors = [line for line in result.stderr.splitlines() if "error" in line]
            said = errors[0] if errors else result.stderr.strip()
            raise BuildError(f"{name}: {said or 'the compiler says nothing'}")
        os.replace(scratch / name, target)  # whole or not at all, also when two processes build
    except subprocess.TimeoutExpired:
        raise BuildError(f"{name}: the compiler takes longer than {COMPILE_TIMEOUT_S} s") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target
