"""Decode steps without Python: the model's kernel calls are recorded once per batch size, then replayed.

A decode step of a small model is mostly overhead: some sixty calls of a few microseconds each. They are the same in
every step but for their inputs, so the step is recorded with inputs at fixed addresses, and a replay is: copy the
new inputs there, run the recorded calls, read the logits where they were left.

    inputs      input_ids [N]  positions [N]  slot_mapping [N]  seq_lens [N]  block_table [N, all blocks]
    first step of N rows     record (this also computes the step)
    from then on             replay
    the very first replay    has an ordinary run beside it: the logits must be equal, bit for bit, because what is
                             no kernel of ours is not recorded. If they are not, nothing is replayed any more

Source: vLLM's full CUDA graphs for uniform decode (v1/worker/gpu/cudagraph_utils.py), without padding to fixed
sizes: recording costs no more than a step.
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

MAX_ROWS = 64
"""Larger batches are recorded nowhere: what Python takes is little beside their arithmetic."""
ARENA_BYTES = 64 << 20
"""Results of all layers of the largest batch. Only what is used is ever in memory."""

Forward = Callable[[ModelInput], Tensor]
"""An ordinary forward pass over a batch in which every token gets logits: logits fp32 [N, V]."""


@dataclass(slots=True)
class _Recorded:
    """One batch size. The graph reads `batch`'s tensors and leaves its result in `logits`."""

    batch: ModelInput
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
        self._is_verified = False

    def logits(self, batch: ModelInput) -> Tensor | None:
        """What `forward` would return, valid until the next call; None if this batch has to go the ordinary way."""
        if batch.logits_rows is not None or batch.metadata.max_query_len != 1:
            return None
        num_rows = len(batch.rows)
        if num_rows > self._max_rows:
            return None
        recorded = self._recorded.get(num_rows)
        if recorded is None:
            return self._record(batch)
        _copy_inputs(batch, recorded.batch)
        recorded.graph.replay()
        if not self._is_verified:
            return self._verify(recorded)
        return recorded.logits

    def _record(self, batch: ModelInput) -> Tensor | None:
        num_rows = len(batch.rows)
        static = _static_copy(batch, self._max_blocks_per_row)
        try:
            graph, logits = CPUGraph.record(lambda: self._forward(static), self._arena)
        except ArenaFull:
            self._max_rows = num_rows - 1
            return None
        self._recorded[num_rows] = _Recorded(static, graph, logits)
        return logits

    def _verify(self, recorded: _Recorded) -> Tensor:
        """The ordinary run writes the same keys and values to the same slots again."""
        expected = self._forward(recorded.batch)
        if torch.equal(expected.view(torch.int32), recorded.logits.view(torch.int32)):
            self._is_verified = True
            return recorded.logits
        logger.info("decode steps are not replayed: this model does more than our kernels record")
        self._max_rows = 0
        self._recorded.clear()
        return expected


def _static_copy(batch: ModelInput, max_blocks: int) -> ModelInput:
    """The same batch in memory of its own, with room for every block that its rows may ever have."""
    metadata = batch.metadata
    num_rows = len(batch.rows)
    block_table = torch.zeros(num_rows, max_blocks, dtype=torch.int32)
    static = ModelInput(
        rows=batch.rows,
        slots=batch.slots,
        input_ids=batch.input_ids.clone(),
        positions=batch.positions.clone(),
        metadata=AttentionMetadata(
            query_start_loc=metadata.query_start_loc.clone(),
            seq_lens=metadata.seq_lens.clone(),
            block_table=block_table,
            slot_mapping=metadata.slot_mapping.clone(),
            num_decode_rows=num_rows,
            max_query_len=1,
            max_seq_len=metadata.max_seq_len,
            query_start_loc_cpu=metadata.query_start_loc_cpu,
            seq_lens_cpu=metadata.seq_lens_cpu,
        ),
        logits_rows=None,
        sampled_rows=batch.sampled_rows,
        sample_batch=batch.sample_batch,
    )
    _copy_inputs(batch, static)
    return static


def _copy_inputs(batch: ModelInput, static: ModelInput) -> None:
    static.input_ids.copy_(batch.input_ids)
    static.positions.copy_(batch.positions)
    source, target = batch.metadata, static.metadata
    target.slot_mapping.copy_(source.slot_mapping)
    target.seq_lens.copy_(source.seq_lens)
    target.block_table[:, : source.block_table.shape[1]].copy_(source.block_table)
