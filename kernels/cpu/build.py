"""The C++ kernels as one shared library: compiled on first use, kept in the user's cache, loaded with ctypes.

    *.cpp --g++ -c--> *.o --link with the OpenMP runtime torch has loaded--> <cache>/kernels/<key>/kernels.so

The key covers the sources, the flags, the compiler and the processor, so that an edit, an upgrade or another
machine on the same home directory builds anew. There must be one OpenMP runtime in a process: two
fight over the cores, and both slow down tenfold. So torch is imported first, and its runtime is the one linked.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from common.paths import built_dir

SOURCES = Path(__file__).parent
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-Wall")
UNROLLED = frozenset({"gemm.cpp", "gemm_bf16.cpp", "int4.cpp", "int8.cpp"})
"""Sources whose inner loops are unrolled by templates and pragmas. They compile with -O2, at which GCC takes a tenth of
the time and makes code of the same speed."""
COMPILE_TIMEOUT_S = 180


class BuildError(RuntimeError):
    """The library cannot be built or loaded; the message is one line: what, and what to do."""


@dataclass(frozen=True, slots=True)
class Library:
    """The loaded library, or why there is none."""

    handle: ctypes.CDLL | None
    problem: str | None
    path: Path | None = None
    build_seconds: float = 0.0
    """0 if it was found in the cache."""


@cache
def load_library() -> Library:
    """The library of this process, built if it must be. Never raises: without it others take over."""
    start = time.perf_counter()
    try:
        path, built = build()
        handle = ctypes.CDLL(str(path))
    except BuildError as error:
        return Library(None, str(error))
    except OSError as error:
        return Library(None, f"the compiled kernels do not load: {error}")
    return Library(handle, None, path, time.perf_counter() - start if built else 0.0)


def function(name: str, signature: str, returns: str | None = None) -> Any:
    """A C function. One letter for each argument, and for the result: p pointer, l int64, f float."""
    types: dict[str, Any] = {"p": ctypes.c_void_p, "l": ctypes.c_int64, "f": ctypes.c_float}
    handle = load_library().handle
    if handle is None:
        raise BuildError(f"the C++ kernels are not available: {load_library().problem}")
    bound = handle[name]
    bound.argtypes = [types[letter] for letter in signature]
    bound.restype = None if returns is None else types[returns]
    return bound


def build() -> tuple[Path, bool]:
    """(path of the library for the current sources, whether it had to be built)."""
    if os.environ.get("PREP_KERNELS_COMPILER") == "":
        raise BuildError("switched off: PREP_KERNELS_COMPILER is empty")
    compiler = find_compiler()
    folder = cache_folder() / build_key(compiler)
    path = folder / "kernels.so"
    if _is_whole(folder):
        return path, False
    shutil.rmtree(folder, ignore_errors=True)
    scratch = scratch_folder(folder.parent)
    try:
        _compile(compiler, scratch)
        (scratch / "sha256").write_text(_sha256(scratch / "kernels.so"))
        try:
            scratch.rename(folder)
        except OSError:  # another process was faster
            if not _is_whole(folder):
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return path, True


def _is_whole(folder: Path) -> bool:
    """Whether the library in `folder` is as it was built: loading one that is cut short ends the process."""
    try:
        return (folder / "sha256").read_text() == _sha256(folder / "kernels.so")
    except (OSError, UnicodeDecodeError):
        return False


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def cache_folder() -> Path:
    """$PREP_CACHE/kernels, by default ~/.cache/prep/kernels."""
    try:
        return built_dir() / "kernels"
    except RuntimeError as error:  # a user without a home
        raise _no_place(error) from error


def scratch_folder(parent: Path) -> Path:
    """Make a folder to build in; what it holds is moved to `parent` when it is whole."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=".building-", dir=parent))
    except OSError as error:
        raise _no_place(error) from error


def _no_place(error: Exception) -> BuildError:
    return BuildError(f"no place for the compiled kernels: {error}; set PREP_CACHE to a writable folder")


def find_compiler() -> str:
    """$PREP_KERNELS_COMPILER, $CXX, g++ or clang++, the first that exists."""
    asked = os.environ.get("PREP_KERNELS_COMPILER") or os.environ.get("CXX")
    for name in (asked,) if asked else ("g++", "clang++"):
        if found := shutil.which(name):
            return found
    what = f"the compiler {asked!r} does not exist" if asked else "no C++ compiler (g++ or clang++)"
    raise BuildError(f"{what}; install one: apt install g++, dnf install gcc-c++ or xcode-select --install")


def build_key(compiler: str) -> str:
    """Return a digest of everything that the library depends on, as 16 hex digits."""
    digest = hashlib.sha256()
    real = Path(compiler).resolve()
    stat = real.stat()
    runtime = _openmp_runtime()
    # Not the runtime's folder: clones share one library.
    openmp = runtime and (Path(runtime).name, _sha256(Path(runtime)))
    for part in (FLAGS, sorted(UNROLLED), str(real), stat.st_size, stat.st_mtime_ns, _processor(), openmp):
        digest.update(repr(part).encode())
    for source in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]):
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
    found = sorted(path for path in paths if Path(path).name.startswith(names))
    return found[0] if found else None


def _openmp_flags(compiler: str, runtime: str | None) -> tuple[str, ...]:
    """Compiler options for the OpenMP library of this process; nothing, and one thread, where it cannot be."""
    if runtime is None:
        return ()
    if sys.platform == "darwin":
        return ("-Xpreprocessor", "-fopenmp")
    if "clang" in Path(compiler).name and "libgomp" in runtime:
        return ()  # clang calls another library than GCC's, and there must be one only
    return ("-fopenmp",)


def _compile(compiler: str, folder: Path) -> None:
    sources = sorted(SOURCES.glob("*.cpp"))
    print(f"prep: compiling {len(sources)} CPU kernels with {compiler} (once)", file=sys.stderr, flush=True)
    runtime = _openmp_runtime()
    openmp = _openmp_flags(compiler, runtime)
    objects = [folder / f"{source.stem}.o" for source in sources]
    commands = [
        [compiler, *_flags(source), *openmp, "-c", str(source), "-o", str(target)]
        for source, target in zip(sources, objects, strict=True)
    ]
    _run_all(commands)
    libraries = [runtime] if runtime else []  # named, not by -fopenmp, which would bring a second runtime
    _run_all([[compiler, "-shared", *map(str, objects), *libraries, "-o", str(folder / "kernels.so")]])
    for target in objects:
        target.unlink()


def _flags(source: Path) -> list[str]:
    return ["-O2" if flag == "-O3" and source.name in UNROLLED else flag for flag in FLAGS]


def _run_all(commands: list[list[str]]) -> None:
    """Side by side, as many as there are cores; the first failure is the error, and nothing is left running."""
    waiting = list(commands)
    running: list[subprocess.Popen[str]] = []
    try:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                running.append(_start(waiting.pop(0)))
            process = running[0]
            output, _ = process.communicate(timeout=COMPILE_TIMEOUT_S)
            running.pop(0)
            if process.returncode:
                raise BuildError(_first_error(process.args, output))
    except subprocess.TimeoutExpired:
        raise BuildError(f"the compiler takes longer than {COMPILE_TIMEOUT_S} s") from None
    except OSError as error:
        raise BuildError(f"the compiler does not start: {error}") from error
    finally:
        for process in running:
            _kill(process)


def _start(command: list[str]) -> subprocess.Popen[str]:
    """In a session of its own: a compiler starts others, and they end together."""
    streams: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
    }
    return subprocess.Popen(command, **streams, text=True, errors="replace", start_new_session=True)


def _kill(process: subprocess.Popen[str]) -> None:
    if sys.platform == "win32":
        process.kill()
    else:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _first_error(command: Any, output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no output")
    return f"{Path(command[0]).name} failed: {telling}"
