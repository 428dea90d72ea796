"""Decode steps without Python: the model's kernel calls are recorded once per batch size, then replayed.

A decode step of a small model is mostly overhead: some sixty calls of a few microseconds each. They are the same in
every step but for their inputs, so the step is recorded with inputs at fixed addresses, and a replay is: copy the
new inputs there, run the recorded calls, read the logits where they were left.

    rows of the step         1   2   3   4   5 ..  8   9 .. 16   17 .. 24
    rows of the graph        1   2   4   4   8     8  16    16   24    24   ...

    padding rows have no tokens (query_start_loc stays), padding tokens no slot (-1): nothing is written for them

The first step of each size is recorded, which also computes it. The very first replay has an ordinary run beside it:
the logits must be equal, bit for bit, because what is no kernel of ours is not recorded. If they are not, nothing is
replayed any more. A graph with another number of calls is checked the same way: a kernel may not take every size.

Source: vLLM's full CUDA graphs for uniform decode (v1/worker/gpu/cudagraph_utils.py) and its list of sizes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.backend import AttentionMetadata
from engine.worker.model_input import ModelInput
from kernels.cpu.graph import CPUGraph
from kernels.cpu.memory import Arena, ArenaFull

logger = logging.getLogger(__name__)

MAX_ROWS = 512
ARENA_BYTES = 32 << 20
"""Results of all layers of the largest batch. Only what is used is ever in memory."""

Forward = Callable[[ModelInput], Tensor]
"""An ordinary forward pass over a batch in which every token gets logits: logits fp32 [N, V]."""


@dataclass(slots=True)
class _Recorded:
    """One size. The graph reads `inputs`' tensors and leaves its result in `logits`."""

    inputs: ModelInput
    graph: CPUGraph
    logits: Tensor


class DecodeGraphs:
    """Graphs for one model on one cache, by number of rows. Steps come one after the other: they share an arena."""

    def __init__(self, forward: Forward, max_blocks_per_row: int) -> None:
        self._forward = forward
        self._max_blocks_per_row = max_blocks_per_row
        self._arena = Arena(ARENA_BYTES)
        self._recorded: dict[int, _Recorded] = {}
        self._max_rows = MAX_ROWS
        self._verified_calls: set[int] = set()  # how many calls the graphs hold that were found right

    def logits(self, batch: ModelInput) -> Tensor | None:
        """What `forward` would return, valid until the next call; None if this batch has to go the ordinary way."""
        if batch.logits_rows is not None or batch.metadata.max_query_len != 1:
            return None
        num_rows = len(batch.rows)
        size = graph_size(num_rows)
        if size > self._max_rows:
            return None
        recorded = self._recorded.get(size)
        if recorded is None:
            logits = self._record(batch, size)
        else:
            _copy_inputs(batch, recorded.inputs)
            recorded.graph.replay()
            is_verified = recorded.graph.num_calls in self._verified_calls
            logits = recorded.logits if is_verified else self._verify(recorded)
        return None if logits is None else logits[:num_rows]

    def _record(self, batch: ModelInput, size: int) -> Tensor | None:
        inputs = _static_inputs(batch, size, self._max_blocks_per_row)
        _copy_inputs(batch, inputs)
        try:
            graph, logits = CPUGraph.record(lambda: self._forward(inputs), self._arena)
        except ArenaFull:
            self._max_rows = size - 1
            return None
        self._recorded[size] = _Recorded(inputs, graph, logits)
        return logits

    def _verify(self, recorded: _Recorded) -> Tensor:
        """The ordinary run writes the same keys and values to the same slots again."""
        expected = self._forward(recorded.inputs)
        if torch.equal(expected.view(torch.int32), recorded.logits.view(torch.int32)):
            self._verified_calls.add(recorded.graph.num_calls)
            return recorded.logits
        logger.info("decode steps are not replayed: this model does more than our kernels record")
        self._max_rows = 0
        self._recorded.clear()
        return expected


def graph_size(num_rows: int) -> int:
    """Rows of the smallest graph that takes a step of `num_rows`: 1, 2, 4, then multiples of 8."""
    if num_rows <= 4:
        return 1 if num_rows == 1 else 2 if num_rows == 2 else 4
    return -(-num_rows // 8) * 8


def _static_inputs(batch: ModelInput, size: int, max_blocks: int) -> ModelInput:
    """Inputs of `size` padding rows, with room for every block that a row may ever have."""
    return ModelInput(
        rows=batch.rows,
        slots=batch.slots,
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
        logits_rows=None,
        sampled_rows=batch.sampled_rows,
        sample_batch=batch.sample_batch,
    )


def _copy_inputs(batch: ModelInput, static: ModelInput) -> None:
    num_rows = len(batch.rows)
    source, target = batch.metadata, static.metadata
    static.input_ids[:num_rows] = batch.input_ids
    static.positions[:num_rows] = batch.positions
    target.query_start_loc[:num_rows] = source.query_start_loc[:num_rows]
    target.query_start_loc[num_rows:] = num_rows
    target.slot_mapping[:num_rows] = source.slot_mapping
    target.slot_mapping[num_rows:] = -1
    target.seq_lens[:num_rows] = source.seq_lens
    target.seq_lens[num_rows:] = 0
    target.block_table[:num_rows, : source.block_table.shape[1]] = source.block_table
