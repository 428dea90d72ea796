"""The memory of one GPU as a bar: weights, activations, runtime, KV cache in use and free, reserve."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from app.debugger.capacity.figure import Capacity
from engine.sim.memory import divide_memory
from prep_common.text import gib


class Part(NamedTuple):
    """One stretch of the bar."""

    name: str
    num_bytes: float
    kind: str
    """weights, activations, runtime, used, free, reserve; missing: memory that the GPU does not have."""
    about: str


def parts(capacity: Capacity) -> list[Part]:
    """Return the parts of one GPU's memory. They add up to its size if the model fits; else to the engine's need, of
    which the last part is missing."""
    deployment = capacity.scenario.deployment
    plan = divide_memory(deployment)
    utilization = deployment.gpu_memory_utilization
    reserve = Part(
        "Reserve", plan.total - plan.usable, "reserve",
        f"1 - gpu_memory_utilization of {utilization:g}: left to other processes and to peaks",
    )  # fmt: skip
    fixed = [
        Part("Weights", plan.weights, "weights", f"{deployment.dtype}, tensor parallel {deployment.tp}"),
        Part("Activations", plan.activations, "activations", "of the largest step, an estimate"),
        Part("Runtime, graphs", plan.runtime, "runtime", "CUDA context, communication, CUDA graphs"),
    ]
    if capacity.problem:
        least = (deployment.max_model_len + 2 * deployment.block_size) * plan.kv_bytes_per_token
        wanted = sum(part.num_bytes for part in fixed) + least
        about = f"for one sequence of {deployment.max_model_len:,} tokens, the least that the engine accepts"
        missing = Part(
            "Missing", wanted - plan.usable, "missing", "needed, beyond the memory that the engine may use"
        )
        return [*fixed, Part("KV cache", least, "used", about), missing]
    used = capacity.value("kv_use") * plan.kv_budget
    return [
        *fixed,
        Part("KV in use", used, "used", "blocks of running requests at the plan's load, on average"),
        Part(
            "KV free",
            plan.kv_budget - used,
            "free",
            "blocks for bursts, and for the cached content of the past",
        ),
        reserve,
    ]


def bar(capacity: Capacity) -> str:
    """Return the bar as HTML, to the scale of the GPU's memory, or of the engine's need if that is more."""
    deployment = capacity.scenario.deployment
    total, usable = deployment.hardware.memory_bytes, divide_memory(deployment).usable
    shown = [part for part in parts(capacity) if part.num_bytes]
    missing = next((part.num_bytes for part in shown if part.kind == "missing"), 0.0)
    scale = max(total, usable + missing)
    stretches = "".join(
        _stretch(part, 100 * part.num_bytes / scale) for part in shown if part.kind != "missing"
    )
    entries = "".join(
        f"<li title='{escape(part.about)}'><i class='{part.kind}'></i>{part.name} <b>{gib(part.num_bytes)}</b></li>"
        for part in shown
    )
    card = f"{deployment.hardware.name}, {gib(total)}" + (
        f", each of {deployment.tp}" if deployment.tp > 1 else ""
    )
    short = over = ""
    if missing:
        short = f"<span class='short'>does not fit: short by {gib(missing)} per GPU</span>"
        left, width = 100 * usable / scale, 100 * missing / scale
        over = (
            f"<em style='left:{left:.3f}%;width:{width:.3f}%' title='Beyond the memory of the engine'></em>"
        )
    words = "; ".join(f"{part.name} {gib(part.num_bytes)}" for part in shown)
    return (
        f"<div class='memory'><div class='head'><b>Memory of a GPU</b> {card}{short}</div>"
        f"<div class='bar' role='img' aria-label='{escape(f'Memory of {card}: {words}')}'>{stretches}{over}"
        f"<u style='left:{100 * total / scale:.3f}%' title='The end of the GPU&#39;s memory'></u></div>"
        f"<ul>{entries}</ul></div>"
    )


def _stretch(part: Part, percent: float) -> str:
    label = (
        f"{part.name} {gib(part.num_bytes)}" if percent > 16 else gib(part.num_bytes) if percent > 8 else ""
    )
    about = escape(f"{part.name}: {gib(part.num_bytes, 2)}. {part.about}")
    return f"<span class='{part.kind}' style='width:{percent:.3f}%' title='{about}'>{label}</span>"
