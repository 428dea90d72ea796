"""Resources of a compiled GPU kernel and the occupancy they allow; none of it needs a GPU.

A block is resident when the SM has room for its warps, its registers and its shared memory at once:

    blocks = min( block slots,
                  warp slots // warps of a block,
                  warps whose registers fit // warps of a block,
                  shared memory of the SM // (shared memory of a block + what the driver reserves) )

    occupancy = blocks * warps of a block / warp slots

A warp (32 threads) gets registers in units of 256, from the quarter of the SM that it runs on: registers left over in
one quarter cannot serve a warp of another.

Sources: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" (the limits), Ampere and
Hopper tuning guides (1 KB of shared memory reserved for every block), and cuda_occupancy.h of the CUDA toolkit
(granularities).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec

from kernels import INSTALL_COMPILERS
from kernels.cpu.build import load_library as load_library
from kernels.registry import Implementation

WARP_SIZE = 32
_REGISTER_GRANULARITY = 256
_SHARED_GRANULARITY = 128
_SHARED_RESERVED_PER_BLOCK = 1024
_QUARTERS = 4


@dataclass(frozen=True, slots=True)
class Architecture:
    """Capacity of one SM; defaults are the figures that sm_80 and sm_90 share."""

    name: str
    shared_bytes: int
    max_shared_bytes_per_block: int
    registers: int = 65_536
    max_registers_per_thread: int = 255
    max_warps: int = 64
    max_blocks: int = 32


ARCHITECTURES = {
    80: Architecture("A100", shared_bytes=164 * 1024, max_shared_bytes_per_block=163 * 1024),
    90: Architecture("H100, H200", shared_bytes=228 * 1024, max_shared_bytes_per_block=227 * 1024),
}


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One kernel compiled for one architecture."""

    name: str
    """The kernel function; behind it, in brackets, the case if a file compiles it more than once."""
    file: str
    """Source, relative to the folder `kernels`."""
    arch: int
    """80 for sm_80."""
    registers: int
    """Per thread."""
    shared_bytes: int
    """Per block, static and dynamic."""
    spill_store_bytes: int
    spill_load_bytes: int
    """Per thread, for values that did not fit into registers and go through local memory."""
    threads: int
    """Per block."""
    ptx: str

    @property
    def occupancy(self) -> Occupancy:
        return occupancy(self.arch, self.threads, self.registers, self.shared_bytes)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Number of blocks of a kernel that one SM holds at a time."""

    blocks: int
    warps: int
    ratio: float
    """Share of the warp slots of the SM, 0 to 1."""
    limited_by: str
    """The resource that runs out first: "blocks", "warps", "registers" or "shared memory"."""


def occupancy(arch: int, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Resident blocks for a block of `threads`, each with `registers`, sharing `shared_bytes`."""
    sm = ARCHITECTURES[arch]
    warps_per_block = -(-threads // WARP_SIZE)
    registers_per_warp = _round_up(max(registers, 1) * WARP_SIZE, _REGISTER_GRANULARITY)
    warps_with_registers = sm.registers // _QUARTERS // registers_per_warp * _QUARTERS
    shared_per_block = _round_up(shared_bytes + _SHARED_RESERVED_PER_BLOCK, _SHARED_GRANULARITY)
    limits = {
        "blocks": sm.max_blocks,
        "warps": sm.max_warps // warps_per_block,
        "registers": warps_with_registers // warps_per_block,
        "shared memory": sm.shared_bytes // shared_per_block,
    }
    limited_by = min(limits, key=limits.__getitem__)
    warps = limits[limited_by] * warps_per_block
    return Occupancy(limits[limited_by], warps, warps / sm.max_warps, limited_by)


@dataclass(frozen=True, slots=True)
class PtxasUsage:
    """Resources of one entry function in the log of `ptxas -v`."""

    registers: int
    static_shared_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


_FUNCTION = re.compile(r"Compiling entry function '([^']+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def parse_ptxas(log: str) -> dict[str, PtxasUsage]:
    """Parse the log of `ptxas -v` (or of NVRTC, which calls it) by entry function."""
    usage = {}
    _, *sections = _FUNCTION.split(log)
    for name, section in zip(sections[::2], sections[1::2], strict=True):
        registers, spills, shared = (pattern.search(section) for pattern in (_REGISTERS, _SPILLS, _SHARED))
        if registers is None or spills is None:
            raise ValueError(f"the log of ptxas has no registers or spills for {name}: {section}")
        shared_bytes = int(shared[1]) if shared else 0
        usage[name] = PtxasUsage(int(registers[1]), shared_bytes, int(spills[1]), int(spills[2]))
    return usage


def cannot_compile(backend: str) -> str | None:
    """Return why this process cannot compile Triton or CUDA kernels, with what to install; None if it can."""
    if backend == "triton":
        if find_spec("triton") is None:
            return f"triton is not installed; {INSTALL_COMPILERS}"
        if os.environ.get("TRITON_INTERPRET") == "1":
            return "TRITON_INTERPRET=1: here Triton interprets; compile in a process without it"
        return None
    return import_module("kernels.cuda.compile").problem()


def gpu_kernels(
    implementation: Implementation, arch: int
) -> Iterator[tuple[str, Callable[[], KernelReport]]]:
    """Yield (name with its case in brackets, function that compiles it) for every launch; compile nothing yet.

    A kernel is compiled for the types and constants it is launched with. So that these are the real ones, every file
    that launches kernels says which calls it stands for, on meta tensors (a shape and a dtype, no memory):

        def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
            gate_up = torch.empty(8192, 2 * 14336, dtype=torch.bfloat16, device="meta")
            return {"bf16": lambda: silu_and_mul(gate_up)}

    `arch` is 80 for sm_80: a case that needs a newer one (fp8 conversion, from sm_89 on) is left out.
    """
    if arch not in ARCHITECTURES:
        known = ", ".join(f"sm_{number}" for number in ARCHITECTURES)
        raise ValueError(f"no figures for sm_{arch}; architectures: {known}")
    module = import_module(implementation.entry.partition(":")[0])
    compiler = import_module(_COMPILERS[implementation.backend])
    for label, call in module.compile_cases(arch).items():
        for launch in compiler.launches(call):
            yield f"{launch.name}[{label}]", partial(compiler.compile_launch, launch, arch, label)


_COMPILERS = {"triton": "kernels.triton_ops.compile", "cuda": "kernels.cuda.launch"}


def _round_up(value: int, granularity: int) -> int:
    return -(-value // granularity) * granularity
