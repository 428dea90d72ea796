"""Single changes of a scenario that misses something, each with the effect that the formulas give it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from app.debugger.capacity.figure import Capacity, money, ms
from app.debugger.capacity.figures import work_out
from app.debugger.capacity.scenario import Scenario
from engine.config import ConfigError
from engine.sim.hardware import GPUS
from engine.sim.memory import divide_memory
from engine.sim.models import get_model
from engine.sim.precision import get_precision, kv_bytes
from engine.sim.sizing import ASSUMED_PRICES
from prep_common.text import counted, gib

NOTICEABLE = 0.01
"""A change of a figure below this share is not an improvement."""


@dataclass(frozen=True)
class Remedy:
    """One change."""

    title: str
    scenario: Scenario
    """The scenario with the change."""
    effect: str
    """The effect on what was missed, and on the cost."""
    solves: bool
    """Whether nothing is missed any more."""


def missed(capacity: Capacity) -> dict[str, float]:
    """Return what a scenario misses, with a number to lower: missing bytes, utilisation, milliseconds."""
    if capacity.problem:
        return {"memory": short_by(capacity)}
    state, scenario = capacity.state, capacity.scenario
    assert state is not None
    if not state.is_stable:
        return {"rate": capacity.value("utilisation")}
    values = {"TTFT": (1000 * state.ttft, scenario.ttft_ms), "TPOT": (1000 * state.step, scenario.tpot_ms)}
    return {name: value for name, (value, limit) in values.items() if value > limit}


def short_by(capacity: Capacity) -> float:
    """Return the bytes that one GPU lacks for the model and one sequence; negative if it has more than that."""
    deployment = capacity.scenario.deployment
    plan = divide_memory(deployment)
    return (deployment.max_model_len + 2 * deployment.block_size) * plan.kv_bytes_per_token - plan.kv_budget


def remedies(capacity: Capacity) -> list[Remedy]:
    """Return the changes that help: first those that solve everything, the cheapest first."""
    before = missed(capacity)
    if not before:
        return []
    ranked: list[tuple[tuple[Any, ...], Remedy]] = []
    for kind in _kinds(capacity.scenario):
        best: tuple[tuple[Any, ...], Remedy] | None = None
        for title, change in kind:
            try:
                after = work_out(replace(capacity.scenario, **change))
            except ConfigError:
                continue
            left = missed(after)
            if not _helps(before, left):
                continue
            cost = after.value("per_mtok") if not after.problem else 0.0
            rank = (len(left) > 0, after.problem != "", sum(left.values()) if left else cost)
            if best is None or rank < best[0]:
                best = rank, Remedy(title, after.scenario, _effect(capacity, after), not left)
            if not left:
                break
        if best:
            ranked.append(best)
    return [remedy for _, remedy in sorted(ranked, key=lambda entry: entry[0])]


def _kinds(scenario: Scenario) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Yield the changes of each kind, the smallest first."""
    model, deployment = get_model(scenario.model), scenario.deployment
    longest = scenario.prompt + scenario.output
    lengths = [
        size
        for size in (65_536, 32_768, 16_384, 8192, 4096, 2048)
        if longest <= size < scenario.max_model_len
    ]
    yield [
        (f"max_model_len {scenario.max_model_len:,} → {size:,}", {"max_model_len": size}) for size in lengths
    ]
    if kv_bytes(scenario.kv_cache_dtype, deployment.precision) > 1:
        yield [("fp8 KV cache", {"kv_cache_dtype": "fp8"})]
    width = get_precision(scenario.dtype).weight_bytes
    narrower = [name for name in ("fp8", "int4") if get_precision(name).weight_bytes < width]
    yield [(f"Weights in {name}", {"dtype": name}) for name in narrower]
    if scenario.gpu != "cpu":
        sizes = [size for size in (2, 4, 8, 16) if size > scenario.tp and model.num_heads % size == 0]
        yield [(f"Tensor parallel {scenario.tp} → {size}", {"tp": size}) for size in sizes]
        yield [
            (f"GPU {scenario.gpu} → {name}", {"gpu": name, "price": _price(scenario, name)})
            for name in sorted(GPUS, key=lambda name: ASSUMED_PRICES[name])
            if name != scenario.gpu
        ]
    if scenario.replicas:
        more = [scenario.replicas + extra for extra in (1, 2, 3)]
        needed = work_out(replace(scenario, replicas=0))
        if not needed.problem and needed.value("replicas") > more[-1]:
            more.append(round(needed.value("replicas")))
        yield [
            (
                "One more replica" if count == more[0] else f"{count - scenario.replicas:,} more replicas",
                {"replicas": count},
            )
            for count in more
        ]


def _price(scenario: Scenario, gpu: str) -> float:
    """Return the assumed price of another GPU; a price that the user entered stays."""
    return ASSUMED_PRICES[gpu] if scenario.price in ASSUMED_PRICES.values() else scenario.price


def _helps(before: dict[str, float], after: dict[str, float]) -> bool:
    """Whether a change removes a problem or makes one noticeably smaller, and adds none of an earlier stage."""
    stages = ["memory", "rate", "TTFT", "TPOT"]
    worst = min(stages.index(name) for name in before)
    if any(stages.index(name) < worst for name in after):
        return False
    if set(after) < set(before) or "memory" in before and "memory" not in after:
        return True
    if "rate" in before and "rate" not in after:
        return True
    return set(after) == set(before) and all(after[name] < (1 - NOTICEABLE) * before[name] for name in before)


def _effect(before: Capacity, after: Capacity) -> str:
    """Return the change of each figure that was missed, and of blocks, GPUs and cost, as one line."""
    scenario = after.scenario
    said = []
    blocks = [divide_memory(capacity.scenario.deployment).num_blocks for capacity in (before, after)]
    if after.problem:
        return f"short by {gib(short_by(after))} per GPU instead of {gib(short_by(before))}"
    if before.problem:
        said.append(f"fits: {counted(blocks[1], 'block')}, {after.figures['resident'].shown()}")
    elif abs(blocks[1] - blocks[0]) > NOTICEABLE * blocks[0]:
        said.append(f"{blocks[1] / blocks[0]:.2g}x the blocks")
    states = before.state, after.state
    assert states[1] is not None
    left = missed(after)
    if "rate" in left:
        said.append(f"utilisation {after.figures['utilisation'].shown()}, still too few replicas")
    for name, limit, key in (("TTFT", scenario.ttft_ms, "ttft"), ("TPOT", scenario.tpot_ms, "tpot")):
        now = after.value(key)
        if states[0] is None or not states[0].is_stable:
            said.append(f"{name} {ms(now)}")
        elif name in missed(before) or name in left:
            mark = "misses" if name in left else "meets"
            said.append(f"{name} {ms(before.value(key))} → {ms(now)}, {mark} {limit:g} ms")
    if not before.problem and before.value("gpus") != after.value("gpus"):
        said.append(f"{before.value('gpus'):,.0f} → {after.figures['gpus'].shown()}")
    elif before.problem:
        said.append(after.figures["gpus"].shown())
    cost = money(after.value("per_mtok"), scenario.currency)
    was = "" if before.problem else f"{money(before.value('per_mtok'), scenario.currency)} → "
    return "; ".join([*said, f"{was}{cost} per million output tokens"])
