"""Device memory of a live engine."""

import json
from typing import Literal

from quizzes.experiments import Context, Result, arg, experiment, generate, greedy, worker_of


@experiment("E02")
def lora_slots(
    ctx: Context,
    max_loras: int = arg(2, 1, 8),
    max_lora_rank: Literal[16, 32, 64] = 16,
    adapter: Literal["ja", "support", "recommend"] = "ja",
) -> Result:
    """Measure the device memory of LoRA slots, before and after an adapter is loaded.

    Returns: Measured on a live engine with the model `shop`.
        slot_bytes [B]: All slots together, before any adapter is loaded.
        bytes_per_slot [B]
        after_loading [B]: All slots together, with one adapter of the zoo (rank 8 or 16) in one of them.
        adapter_rank [rank]
    """
    from engine.zoo.registry import resolve

    with ctx.llm(
        enable_lora=True, max_loras=max_loras, max_lora_rank=max_lora_rank, num_gpu_blocks_override=64
    ) as llm:
        manager = worker_of(llm).lora
        before = manager.num_slot_bytes
        folder = resolve(f"shop-lora-{adapter}")
        generate(llm, [[5, 6, 7]], greedy(2), lora_request=llm.load_lora_adapter(adapter, str(folder)))
        return Result(
            slot_bytes=before,
            bytes_per_slot=before // max_loras,
            after_loading=manager.num_slot_bytes,
            adapter_rank=json.loads((folder / "adapter_config.json").read_text())["r"],
        )
