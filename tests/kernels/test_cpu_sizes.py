"""Every size at which a C++ kernel changes its way has a test that goes beyond it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.cpu import build

if problem := build.load_library().problem:
    pytest.skip(problem, allow_module_level=True)

from tests.kernels.cpu_constants import DEFINITION

NO_SIZE = {
    "LANES", "VECTOR_REGISTERS",  # of the processor
    "PREFETCH_BYTES", "WORDS_AHEAD", "BYTES_AHEAD",  # memory that is asked for and not read
    "X_OFFSET", "RANDOM_COST", "SPINS", "YIELDS", "MAX_THREADS",
    "PIECES_PER_THREAD",  # tests with several threads
    "MAX_TILE_ROWS", "PANEL", "CHUNK", "STEP", "TILE_SUMS", "FEW", "MAX_QUERIES",  # small: tests take every size around
}  # fmt: skip


def test_every_constant_is_in_a_test() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_cpu_*.py"))
    missing = [
        f"{source.name}: {name}"
        for source in sorted([*build.SOURCES.glob("*.cpp"), *build.SOURCES.glob("*.h")])
        for name, _ in DEFINITION.findall(source.read_text())
        if name not in NO_SIZE and f'"{source.name}", "{name}"' not in tests
    ]
    assert not missing, "take sizes on both sides with cpu_constants, or say in NO_SIZE why not"
