"""Compile the C++ kernels into one shared library, with as many compilers at a time as there are processors.

As a program, `python -m kernels.cpu.compile TARGET` is the child that `background.py` starts. It does not import torch.
"""

from __future__ import annotations

import hashlib
import json
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
from pathlib import Path
from typing import IO, Any

from prep_common.processors import num_processors

ARM = ("aarch64", "arm64")
"""Names of 64-bit ARM on Linux and on macOS."""
PORTABLE_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-Wall")
IS_ARM = platform.machine() in ARM
FLAGS = PORTABLE_FLAGS if IS_ARM else (*PORTABLE_FLAGS, "-march=native")
ARM_FORMS = {"bf16": "+bf16", "dotprod": "+dotprod", "i8mm": "+dotprod+i8mm", "forms": ""}
"""Extensions that a file in `arm/` may use, by the end of its name; `arm/forms.cpp` tells when."""
UNROLLED = frozenset({"attention.cpp", "gemm.cpp", "gemm_bf16.cpp", "int4.cpp", "int8.cpp"})
"""Sources whose inner loops are unrolled by templates and pragmas. They compile with -O2, at which GCC takes a tenth of
the time and makes code of the same speed."""
COMPILE_TIMEOUT_S = 180


class BuildError(RuntimeError):
    """The library cannot be built or loaded; the message is one line: what, and what to do."""


class NoPlace(BuildError):
    """The cache cannot be written."""


class CompilerError(BuildError):
    """The compiler refuses the sources, and would again: it did not lack memory, disk space or time."""


@dataclass(frozen=True, slots=True)
class Target:
    """One library: its inputs, and its place. All are text, so that they can be arguments of a process."""

    sources: str
    """Folder."""
    compiler: str
    runtime: str | None
    """The OpenMP library to link."""
    folder: str
    """<cache>/kernels/<key>."""

    @property
    def shared_library(self) -> Path:
        return Path(self.folder, "kernels.so")

    @property
    def cache(self) -> Path:
        return Path(self.folder).parent

    @property
    def failure(self) -> Path:
        """File with the reason why these inputs do not compile. Only a process that waits tries them again."""
        return Path(f"{self.folder}.failed")

    @property
    def lock(self) -> Path:
        """File that the process that compiles holds locked. It stays; other sources have another one."""
        return Path(f"{self.folder}.lock")

    def is_whole(self) -> bool:
        """Return whether the library is as it was built: loading one that is cut short ends the process."""
        try:
            return Path(self.folder, "sha256").read_text() == sha256(self.shared_library)
        except (OSError, UnicodeDecodeError):
            return False


def compile_library(target: Target) -> None:
    """Compile `target` unless it is whole. The caller holds the lock.

    Raises BuildError. If a compiler has found an error, which it would find again, the file `failure` has the reason.
    """
    if target.is_whole():
        return
    shutil.rmtree(target.folder, ignore_errors=True)
    scratch = scratch_folder(target.cache)
    try:
        _compile(target, scratch)
        (scratch / "sha256").write_text(sha256(scratch / "kernels.so"))
        try:
            scratch.rename(target.folder)
        except OSError:  # on a file system without locks, another process was faster
            if not target.is_whole():
                raise
        target.failure.unlink(missing_ok=True)
    except CompilerError as error:
        with suppress(OSError):
            target.failure.write_text(str(error))
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def scratch_folder(parent: Path) -> Path:
    """Make a folder to build in; what it holds is moved to `parent` when it is whole.

    Folders of processes that were killed an hour ago or earlier go.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for left in parent.glob(".building-*"):
            if time.time() - left.stat().st_mtime > 3600:
                shutil.rmtree(left, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix=".building-", dir=parent))
    except OSError as error:
        raise no_place(error) from error


def no_place(why: Exception | str, what_to_do: str = "set PREP_CACHE to a writable folder") -> NoPlace:
    return NoPlace(f"no place for the compiled kernels: {why}; {what_to_do}")


def _openmp_flags(compiler: str, runtime: str | None) -> tuple[str, ...]:
    """Compiler options for the OpenMP library of this process; nothing, and one thread, where it cannot be."""
    if runtime is None:
        return ()
    if sys.platform == "darwin":
        return ("-Xpreprocessor", "-fopenmp")
    if "clang" in Path(compiler).name and "libgomp" in runtime:
        return ()  # clang calls another library than GCC's, and there must be one only
    return ("-fopenmp",)


def _compile(target: Target, folder: Path) -> None:
    compiler, runtime = target.compiler, target.runtime
    files = sources(Path(target.sources))
    print(f"prep: compiling {len(files)} CPU kernels with {compiler} (once)", file=sys.stderr, flush=True)
    openmp = _openmp_flags(compiler, runtime)
    objects = [folder / f"{source.stem}.o" for source in files]
    commands = [
        [compiler, *flags(source), *openmp, "-c", str(source), "-o", str(made)]
        for source, made in zip(files, objects, strict=True)
    ]
    _run_all(commands)
    libraries = [runtime] if runtime else []  # named, not by -fopenmp, which would bring a second runtime
    _run_all([[compiler, "-shared", *map(str, objects), *libraries, "-o", str(folder / "kernels.so")]])
    for made in objects:
        made.unlink()


def sources(folder: Path, is_arm: bool = IS_ARM) -> list[Path]:
    """Return the files to compile."""
    return sorted([*folder.glob("*.cpp"), *(folder.glob("arm/*.cpp") if is_arm else ())])


def flags(source: Path, common: tuple[str, ...] | None = None) -> list[str]:
    """Return the compiler options of one source; common: those of all, by default FLAGS."""
    is_form = source.parent.name == "arm"
    is_unrolled = is_form or source.name in UNROLLED
    own = ["-O2" if flag == "-O3" and is_unrolled else flag for flag in common or FLAGS]
    if is_form and (extensions := ARM_FORMS[source.stem.rpartition("_")[2]]):
        own.append(f"-march=armv8.2-a{extensions}")
    return own


def _run_all(commands: list[list[str]]) -> None:
    """Run the commands, one per processor at a time. The first failure is the error, and nothing is left running."""
    waiting = list(commands)
    running: list[_Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < num_processors():
                running.append(_start(waiting.pop(0)))
            ended = [job for job in running if job.process.poll() is not None]
            for job in ended:
                running.remove(job)
                job.check()
            if not ended:
                if time.monotonic() - running[0].started > COMPILE_TIMEOUT_S:
                    raise BuildError(f"the compiler takes longer than {COMPILE_TIMEOUT_S} s")
                time.sleep(0.01)
    except OSError as error:
        raise BuildError(f"the compiler does not start: {error}") from error
    finally:
        for job in running:
            _kill(job.process)


_FULL = ("No space left on device", "Disk quota exceeded", "File too large")
"""Words of a compiler on a full disk."""
_FOR_NOW = ("Killed", "out of memory")
"""Words of a compiler that may succeed the next time."""


@dataclass(frozen=True, slots=True)
class _Running:
    """A compiler. Its output goes to a file: a pipe that is not read could stop it."""

    process: subprocess.Popen[bytes]
    output: IO[bytes]
    started: float

    def check(self) -> None:
        """Raise BuildError if it failed."""
        if self.process.returncode:
            self.output.seek(0)
            said = self.output.read().decode(errors="replace")
            if full := next((words for words in _FULL if words in said), None):
                raise no_place(full, "free disk space, or set PREP_CACHE to a folder on another disk")
            lacks_memory = self.process.returncode < 0 or any(words in said for words in _FOR_NOW)
            kind = BuildError if lacks_memory else CompilerError
            raise kind(_first_error(self.process.args, said))


def _start(command: list[str]) -> _Running:
    """In a session of its own: a compiler starts others, and they end together."""
    output = tempfile.TemporaryFile()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
    )
    return _Running(process, output, time.monotonic())


def _kill(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        process.kill()
    else:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _first_error(command: Any, output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no output")
    return f"{Path(command[0]).name} failed: {telling}"


def _main(target: Target) -> int:
    """Compile for a parent that passed on its lock: nicely, and without leaving anything half done when ended."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    os.nice(10)
    try:
        compile_library(target)
    except (BuildError, OSError):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(Target(**json.loads(sys.argv[1]))))
