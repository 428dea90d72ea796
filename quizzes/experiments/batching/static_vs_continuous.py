"""E13: the same requests served batch by batch, and with iteration-level scheduling (Orca, OSDI 2022, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment

PROMPT = 1
"""A prompt of one token: its first output comes in the step that reads it, so only the outputs count."""


@dataclass(frozen=True)
class Steps:
    """Engine steps until everybody has finished. Slot use: tokens generated per slot and step."""

    static_steps: Annotated[int, "steps"]
    continuous_steps: Annotated[int, "steps"]
    static_slot_use: Annotated[float, "share"]
    continuous_slot_use: Annotated[float, "share"]
    speedup: Annotated[float, "x"]
    static_finished: Annotated[list[int], "step"]
    """By request, in order of arrival: the step that gave its last token."""
    continuous_finished: Annotated[list[int], "step"]


@experiment("E13")
def static_vs_continuous(
    ctx: Context,
    *,
    slots: Annotated[int, Field(ge=1, le=64)] = 4,
    lens: Annotated[list[Annotated[int, Field(ge=1, le=2000)]], Field(min_length=1, max_length=200)] = (
        12,
        40,
        8,
        25,
        60,
        9,
        14,
        33,
    ),
) -> Steps:
    """Static against continuous batching on one list of output lengths.

    Both run on the engine's scheduler with `slots` as max_num_seqs. Static admits the next `slots` requests only when
    the batch before is empty; continuous admits whenever a slot is free.
    """
    continuous = ctx.core(max_num_seqs=slots, traced=True)
    continuous.run([Ask(f"r{i}", PROMPT, n) for i, n in enumerate(lens)])

    static = ctx.core(max_num_seqs=slots)
    for start in range(0, len(lens), slots):
        static.run([Ask(f"r{start + i}", PROMPT, n) for i, n in enumerate(lens[start : start + slots])])

    def finished(engine: object) -> list[int]:
        return [engine.outcomes[f"r{i}"].finished for i in range(len(lens))]  # type: ignore[attr-defined]

    total = sum(lens)
    return Steps(
        static_steps=static.num_steps,
        continuous_steps=continuous.num_steps,
        static_slot_use=total / (slots * static.num_steps),
        continuous_slot_use=total / (slots * continuous.num_steps),
        speedup=static.num_steps / continuous.num_steps,
        static_finished=finished(static),
        continuous_finished=finished(continuous),
    )
