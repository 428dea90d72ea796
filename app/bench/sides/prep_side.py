"""This engine as one side of a comparison, in a separate process like the other side."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from app.bench.sides.side_protocol import LLMEngine, serve


class PrepEngine(LLMEngine):
    """`engine.LLM`, with methods that only our side has."""

    package = "engine"

    def __init__(self, model: str, engine: dict[str, Any]) -> None:
        try:
            super().__init__(model, engine)
        except ValueError as error:  # a setting that cannot work: one line tells it
            sys.exit(str(error))

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

    def read_share(self, prompts: list[Any], max_tokens: list[int]) -> float | None:
        """Run one request; return the bandwidth at which its decode steps read the matrices, as a share of torch's.

        torch sums up the same memory after every third step, as a host's bandwidth changes from moment to moment.
        The next step does not count: torch's threads wait for more work meanwhile, and take a core. None if the request
        has fewer than three steps.
        """
        from app.bench.workload import Lengths, add_requests, timed_steps

        core = self._llm.llm_engine.engine_core
        input_len, output_len = len(prompts[0]), max_tokens[0]
        add_requests(
            core, 1, Lengths(input_len, input_len), Lengths(output_len, output_len), label="read-share"
        )
        shares, read_seconds = [], 0.0
        for index, step in enumerate(timed_steps(core)):
            if index % 3 == 0:
                read_seconds = self._read_seconds()
            elif index % 3 == 2:
                shares.append(read_seconds / step.total)
        return median(shares) if shares else None

    def _read_seconds(self) -> float:
        """Return the time that torch takes to read all matrices."""
        import torch

        from engine.layers.linear import Linear

        layers = [layer for layer in self._worker().runner.model.modules() if isinstance(layer, Linear)]
        matrices = [getattr(layer.weight, "panels", layer.weight).view(torch.float32) for layer in layers]
        began = perf_counter()
        for matrix in matrices:
            matrix.sum()
        return perf_counter() - began


if __name__ == "__main__":
    serve(PrepEngine)
