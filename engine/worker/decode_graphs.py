"""Decode steps without Python: the model's kernel calls are recorded once per number of tokens, then replayed.

A decode step of a small model is mostly overhead: some sixty calls of a few microseconds each. They are the same in
every step but for their inputs, so the step is recorded with inputs at fixed addresses, and a replay is: copy the
new inputs there, run the recorded calls, read the logits where they were left.

    tokens of the step       1   2   3   4   5   ...  8   9 .. 16   17 .. 24
    size of the graph        1   2   4   4   5   ...  8  16    16   24    24   ...

    padding rows have no tokens (query_start_loc stays), padding tokens no slot (-1): nothing is written for them

Kernels read where rows begin when they run, so a graph of 8 tokens takes 8 requests that decode as well as two that
check three drafts each, or one that checks seven: it has as many rows as tokens, and those left over are padding.

The first step of each size is recorded, which also computes it. The very first replay has an ordinary run beside it:
the logits must be equal, bit for bit, because what is no kernel of ours is not recorded. If they are not, nothing is
replayed any more. A graph with another number of calls is checked the same way: a kernel may not take every size.

Source: vLLM's full CUDA graphs for uniform decode (v1/worker/gpu/cudagraph_utils.py) and its list of sizes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.attention.backend import AttentionMetadata
from kernels.ops import Arena, ArenaFull, CPUGraph

logger = logging.getLogger(__name__)

MAX_TOKENS = 512
ARENA_BYTES = 32 << 20
"""Results of all layers of the largest batch. Only what is used is ever in memory."""


class GraphInput(Protocol):
    """What a forward pass reads: T tokens of R rows."""

    input_ids: Tensor
    positions: Tensor
    metadata: AttentionMetadata
    hidden: Tensor | None
    """[T, hidden], for models that read another model's states (EAGLE)."""
    token_adapter: Tensor | None
    """int32 [T], for batches in which somebody has an adapter: they have graphs of their own."""


@dataclass(slots=True)
class _Inputs:
    """The same at fixed addresses."""

    input_ids: Tensor
    positions: Tensor
    metadata: AttentionMetadata
    hidden: Tensor | None
    token_adapter: Tensor | None
    copied_adapter: Tensor | None = None
    """The batch's tensor that `token_adapter` was copied from: the same one until somebody comes or goes."""


Outputs = tuple[Tensor, ...]
Forward = Callable[[Any], Outputs]
"""An ordinary forward pass over a `GraphInput`: what it makes of each token, tensors of T rows."""


@dataclass(slots=True)
class _Recorded:
    """One size. The graph reads `inputs`' tensors and leaves its results in `outputs`."""

    inputs: _Inputs
    graph: CPUGraph
    outputs: Outputs


class DecodeGraphs:
    """Graphs for one model on one cache, by number of tokens. Steps come one after the other: they share an arena."""

    def __init__(self, forward: Forward, max_blocks_per_row: int) -> None:
        self._forward = forward
        self._max_blocks_per_row = max_blocks_per_row
        self._arena = Arena(ARENA_BYTES)
        self._recorded: dict[tuple[int, bool], _Recorded] = {}
        """By size, and whether adapters are at work: without them their kernels are left out."""
        self._max_tokens = MAX_TOKENS
        self._verified_calls: set[int] = set()  # how many calls the graphs hold that were found right

    def run(self, batch: GraphInput) -> Outputs | None:
        """What `forward` would return, valid until the next call; None if this batch has to go the ordinary way."""
        num_tokens = batch.input_ids.shape[0]
        size = graph_size(num_tokens)
        if size > self._max_tokens:
            return None
        recorded = self._recorded.get((size, batch.token_adapter is not None))
        if recorded is None:
            outputs = self._record(batch, size)
        else:
            _copy_inputs(batch, recorded.inputs)
            recorded.graph.replay()
            is_verified = recorded.graph.num_calls in self._verified_calls
            outputs = recorded.outputs if is_verified else self._verify(recorded)
        return None if outputs is None else tuple(output[:num_tokens] for output in outputs)

    def _record(self, batch: GraphInput, size: int) -> Outputs | None:
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
        """The ordinary run writes the same keys and values to the same slots again."""
        expected = self._forward(recorded.inputs)
        if all(map(_same_bits, expected, recorded.outputs)):
            self._verified_calls.add(recorded.graph.num_calls)
            return recorded.outputs
        logger.info("decode steps are not replayed: this model does more than our kernels record")
        self._max_tokens = 0
        self._recorded.clear()
        return expected


def graph_size(num_tokens: int) -> int:
    """Tokens of the graph for a step of `num_tokens`: exact up to 8, then multiples of 8; four take less than three."""
    if num_tokens <= 8:
        return 4 if num_tokens == 3 else num_tokens
    return -(-num_tokens // 8) * 8


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def _static_inputs(batch: GraphInput, size: int, max_blocks: int) -> _Inputs:
    """Inputs of `size` padding rows, with room for every block that a row may ever have."""
    hidden = batch.hidden
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
        hidden=None if hidden is None else torch.zeros((size, hidden.shape[1]), dtype=hidden.dtype),
        token_adapter=None if batch.token_adapter is None else torch.full((size,), -1, dtype=torch.int32),
    )


def _copy_inputs(batch: GraphInput, static: _Inputs) -> None:
    source, target = batch.metadata, static.metadata
    num_tokens, num_rows = batch.input_ids.shape[0], source.seq_lens.shape[0]
    static.input_ids[:num_tokens] = batch.input_ids
    static.positions[:num_tokens] = batch.positions
    if batch.hidden is not None and static.hidden is not None:
        static.hidden[:num_tokens] = batch.hidden
    if static.token_adapter is not None and batch.token_adapter is not static.copied_adapter:
        static.token_adapter[:num_tokens] = batch.token_adapter
        static.token_adapter[num_tokens:] = -1
        static.copied_adapter = batch.token_adapter
    target.query_start_loc[:num_rows] = source.query_start_loc[:num_rows]
    target.query_start_loc[num_rows:] = num_tokens
    target.slot_mapping[:num_tokens] = source.slot_mapping
    target.slot_mapping[num_tokens:] = -1
    target.seq_lens[:num_rows] = source.seq_lens
    target.seq_lens[num_rows:] = 0
    target.block_table[:num_rows, : source.block_table.shape[1]] = source.block_table
