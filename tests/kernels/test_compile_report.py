"""Occupancy and the log of ptxas: plain arithmetic and plain text, no compiler needed."""

from __future__ import annotations

import pytest

from kernels.compile_report import PtxasUsage, occupancy, parse_ptxas

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_80'
ptxas info    : Function properties for first
    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 16 bytes cumulative stack size, 4096 bytes smem, 388 bytes cmem[0]
ptxas info    : Compile time = 7.062 ms
ptxas info    : Compiling entry function 'second' for 'sm_80'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers
"""


def test_the_log_of_ptxas_is_read_function_by_function() -> None:
    assert parse_ptxas(LOG) == {
        "first": PtxasUsage(255, 4096, 12, 20),
        "second": PtxasUsage(24, 0, 0, 0),
    }


def test_a_log_without_figures_is_an_error_not_a_zero() -> None:
    with pytest.raises(ValueError, match="has no registers or spills for cut"):
        parse_ptxas("ptxas info : Compiling entry function 'cut' for 'sm_80'\n")


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks", "limited_by"),
    [
        (80, 1024, 32, 0, 2, "warps"),
        (80, 32, 16, 0, 32, "blocks"),
        (80, 256, 64, 0, 4, "registers"),
        (80, 256, 65, 0, 3, "registers"),  # 65 * 32 registers take 9 portions of 256, not 8
        (80, 96, 168, 0, 4, "registers"),  # 3 warps fit into each quarter: 12 warps are 4 blocks
        (80, 128, 32, 81 * 1024, 2, "shared memory"),  # 2 * (81 + 1) KB is all there is
        (80, 128, 32, 82 * 1024, 1, "shared memory"),
        (90, 128, 32, 113 * 1024, 2, "shared memory"),
        (90, 128, 32, 228 * 1024, 0, "shared memory"),
    ],
)
def test_blocks_per_sm(
    arch: int, threads: int, registers: int, shared: int, blocks: int, limited_by: str
) -> None:
    found = occupancy(arch, threads, registers, shared)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)
    assert found.warps == blocks * threads // 32
    assert found.ratio == found.warps / 64
