"""E03: a claimed number of requests on a card, and what is left for each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from engine.sim.memory import divide_memory
from quizzes.experiments import Context, experiment
from quizzes.experiments.capacity._deploy import Count, Dtype, Gpu, KvDtype, Parallel, Utilisation, deploy


@dataclass(frozen=True)
class Concurrency:
    """What the KV cache of all devices together holds."""

    kv_tokens: Annotated[int, "tokens"]
    tokens_each: Annotated[int, "tokens"]
    """If the claimed number of requests share the cache evenly, in whole blocks."""
    at_lengths: Annotated[list[int], "requests"]
    """Requests at once, by length."""


@experiment("E03")
def concurrency(
    ctx: Context,
    *,
    claimed: Annotated[int, Field(ge=1, le=100_000)] = 200,
    model: str = "llama-2-7b",
    gpu: Gpu = "a100-40",
    tp: Parallel = 1,
    dtype: Dtype = "bfloat16",
    kv_dtype: KvDtype = "auto",
    utilisation: Utilisation = 0.92,
    lengths: Annotated[list[Count], Field(min_length=1, max_length=16)] = (512, 1024, 2048),
) -> Concurrency:
    """How many tokens each of `claimed` requests may have, and how many requests of given lengths fit."""
    deployment = deploy(
        model, gpu, tp=tp, dtype=dtype, kv_dtype=kv_dtype, utilisation=utilisation, max_num_seqs=claimed
    )
    block = deployment.block_size
    blocks = divide_memory(deployment).num_tokens // block
    return Concurrency(
        kv_tokens=blocks * block,
        tokens_each=blocks // claimed * block,
        at_lengths=[blocks // -(-length // block) for length in lengths],
    )
