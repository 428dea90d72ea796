"""E20: an important request arrives while unimportant ones run. Who gives way, and for what?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment


@dataclass(frozen=True)
class Arrival:
    """What became of the important request and of the others."""

    urgent_admitted: Annotated[int, "step"]
    urgent_wait: Annotated[int, "steps"]
    queue_position: Annotated[int, "place"]
    """Of the important request among those admitted after it came: 1 is next."""
    preemptions_before: int
    """Between its arrival and its admission."""
    preemptions_total: int
    victims: list[str]
    """In order; low0 is the oldest of the unimportant."""
    urgent_preempted: bool
    reason: str
    """Why it waited at first; empty if it did not."""


@experiment("E20", "E17")
def priority_arrival(
    ctx: Context,
    *,
    policy: Literal["fcfs", "priority"] = "priority",
    slots: Annotated[int, Field(ge=1, le=32)] = 4,
    blocks: Annotated[int, Field(ge=4, le=400)] = 200,
    low: Annotated[int, Field(ge=1, le=64)] = 6,
    low_prompt: Annotated[int, Field(ge=1, le=200)] = 16,
    low_output: Annotated[int, Field(ge=1, le=200)] = 30,
    urgent_prompt: Annotated[int, Field(ge=1, le=200)] = 16,
    urgent_output: Annotated[int, Field(ge=1, le=200)] = 40,
    arrival: Annotated[int, Field(ge=1, le=100)] = 5,
) -> Arrival:
    """`low` requests of priority 5 at step 0, one of priority 0 at step `arrival`. Block size 16.

    The lower value goes first, as in vLLM. A request that waits takes nothing from those that run: it goes to the head
    of the queue. One that runs and needs a block may take it from the least important that runs.
    """
    engine = ctx.core(policy=policy, max_num_seqs=slots, num_blocks=blocks, traced=True)
    asks = [Ask(f"low{i}", low_prompt, low_output, priority=5) for i in range(low)]
    engine.run([*asks, Ask("urgent", urgent_prompt, urgent_output, arrival=arrival, priority=0)])
    urgent = engine.outcomes["urgent"]
    came, admitted = urgent.arrival, urgent.admitted
    assert admitted is not None
    later = [
        outcome.admitted
        for outcome in engine.outcomes.values()
        if outcome.admitted is not None and outcome.admitted >= came
    ]
    reason = engine.steps[came].why_not("urgent")
    return Arrival(
        admitted,
        admitted - came,
        1 + sum(step < admitted for step in later),
        sum(len(step.preempted) for step in engine.steps[came : admitted + 1]),
        engine.num_preemptions,
        [name for step in engine.steps for name in step.preempted],
        bool(urgent.preemptions),
        str(reason.reason) if reason else "",
    )
