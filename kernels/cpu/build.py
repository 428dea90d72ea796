"""The C++ kernels as one shared library: compiled once, kept in the user's cache, loaded with ctypes.

    *.cpp --g++ -c--> *.o --link with the OpenMP runtime torch has loaded--> <cache>/kernels/<key>/kernels.so

The key covers the sources, the flags, the compiler and the processor, so that an edit, an upgrade or another
machine on the same home directory builds anew. There must be one OpenMP runtime in a process: two
fight over the cores, and both slow down tenfold. So torch is imported first, and its runtime is the one linked.
The first process on a machine does not wait for the compiler (`background.py`).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from kernels.cpu import background
from kernels.cpu.compile import (
    BuildError,
    NoPlace,
    Target,
    compile_library,
    flags,
    no_place,
    sha256,
    sources,
)
from prep_common.paths import built_dir

SOURCES = Path(__file__).parent


class NoSuchCompiler(BuildError):
    """A variable names a compiler that does not exist."""


class SwitchedOff(BuildError):
    """The user wants no C++ kernels."""


class StillCompiling(BuildError):
    """Another process compiles the library."""


@dataclass(frozen=True, slots=True)
class Library:
    """The loaded library, or why there is none."""

    handle: ctypes.CDLL | None
    problem: str | None
    path: Path | None = None
    build_seconds: float = 0.0
    """Time spent compiling or waiting for a process that compiled; 0 if it was found in the cache."""
    is_compiling: bool = False
    """There is none yet, and the next process will find one."""


@cache
def load_library() -> Library:
    """The library of this process, the same as long as the process lives. Without it torch takes over.

    Raises ValueError for an invalid PREP_KERNELS_BUILD, and nothing else.
    """
    start = time.perf_counter()
    try:
        path, built = build()
        handle = ctypes.CDLL(str(path))
    except BuildError as error:
        return Library(None, str(error), is_compiling=isinstance(error, StillCompiling))
    except OSError as error:
        return Library(None, f"the compiled kernels do not load: {error}")
    return Library(handle, None, path, time.perf_counter() - start if built else 0.0)


def function(name: str, signature: str, returns: str | None = None) -> Any:
    """A C function, in the form that this processor runs fastest (`arm/forms.cpp`).

    One letter for each argument, and for the result: p pointer, l int64, f float.
    """
    types: dict[str, Any] = {"p": ctypes.c_void_p, "l": ctypes.c_int64, "f": ctypes.c_float}
    handle = load_library().handle
    if handle is None:
        raise BuildError(f"the C++ kernels are not available: {load_library().problem}")
    if choose := getattr(handle, "fastest_form", None):
        choose.restype = ctypes.c_char_p
        name = choose(name.encode()).decode()
    bound = handle[name]
    bound.argtypes = [types[letter] for letter in signature]
    bound.restype = None if returns is None else types[returns]
    return bound


def build() -> tuple[Path, bool]:
    """(path of the library for the current sources, whether this process waited for the compiler).

    Raises StillCompiling if another process compiles it and this one does not wait.
    """
    waits = background.must_wait()
    try:
        return _build(waits)
    except (StillCompiling, SwitchedOff):
        raise
    except BuildError as error:
        if waits or isinstance(error, (NoSuchCompiler, NoPlace)):
            background.announce_failure(str(error))
        raise


def _build(waits: bool) -> tuple[Path, bool]:
    target = find_target()
    if target.is_whole():
        return target.shared_library, False
    if waits:
        with background.locked(target.lock):
            compile_library(target)
        return target.shared_library, True
    if target.failure.exists():
        reason = target.failure.read_text()
        background.announce_failure(f"{reason}. prep doctor tries again.")
        raise BuildError(reason)
    background.announce(background.start(target))
    raise StillCompiling(f"they are being compiled; {background.VARIABLE}=wait waits for them")


def find_target() -> Target:
    """Return the library that this process needs. Raises BuildError without a compiler, or a place to keep it."""
    if os.environ.get("PREP_KERNELS_COMPILER") == "":
        raise SwitchedOff("switched off: PREP_KERNELS_COMPILER is empty")
    compiler = find_compiler()
    folder = cache_folder() / build_key(compiler)
    return Target(str(SOURCES), compiler, _openmp_runtime(), str(folder))


def cache_folder() -> Path:
    """$PREP_CACHE/kernels, by default ~/.cache/prep/kernels."""
    try:
        return built_dir() / "kernels"
    except RuntimeError as error:  # a user without a home
        raise no_place(error) from error


def find_compiler() -> str:
    """Return $PREP_KERNELS_COMPILER, else $CXX, else g++ or clang++, without a launcher such as ccache before it.

    Raises BuildError if it does not exist.
    """
    for variable in ("PREP_KERNELS_COMPILER", "CXX"):
        if asked := os.environ.get(variable, "").strip():
            for program in (asked, asked.split()[-1]):
                if path := shutil.which(program):
                    return path
            raise NoSuchCompiler(f"the compiler {asked!r} does not exist; correct or unset {variable}")
    for name in ("g++", "clang++"):
        if path := shutil.which(name):
            return path
    way = "apt install g++, dnf install gcc-c++ or xcode-select --install"
    raise BuildError(f"no C++ compiler (g++ or clang++); install one: {way}")


def build_key(compiler: str) -> str:
    """Return a digest of everything that the library depends on, as 16 hex digits."""
    digest = hashlib.sha256()
    real = Path(compiler).resolve()
    stat = real.stat()
    runtime = _openmp_runtime()
    # Not the runtime's folder: clones share one library.
    openmp = runtime and (Path(runtime).name, sha256(Path(runtime)))
    options = [flags(source) for source in sources(SOURCES)]
    for part in (options, str(real), stat.st_size, stat.st_mtime_ns, _processor(), openmp):
        digest.update(repr(part).encode())
    for source in sorted([*sources(SOURCES), *SOURCES.glob("*.h"), *SOURCES.glob("arm/*.h")]):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def _processor() -> str:
    """Return the processor's features, which -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    keys = ("vendor_id", "cpu family", "model\t", "flags", "CPU part", "Features")
    return "\n".join(sorted({line for line in lines if line.startswith(keys)}))


def _openmp_runtime() -> str | None:
    """The OpenMP library that torch brought into this process."""
    names = ("libgomp", "libiomp5", "libomp")
    try:
        maps = Path("/proc/self/maps").read_text().splitlines()
        paths = {line.split(maxsplit=5)[5] for line in maps if line.count("/")}
    except OSError:
        paths = {str(path) for path in (Path(torch.__file__).parent / "lib").iterdir()}
    loaded = sorted(path for path in paths if Path(path).name.startswith(names))
    return loaded[0] if loaded else None
