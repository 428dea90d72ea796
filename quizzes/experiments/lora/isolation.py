"""E43: the same prompt under several adapters: whose KV may be reused by whom, and how often weights are brought."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment


@dataclass(frozen=True)
class Isolation:
    """Requests with one prompt, one after the other."""

    cached_tokens: Annotated[list[int], "tokens"]
    """Prefix-cache hit of each."""
    computed_tokens: Annotated[int, "tokens"]
    """Prompt tokens that went through the model, all together."""
    kv_copies: Annotated[int, "copies"]
    """Of the prompt's blocks in the cache in the end: one for each adapter that asked, the base included."""
    loads: Annotated[int, "loads"]
    """Adapters brought to the device."""
    requests: Annotated[int, "requests"]


@experiment("E43", "E10")
def isolation(
    ctx: Context,
    *,
    adapters: Annotated[list[str], Field(min_length=1, max_length=60)] = ("-", "a", "b", "a", "-"),
    prompt: Annotated[int, Field(ge=1, le=4000)] = 100,
    block_size: Annotated[int, Field(ge=1, le=256)] = 16,
    max_loras: Annotated[int, Field(ge=1, le=64)] = 8,
) -> Isolation:
    """Send the same `prompt` tokens once per entry of `adapters` ("-": the base), waiting for each answer."""
    engine = ctx.core(block_size=block_size, scheduler={"max_loras": max_loras}, traced=True)
    text = list(range(prompt))
    for index, name in enumerate(adapters):
        engine.add(Ask(f"r{index}", text, 1, lora=None if name == "-" else name))
        while engine.scheduler.has_unfinished():
            engine.step()
    engine.close()
    hits = [engine.outcomes[f"r{index}"].cached_tokens for index in range(len(adapters))]
    full = prompt // block_size
    cached_blocks = len(engine.scheduler.kv.pool.cached)
    return Isolation(
        cached_tokens=hits,
        computed_tokens=len(adapters) * prompt - sum(hits),
        kv_copies=cached_blocks // full if full else 0,
        loads=sum(step.stats.num_lora_loads for step in engine.steps),
        requests=len(adapters),
    )
