"""Decode replay: record a model's kernel calls once per number of tokens, then replay them without Python.

A decode step of a small model is mostly overhead: about sixty calls of a few microseconds each, which differ from step
to step only in their inputs. A replay copies these to fixed addresses, runs the recorded calls, and reads the logits at
their fixed address.

    tokens of the step       1   2   3   4   5   ...  8   9 .. 16   17 .. 24
    size of the graph        1   2   4   4   5   ...  8  16    16   24    24   ...

    padding rows have no tokens (query_start_loc stays), padding tokens no slot (-1): nothing is written for them

Kernels read the row boundaries when they run, so a graph of 8 tokens serves 8 decoding requests, or two that check
three drafts each, or one that checks seven. It has as many rows as tokens; unused rows are padding.

The first step of each size is computed and recorded. Operations that are not our kernels are not recorded, so the
first replay is compared with an ordinary run, bit for bit; if the logits differ, decode replay is switched off. Graphs
with another number of calls are compared too: a kernel may not support every size.

Source: vLLM's full CUDA graphs for uniform decode (v1/worker/gpu/cudagraph_utils.py) and its list of sizes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.attention.backend import AttentionMetadata
from engine.config.graph_sizes import graph_size
from engine.worker.model_input import ModelInput
from kernels.ops import Arena, ArenaFull, CPUGraph

logger = logging.getLogger(__name__)

MAX_TOKENS = 512
ARENA_BYTES = 32 << 20
"""Bytes for results of all layers of the largest batch; only used pages take memory."""


@dataclass(slots=True)
class _Inputs:
    """The part of a ModelInput that a forward pass reads, at fixed addresses."""

    input_ids: Tensor
    positions: Tensor
    metadata: AttentionMetadata
    token_adapter: Tensor | None
    copied_adapter: Tensor | None = None
    """Tensor of the batch that `token_adapter` was copied from; it changes only with the batch's requests."""


Outputs = tuple[Tensor, ...]
Forward = Callable[[Any], Outputs]
"""An ordinary forward pass over a ModelInput or `_Inputs`; returns tensors of T rows."""


@dataclass(slots=True)
class _Recorded:
    """Graph of one size; reads the tensors of `inputs` and writes `outputs`."""

    inputs: _Inputs
    graph: CPUGraph
    outputs: Outputs


class DecodeGraphs:
    """Graphs for one model on one cache, by number of tokens. They share one arena, since steps run in sequence."""

    def __init__(self, forward: Forward, max_blocks_per_row: int) -> None:
        self._forward = forward
        self._max_blocks_per_row = max_blocks_per_row
        self._arena = Arena(ARENA_BYTES)
        self._recorded: dict[tuple[int, bool], _Recorded] = {}
        """Graphs by size and by whether the batch has adapters, whose kernels are left out otherwise."""
        self._max_tokens = MAX_TOKENS
        self._verified: set[tuple[int, bool]] = set()
        """Numbers of calls of graphs that were compared, and whether with adapters."""

    def run(self, batch: ModelInput) -> Outputs | None:
        """Return the results of `forward`, valid until the next call; None if this batch cannot be replayed."""
        num_tokens = batch.input_ids.shape[0]
        size = graph_size(num_tokens)
        if size > self._max_tokens:
            return None
        has_adapters = batch.token_adapter is not None
        recorded = self._recorded.get((size, has_adapters))
        if recorded is None:
            outputs = self._record(batch, size)
        else:
            _copy_inputs(batch, recorded.inputs)
            recorded.graph.replay()
            is_verified = (recorded.graph.num_calls, has_adapters) in self._verified
            outputs = recorded.outputs if is_verified else self._verify(recorded)
        return None if outputs is None else tuple(output[:num_tokens] for output in outputs)

    def _record(self, batch: ModelInput, size: int) -> Outputs | None:
        inputs = _static_inputs(batch, size, self._max_blocks_per_row)
        _copy_inputs(batch, inputs)
        try:
            graph, outputs = CPUGraph.record(lambda: self._forward(inputs), self._arena)
        except ArenaFull:
            self._max_tokens = size - 1
            return None
        self._recorded[size, batch.token_adapter is not None] = _Recorded(inputs, graph, outputs)
        return outputs

    def _verify(self, recorded: _Recorded) -> Outputs:
        """Compare a replay with an ordinary run, which writes the same keys and values again."""
        expected = self._forward(recorded.inputs)
        pairs = zip(expected, recorded.outputs, strict=True)
        if all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs):
            self._verified.add((recorded.graph.num_calls, recorded.inputs.token_adapter is not None))
            return recorded.outputs
        logger.info("decode steps are not replayed: this model does more than our kernels record")
        self._max_tokens = 0
        self._recorded.clear()
        return expected


def _static_inputs(batch: ModelInput, size: int, max_blocks: int) -> _Inputs:
    """Return inputs of `size` padding rows, with room for all blocks of a row."""
    return _Inputs(
        input_ids=torch.zeros(size, dtype=torch.int64),
        positions=torch.zeros(size, dtype=torch.int64),
        metadata=AttentionMetadata(
            query_start_loc=torch.zeros(size + 1, dtype=torch.int32),
            seq_lens=torch.zeros(size, dtype=torch.int32),
            block_table=torch.zeros(size, max_blocks, dtype=torch.int32),
            slot_mapping=torch.full((size,), -1, dtype=torch.int64),
            num_decode_rows=size,
            max_query_len=1,
            max_seq_len=batch.metadata.max_seq_len,
            query_start_loc_cpu=batch.metadata.query_start_loc_cpu,
            seq_lens_cpu=batch.metadata.seq_lens_cpu,
        ),
        token_adapter=None if batch.token_adapter is None else torch.full((size,), -1, dtype=torch.int32),
    )


def _copy_inputs(batch: ModelInput, static: _Inputs) -> None:
    source, target = batch.metadata, static.metadata
    num_tokens, num_rows = batch.input_ids.shape[0], source.seq_lens.shape[0]
    static.input_ids[:num_tokens] = batch.input_ids
    static.positions[:num_tokens] = batch.positions
    adapters = batch.token_adapter
    if static.token_adapter is not None and adapters is not None and adapters is not static.copied_adapter:
        static.token_adapter[:num_tokens] = adapters
        static.token_adapter[num_tokens:] = -1
        static.copied_adapter = adapters
    target.query_start_loc[:num_rows] = source.query_start_loc[:num_rows]
    target.query_start_loc[num_rows:] = num_tokens
    target.slot_mapping[:num_tokens] = source.slot_mapping
    target.slot_mapping[num_tokens:] = -1
    target.seq_lens[:num_rows] = source.seq_lens
    target.seq_lens[num_rows:] = 0
    target.block_table[:num_rows, : source.block_table.shape[1]] = source.block_table
