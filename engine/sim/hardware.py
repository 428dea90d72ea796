"""Named accelerators and their datasheet figures.

Rates are dense (no structured sparsity): marketing figures with an asterisk are twice as high. Memory is what
`nvidia-smi` reports as the card's total, the amount an engine can use; an "80 GB" card has 79.6 GiB.

The ridge point is the arithmetic intensity (FLOP per byte of memory traffic) above which the arithmetic units are
the limit, not memory: peak FLOP/s / bandwidth (Williams, Waterman and Patterson 2009, "Roofline").
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from engine.config import ConfigError
from prep_common.names import unknown_name
from prep_common.processors import num_processors
from prep_common.text import GIB

T = TypeVar("T")
TERA = 1e12
GIGA = 1e9
RING_START = 6.6e-6
NVLINK_STEP, PCIE_STEP, NETWORK_STEP = 0.6e-6, 1.0e-6, 2.7e-6
"""Seconds of a collective in NCCL's own model (ring, LL protocol): RING_START, and one of the others for each step of
the ring. Source: NCCL src/graph/tuning.cc, baseLatencies and hwLatencies."""


@dataclass(frozen=True)
class Link:
    """A connection between two devices, in one direction."""

    name: str
    bytes_per_s: float
    latency_s: float  # seconds of the smallest message, or of an all-reduce of two ranks
    source: str
    step_s: float = NVLINK_STEP  # seconds that each further step of a ring takes

    def seconds(self, num_bytes: float) -> float:
        return self.latency_s + num_bytes / self.bytes_per_s

    def ring_latency(self, num_steps: int) -> float:
        """Return the seconds of the smallest collective: 2 (p - 1) steps for an all-reduce of p ranks, p - 1 for a
        gather."""
        return self.latency_s + (num_steps - 2) * self.step_s


def _link(name: str, gb_per_s: float, step: float, source: str) -> Link:
    return Link(name, gb_per_s * GIGA, RING_START + 2 * step, source, step)


LINKS = {
    link.name: link
    for link in (
        _link("pcie3", 16, PCIE_STEP, "PCIe 3.0 x16: 8 GT/s x 16 lanes, one direction"),
        _link("pcie4", 32, PCIE_STEP, "PCIe 4.0 x16: 16 GT/s x 16 lanes, one direction"),
        _link("pcie5", 64, PCIE_STEP, "PCIe 5.0 x16: 32 GT/s x 16 lanes, one direction"),
        _link("nvlink3", 300, NVLINK_STEP, "A100 datasheet: 600 GB/s, both directions together"),
        _link("nvlink4", 450, NVLINK_STEP, "H100 datasheet: 900 GB/s, both directions together"),
        _link("nvlink5", 900, NVLINK_STEP, "B200 datasheet: 1.8 TB/s, both directions together"),
        _link("ib-hdr", 25, NETWORK_STEP, "InfiniBand HDR: 200 Gb/s per port"),
        _link("ib-ndr", 50, NETWORK_STEP, "InfiniBand NDR: 400 Gb/s per port"),
        _link("ethernet-100g", 12.5, 11.7e-6, "100 Gb/s Ethernet, RDMA off"),
        _link("memory", 10, 6.7e-6, "between two processes of one machine, through shared memory"),
    )
}
"""Bandwidths are those of the standards. Steps of Ethernet without RDMA and of shared memory are rough: 30 and 20 us
for an all-reduce of two."""


@dataclass(frozen=True)
class Hardware:
    """One device."""

    name: str
    memory_bytes: float
    bytes_per_s: float  # bandwidth of the device memory, bytes per second
    flops: Mapping[str, float]  # dense FLOP/s by compute type; absent: the device has no such units
    link: Link  # link to the other devices of the same machine
    host_link: Link  # link to the host's memory
    source: str
    is_cpu: bool = False
    names: tuple[str, ...] = field(default=(), repr=False)  # alternative names

    def ridge(self, dtype: str) -> float:
        """FLOP per byte above which `dtype` arithmetic, not memory, is the limit."""
        return self.peak(dtype) / self.bytes_per_s

    def peak(self, dtype: str) -> float:
        """Return dense FLOP/s. Raises ConfigError if the device cannot compute in that type."""
        if dtype not in self.flops:
            raise ConfigError(
                f"{self.name} has no {dtype} arithmetic; it computes in {', '.join(self.flops)}. "
                "Choose one of these as --dtype"
            )
        return self.flops[dtype]


def _gpu(
    name: str,
    mib: int,
    gb_per_s: float,
    teraflops: dict[str, float],
    link: str,
    host_link: str,
    source: str,
    *names: str,
) -> Hardware:
    flops = {dtype: rate * TERA for dtype, rate in teraflops.items()}
    flops.setdefault("float16", flops["bfloat16"])
    links = LINKS[link], LINKS[host_link]
    return Hardware(name, mib * 2**20, gb_per_s * GIGA, MappingProxyType(flops), *links, source, names=names)


_A10G = {"float32": 35.0, "bfloat16": 70.0, "int8": 140.0}
_L4 = {"float32": 30.3, "bfloat16": 121.0, "fp8": 242.5, "int8": 242.5}
_A100 = {"float32": 19.5, "bfloat16": 312.0, "int8": 624.0}
_H100 = {"float32": 67.0, "bfloat16": 989.4, "fp8": 1978.9, "int8": 1978.9}
_B200 = {"float32": 80.0, "bfloat16": 2250.0, "fp8": 4500.0, "int8": 4500.0}
_GPUS = [
    _gpu("a10g", 23_028, 600, _A10G, "pcie4", "pcie4", "NVIDIA A10G datasheet (AWS), 2022"),
    _gpu("l4", 23_034, 300, _L4, "pcie4", "pcie4", "NVIDIA L4 datasheet: 242 / 485 TFLOPS with sparsity, halved"),
    _gpu("a100-40", 40_960, 1555, _A100, "nvlink3", "pcie4", "NVIDIA A100 datasheet, SXM4 40 GB", "a100-40gb"),
    _gpu("a100-80", 81_920, 2039, _A100, "nvlink3", "pcie4", "NVIDIA A100 datasheet, SXM4 80 GB", "a100", "a100-80gb"),
    _gpu("h100", 81_559, 3350, _H100, "nvlink4", "pcie5", "NVIDIA H100 datasheet, SXM5", "h100-sxm", "h100-80"),
    _gpu("h200", 143_771, 4800, _H100, "nvlink4", "pcie5", "NVIDIA H200 datasheet, SXM", "h200-sxm"),
    _gpu("b200", 183_359, 8000, _B200, "nvlink5", "pcie5",
         "NVIDIA DGX B200 datasheet, divided by 8 GPUs, without sparsity"),
]  # fmt: skip


def this_cpu() -> Hardware:
    """Estimate this machine: 16 fp32 multiply-adds per cycle at 2.5 GHz and 20 GB/s for each core.

    `prep sim calibrate` measures the live engine and replaces the estimate.
    """
    cores = num_processors()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 * GIB
    flops = MappingProxyType({"float32": cores * 32 * 2.5 * GIGA})
    source = "estimated from the number of cores; prep sim calibrate measures"
    links = LINKS["memory"], LINKS["memory"]
    return Hardware("cpu", float(memory), 20 * GIGA * min(cores, 8), flops, *links, source, is_cpu=True)


GPUS = {gpu.name: gpu for gpu in _GPUS}


def hardware_names() -> list[str]:
    return [*GPUS, "cpu"]


def get_hardware(name: str) -> Hardware:
    """Return a named device. Raises ConfigError with the closest name if it is unknown."""
    if name.lower() == "cpu":
        return this_cpu()
    known = {other: gpu for gpu in _GPUS for other in (gpu.name, *gpu.names)}
    return look_up("hardware", name, known, shown=hardware_names())


def get_link(name: str) -> Link:
    return look_up("link", name, LINKS)


def look_up(kind: str, name: str, things: Mapping[str, T], *, shown: Sequence[str] | None = None) -> T:
    """Return `things[name]`, ignoring case. Raises ConfigError with the closest name and the list."""
    thing = things.get(name.lower())
    if thing is not None:
        return thing
    names = list(shown if shown is not None else things)
    known = f"known: {', '.join(names)}"
    raise ConfigError(unknown_name(f"unknown {kind}", name, names, known, cutoff=0.5))
