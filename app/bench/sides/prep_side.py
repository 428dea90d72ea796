"""This engine as one side of a comparison, in a separate process like the other side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from app.bench.sides.side_protocol import as_prompts, serve

if TYPE_CHECKING:
    from engine.engine_core import EngineCore


class PrepEngine:
    """`engine.LLM` with the methods that `serve` calls, and two that only our side has."""

    def __init__(self, model: str, engine: dict[str, Any]) -> None:
        from engine import LLM

        self._llm = LLM(model, **engine)
        self._core = cast("EngineCore", self._llm.llm_engine.engine_core)

    def describe(self) -> dict[str, Any]:
        import torch

        from engine.exec.uniproc import worker_of

        return {
            "engine": "prep",
            "torch": torch.__version__,
            "device": str(worker_of(self._core).device),
            "threads": torch.get_num_threads(),
        }

    def generate(self, prompts: list[Any], max_tokens: list[int]) -> list[int]:
        """Complete all prompts greedily, each to exactly its length; return the output lengths."""
        from engine import SamplingParams

        params = [
            SamplingParams(
                temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=isinstance(prompt, str)
            )
            for prompt, count in zip(prompts, max_tokens, strict=True)
        ]
        outputs = self._llm.generate(as_prompts(prompts), params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]

    def profile(self, prompts: list[Any], max_tokens: list[int]) -> dict[str, Any]:
        """Run a round like `generate` with a clock on every part of a step; return seconds by part."""
        from app.bench.step_profile import profile_steps

        with profile_steps(self._core) as profile:
            self.generate(prompts, max_tokens)
        return {"steps": profile.steps, "seconds": profile.seconds}

    def memory(self, prompts: list[Any], max_tokens: list[int]) -> dict[str, int]:
        """Return the bytes that every run needs: the checkpoint's tensors in the running dtype, and the KV cache."""
        from engine.exec.uniproc import worker_of
        from engine.models.loader import checkpoint_tensors
        from engine.models.registry import create_model

        core = self._core
        tensors = checkpoint_tensors(create_model(core.config.model, "meta")).values()
        return {
            "weights_bytes": sum(tensor.nbytes for tensor in tensors),
            "kv_bytes": worker_of(core).runner.kv_cache.blocks.nbytes,
        }


if __name__ == "__main__":
    serve(PrepEngine)
