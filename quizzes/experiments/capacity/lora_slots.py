"""E02: device memory that adapter slots take, whatever lies in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Slots:
    """Of a live engine with the model `shop`."""

    slot_bytes: Annotated[int, "B"]
    """All slots together, before any adapter is loaded."""
    bytes_per_slot: Annotated[int, "B"]
    after_loading: Annotated[int, "B"]
    """All slots together, with one adapter of the zoo (rank 8 or 16) in one of them."""
    adapter_rank: Annotated[int, "rank"]


@experiment("E02")
def lora_slots(
    ctx: Context,
    *,
    max_loras: Annotated[int, Field(ge=1, le=8)] = 2,
    max_lora_rank: Literal[16, 32, 64] = 16,
    adapter: Literal["ja", "support", "recommend"] = "ja",
) -> Slots:
    """How large the slots for LoRA adapters are, and whether what lies in them changes it."""
    import json

    from engine import SamplingParams
    from engine.zoo.registry import resolve

    with ctx.llm(
        enable_lora=True, max_loras=max_loras, max_lora_rank=max_lora_rank, num_gpu_blocks_override=64
    ) as llm:
        manager = llm.llm_engine.engine_core.executor.worker.lora
        before = manager.num_slot_bytes
        folder = resolve(f"shop-lora-{adapter}")
        request = llm.load_lora_adapter(adapter, str(folder))
        params = SamplingParams(temperature=0, max_tokens=2)
        llm.generate([{"prompt_token_ids": [5, 6, 7]}], params, lora_request=request, use_tqdm=False)
        rank = json.loads((folder / "adapter_config.json").read_text())["r"]
        return Slots(before, before // max_loras, manager.num_slot_bytes, rank)
