"""CUDA graphs of decode steps: the GPU's counterpart of `CPURecorder`.

A captured step is queued with one call instead of some hundred launches. The first run of a size compiles kernels,
which is not possible during a capture; the second is captured, which runs nothing; a replay then computes the step.

    run          capture         replay         replay ...
    compiles     records         fills the      next steps of this size
                                 results

Graphs share one memory pool, since steps run in sequence. Their results are copied to tensors that all sizes share:
otherwise every size would keep logits of its own, 250 MB for 512 tokens of a vocabulary of 128,000.

Source: vLLM v1/worker/gpu/cudagraph_utils.py; PyTorch, "CUDA Graphs". Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine.worker.decode_graphs import CannotRecord, Outputs, Recording


class CUDARecorder:
    """Captures steps of decode rows only: attention over longer queries starts other kernels."""

    decode_rows_only = True

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._pool: Any = None
        self._results: Outputs = ()

    def record(self, run: Callable[[], Outputs], size: int) -> Recording:
        """Run, capture and replay a step of `size` tokens. Raises CannotRecord if an operation waits for the GPU."""
        first = run()
        if not self._results:
            try:
                self._results = tuple(_with_room_for(self._max_tokens, result) for result in first)
            except torch.cuda.OutOfMemoryError as error:
                raise CannotRecord("no GPU memory is left for the results of graphs") from error
        results = tuple(result[:size] for result in self._results)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            # Other threads of the process may use the GPU meanwhile: they copy blocks to the host.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                for result, output in zip(results, run(), strict=True):
                    result.copy_(output)
        except RuntimeError as error:
            torch.cuda.set_stream(stream)  # torch stays on the stream of a capture that fails at its end
            raise CannotRecord(str(error).splitlines()[0]) from error
        self._pool = graph.pool()
        graph.replay()
        return Recording(graph.replay, size, results)


def _with_room_for(tokens: int, output: Tensor) -> Tensor:
    return torch.empty(tokens, *output.shape[1:], dtype=output.dtype, device=output.device)
