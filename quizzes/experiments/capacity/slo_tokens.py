"""E54: what a latency limit leaves for tokens, and what tokens make of a latency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from engine.sim.sizing import latency_of, slo_budget
from quizzes.experiments import Context, experiment

Milliseconds = Annotated[float, Field(ge=0, le=3_600_000)]


@dataclass(frozen=True)
class Budget:
    """latency of n tokens = hops + TTFT + (n - 1) x TPOT."""

    hops_ms: Annotated[float, "ms"]
    tokens: Annotated[int, "tokens"]
    """Output tokens that fit into the limit; 0: not even the first."""
    latency_ms: Annotated[float, "ms"]
    """Until the last of `answer` tokens has come."""
    meets: bool
    """latency_ms is within the limit."""
    tpot_needed_ms: Annotated[float, "ms"]
    """The TPOT at which `answer` tokens would just fit; negative: none would."""


@experiment("E54")
def slo_tokens(
    ctx: Context,
    *,
    ttft_ms: Milliseconds = 180.0,
    tpot_ms: Annotated[float, Field(gt=0, le=100_000)] = 15.0,
    limit_ms: Milliseconds = 2000.0,
    hops_ms: Annotated[list[Milliseconds], Field(max_length=32)] = (),
    answer: Annotated[int, Field(ge=1, le=1_000_000)] = 300,
) -> Budget:
    """Tokens within an end-to-end limit, with hops outside of the engine in front."""
    hops = sum(hops_ms)
    seconds = {"ttft": ttft_ms / 1000, "tpot": tpot_ms / 1000, "hops": hops / 1000}
    budget = slo_budget(limit=limit_ms / 1000, **seconds)
    latency = 1000 * latency_of(answer, **seconds)
    left = limit_ms - hops - ttft_ms
    return Budget(hops, budget.tokens, latency, latency <= limit_ms + 1e-6, left / max(1, answer - 1))
