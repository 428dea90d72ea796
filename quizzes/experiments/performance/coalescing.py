"""One load instruction of a warp: which 32-byte sectors its 32 addresses fall into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment

LANES = 32
SECTOR, LINE = 32, 128
"""Bytes that memory hands out at least, and of a cache line (NVIDIA, CUDA C++ programming guide, since Volta)."""


@dataclass(frozen=True)
class Access:
    sectors: Annotated[int, "sectors"]
    lines: Annotated[int, "lines"]
    moved_bytes: Annotated[int, "B"]
    useful_bytes: Annotated[int, "B"]
    efficiency: Annotated[float, "share"]


@experiment("E27")
def coalescing(
    ctx: Context,
    *,
    stride: Annotated[int, Field(ge=0, le=65536)] = 1,
    bytes_per_lane: Annotated[int, Field(ge=1, le=16)] = 4,
    offset: Annotated[int, Field(ge=0, le=4096)] = 0,
) -> Access:
    """Sectors touched when lane i loads `bytes_per_lane` bytes at offset + i * stride numbers of that size.

    A sector counts once, however many lanes want it.
    """
    sectors, lines, wanted = set(), set(), set()
    for lane in range(LANES):
        start = offset + lane * stride * bytes_per_lane
        for byte in range(start, start + bytes_per_lane):
            wanted.add(byte)
            sectors.add(byte // SECTOR)
            lines.add(byte // LINE)
    return Access(
        sectors=len(sectors),
        lines=len(lines),
        moved_bytes=SECTOR * len(sectors),
        useful_bytes=len(wanted),
        efficiency=len(wanted) / (SECTOR * len(sectors)),
    )
