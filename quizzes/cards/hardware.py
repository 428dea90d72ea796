"""Figures of a hardware card, computed from engine/sim/hardware.py and the cost model; none is typed here."""

from dataclasses import dataclass

from engine.config import ConfigError
from engine.sim.hardware import Hardware, get_hardware
from quizzes.experiments.performance.roofline import floor_of, load_of_rows

MODEL = "llama-3.1-8b"
"""The model of the decode floor."""
CONTEXT = 1000


@dataclass(frozen=True)
class Rate:
    """Arithmetic in one type."""

    dtype: str
    teraflops: float
    ridge: float
    """FLOP per byte above which arithmetic is the limit. For 16-bit weights also the tokens per step."""


@dataclass(frozen=True)
class Figures:
    """Upper limits of a device."""

    name: str
    memory_gib: float
    gb_per_s: float
    rates: tuple[Rate, ...]
    link: str
    link_gb_per_s: float
    read_all_ms: float
    """Time to read its whole memory once."""
    floor_ms: float | None
    """Least time of a decode step of MODEL in 16 bits for one request; None if the weights do not fit."""
    source: str


def figures(device: str) -> Figures:
    """Return the figures of a named device. Raises ConfigError for an unknown name."""
    hardware = get_hardware(device)
    return Figures(
        device,
        hardware.memory_bytes / 2**30,
        hardware.bytes_per_s / 1e9,
        tuple(
            Rate(dtype, flops / 1e12, hardware.ridge(dtype))
            for dtype, flops in hardware.flops.items()
            if not (dtype == "float16" and flops == hardware.flops.get("bfloat16"))
        ),
        hardware.link.name,
        hardware.link.bytes_per_s / 1e9,
        1e3 * hardware.memory_bytes / hardware.bytes_per_s,
        _floor_ms(hardware, device),
        hardware.source,
    )


def _floor_ms(hardware: Hardware, device: str) -> float | None:
    try:
        floor = floor_of(MODEL, device, "bfloat16")
    except ConfigError:
        return None
    load = load_of_rows(1, 1, CONTEXT)
    weight_bytes, _ = floor.cost.bytes_and_flops(load)
    if weight_bytes + floor.kv_bytes(load) > hardware.memory_bytes:
        return None
    return 1e3 * floor.cost.seconds(load)
