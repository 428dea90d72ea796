"""C++ kernels with one fault each, and the settings of the CPU tests: would the tests notice?"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from kernels.check.run import check
from kernels.cpu import build, compile

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
SIZES = ("tiny", "small")


def faulty(source: str, right: str, wrong: str, folder: Path, main: str = "") -> ctypes.CDLL:
    """One .cpp of the kernels, or a header and the .cpp `main`, with `right` replaced by `wrong`, not optimised.

    main: by default the .cpp of the header's name.
    """
    text = (build.SOURCES / source).read_text()
    assert text.count(right) == 1, (
        f"{right!r} is {text.count(right)} times in {source}: the fault does not fit"
    )
    main = main or Path(source).with_suffix(".cpp").name
    for each in (build.SOURCES / main, *build.SOURCES.glob("*.h")):  # headers include the ones beside them
        (folder / each.name).write_text(each.read_text())
    (folder / source).write_text(text.replace(right, wrong))
    return compiled(folder / main, folder, "-O0")


def compiled(main: Path, folder: Path, *more_flags: str) -> ctypes.CDLL:
    """One .cpp of the kernels as a library of its own in `folder`; by default hardly optimised (-O1)."""
    library, target = folder / "compiled.so", folder / f"{main.stem}.o"
    _compile(main, target, *more_flags)
    runtime = build._openmp_runtime()
    link = [build.find_compiler(), "-shared", str(target), f"{_threads().name}/threads.o", "-o", str(library)]
    subprocess.run([*link, *([runtime] if runtime else [])], check=True)
    return ctypes.CDLL(str(library))


@cache
def _threads() -> TemporaryDirectory[str]:
    """A folder with what all kernels link, compiled once."""
    folder: TemporaryDirectory[str] = TemporaryDirectory()
    _compile(build.SOURCES / "threads.cpp", Path(folder.name, "threads.o"))
    return folder


def _compile(source: Path, target: Path, *more_flags: str) -> None:
    flags = ["-O1" if flag.startswith("-O") else flag for flag in compile.FLAGS] + [*more_flags]
    command = [build.find_compiler(), *flags, "-fopenmp", f"-I{build.SOURCES}", "-c", str(source)]
    subprocess.run([*command, "-o", str(target)], check=True)


def assert_noticed(
    op: str,
    module: Any,
    entry: str,
    source: str,
    fault: tuple[str, str],
    folder: Path,
    main: str = "",
    **settings: Any,
) -> None:
    """`kernels.check` must find the fault in `op`, whose Python side calls `module.entry`, and none without it."""
    changed = faulty(source, *fault, folder, main)
    with _in_place_of(module, entry, changed):
        report = check(op, "cpu", **settings)
    assert report.failures, f"{fault[0]!r} -> {fault[1]!r} goes unnoticed"
    main = main or Path(source).with_suffix(".cpp").name
    if (op, entry, main) not in _sound:
        with _in_place_of(module, entry, _unchanged(main)):
            report = check(op, "cpu", **settings)
        assert not report.failures, f"{main} fails unoptimised without a fault, so no fault proves anything"
        _sound.add((op, entry, main))


_sound: set[tuple[str, str, str]] = set()
"""Operations, functions and files that pass without a fault, in this process."""


@cache
def _unchanged(main: str) -> ctypes.CDLL:
    with TemporaryDirectory() as folder:
        return compiled(build.SOURCES / main, Path(folder), "-O0")


@contextmanager
def _in_place_of(module: Any, entry: str, library: ctypes.CDLL) -> Iterator[None]:
    original = getattr(module, entry)
    kernel = library[entry.removeprefix("_")]
    kernel.argtypes, kernel.restype = original.argtypes, original.restype
    setattr(module, entry, kernel)
    try:
        yield
    finally:
        setattr(module, entry, original)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """The kernels ask torch's OpenMP runtime for the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def same_with_any_number_of_threads(compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    results = []
    for count in (1, 2, 3):
        with threads(count):
            results.append(compute())
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    return results[0]
