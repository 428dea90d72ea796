"""This engine as one side of a comparison, in a separate process like the other side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from app.bench.sides.side_protocol import LLMEngine, serve


class PrepEngine(LLMEngine):
    """`engine.LLM`, with two methods that only our side has."""

    package = "engine"

    def describe(self) -> dict[str, Any]:
        return {"engine": "prep", "device": str(self._worker().device), **super().describe()}

    def _worker(self) -> Any:
        from engine.exec.uniproc import worker_of

        return worker_of(self._llm.llm_engine.engine_core)

    def profile(self, prompts: list[Any], max_tokens: list[int]) -> dict[str, Any]:
        """Run a round like `generate` with a clock on every part of a step; return seconds by part."""
        from app.bench.step_profile import profile_steps

        with profile_steps(self._llm.llm_engine.engine_core) as profile:
            self.generate(prompts, max_tokens)
        return {"steps": profile.steps, "seconds": profile.seconds}

    def memory(self, prompts: list[Any], max_tokens: list[int]) -> dict[str, int]:
        """Return the bytes that every run needs: the checkpoint's tensors in the running dtype, and the KV cache."""
        from engine.models.loader import checkpoint_tensors, create_model

        config = self._llm.llm_engine.engine_core.config
        tensors = checkpoint_tensors(create_model(config.model, "meta")).values()
        kv_bytes = self._worker().runner.kv_cache.blocks.nbytes
        return {"weights_bytes": sum(tensor.nbytes for tensor in tensors), "kv_bytes": kv_bytes}


if __name__ == "__main__":
    serve(PrepEngine)
