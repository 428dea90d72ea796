"""E43: what a real engine sets aside for adapters, and what the shipped ones weigh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Measured:
    """Of an engine with the shop model."""

    slot_bytes: Annotated[int, "B"]
    """Device memory of all slots, before any adapter is loaded."""
    per_slot: Annotated[int, "B"]
    host_bytes: Annotated[dict[str, int], "B"]
    """By shipped adapter, in host memory (fp32)."""
    ranks: Annotated[dict[str, int], "rank"]
    slot_bytes_with_one_loaded: Annotated[int, "B"]
    """The same memory when an adapter of a lower rank lies in a slot."""


@experiment("E43", seconds=30, megabytes=2500)
def slot_bytes(
    ctx: Context,
    *,
    max_loras: Annotated[int, Field(ge=1, le=16)] = 4,
    max_lora_rank: Literal[8, 16, 32, 64, 128] = 16,
) -> Measured:
    """Start the engine with adapters switched on and ask its manager; max_lora_rank fixes the size of every slot."""
    from pathlib import Path

    from engine import SamplingParams
    from engine.lora.adapter import load_adapter
    from engine.zoo.registry import MODELS

    settings = {"enable_lora": True, "max_loras": max_loras, "max_lora_rank": max_lora_rank}
    with ctx.llm(max_num_seqs=8, **settings) as llm:
        worker = llm.llm_engine.engine_core.executor.worker
        manager = worker.lora
        before = manager.num_slot_bytes
        host, ranks = {}, {}
        for folder in sorted(Path(MODELS).glob("shop-lora-*")):
            adapter = load_adapter(folder, manager.targets, 512, "shop")
            host[folder.name], ranks[folder.name] = adapter.num_bytes, adapter.rank
        small = llm.load_lora_adapter("support", "shop-lora-support")
        llm.generate(["Hello"], SamplingParams(max_tokens=1), lora_request=small, use_tqdm=False)
        after = manager.num_slot_bytes
    return Measured(before, before // max_loras, host, ranks, after)
