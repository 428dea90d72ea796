"""E14: a prompt arrives while others decode: do they share a step, with and without chunked prefill?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment


@dataclass(frozen=True)
class Mixed:
    """The newcomer is added before step 2."""

    mixed_steps: Annotated[int, "steps"]
    """That held tokens of a prompt and of decodes."""
    chunks: Annotated[list[int], "tokens"]
    """Of the newcomer's prompt, step by step."""
    is_cut: bool
    """Its prompt took more than one step."""
    ttft: Annotated[int, "steps"]
    """Of the newcomer, from its arrival; 1 is at once."""
    decode_gap: Annotated[int, "steps"]
    """The longest between two tokens of a decode; 1: never disturbed."""
    largest_step: Annotated[int, "tokens"]
    """Tokens of the largest step after its arrival: what a decode has to wait for."""


@experiment("E14", "E15")
def mixed_step(
    ctx: Context,
    *,
    decodes: Annotated[int, Field(ge=1, le=256)] = 8,
    prompt: Annotated[int, Field(ge=1, le=16_000)] = 200,
    budget: Annotated[int, Field(ge=1, le=16_384)] = 512,
    chunked: bool = True,
) -> Mixed:
    """`decodes` requests that decode, then a prompt of `prompt` tokens.

    Without chunked prefill the budget must hold the longest prompt, so it is raised to that if it is smaller.
    """
    if not chunked:
        budget = max(budget, prompt + 2)
    engine = ctx.core(
        max_num_batched_tokens=budget,
        max_num_seqs=min(budget, 512),
        max_model_len=max(prompt, 100) + 2 if not chunked else 100_000,
        enable_chunked_prefill=chunked,
        enable_prefix_caching=False,
        traced=True,
    )
    length = 24 + -(-prompt // max(1, budget - decodes)) if budget > decodes else 24
    asks = [Ask(f"d{i}", 1, min(length, 97)) for i in range(decodes)]
    engine.run([*asks, Ask("new", prompt, 2, arrival=2)])
    new = engine.outcomes["new"]
    with_new = [step for step in engine.steps if "new" in step.rows and step.index <= new.token_steps[0]]
    gaps = [
        later - earlier
        for ask in asks
        for steps in [engine.outcomes[ask.request_id].token_steps]
        for earlier, later in zip(steps, steps[1:], strict=False)
    ]
    return Mixed(
        mixed_steps=sum(len(step.rows) > 1 for step in with_new),
        chunks=[step.rows["new"][1] for step in with_new],
        is_cut=len(with_new) > 1,
        ttft=new.token_steps[0] - new.arrival + 1,
        decode_gap=max(gaps, default=0),
        largest_step=max(step.num_tokens for step in engine.steps[2:]),
    )
