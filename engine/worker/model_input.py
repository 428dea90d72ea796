"""From the scheduler's rows to the tensors of one forward pass.

All rows are packed behind each other, without padding; rows that compute a single token come first,
so that attention can treat them as one block:

    rows         a: 1 token   b: 1 token   c: tokens 3..6 of its prompt (6 known)    d: 0..1 of 5 known
    input_ids    [ a7         b3           c3 c4 c5                                  d0 d1 ]
    positions    [ 7          3            3  4  5                                   0  1  ]
    logits_rows  [ 0          1                  4                                         ]

Only rows that reach the end of what is known get logits: d's prompt goes on in the next step.

Source: vLLM v1/worker/gpu/input_batch.py, as numpy over the state tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.attention.backend import AttentionMetadata
from engine.core.sched_output import Scheduled
from engine.sample.processors import SampleBatch
from engine.worker.batch_state import BatchState


@dataclass(slots=True)
class ModelInput:
    """One packed batch: R rows, T tokens, S of the rows get a new token."""

    rows: list[Scheduled]
    """[R] decode rows first."""
    slots: np.ndarray
    """int64 [R]: state slot of each row."""
    input_ids: Tensor
    """int64 [T]"""
    positions: Tensor
    """int64 [T]"""
    metadata: AttentionMetadata
    logits_rows: Tensor
    """int64 [S]: index into the T tokens of those whose logits are needed."""
    sampled_rows: np.ndarray
    """int64 [S]: index into `rows`."""
    sample_batch: SampleBatch


def build_model_input(rows: list[Scheduled], state: BatchState, device: torch.device) -> ModelInput:
    """Gather what `rows` (at least one) compute in this step from the state tables."""
    num_scheduled = np.array([row.num_tokens for row in rows], np.int64)
    is_decode = num_scheduled == 1
    num_decode_rows = int(np.count_nonzero(is_decode))
    if not is_decode[:num_decode_rows].all():
        order = np.argsort(~is_decode, kind="stable")
        rows = [rows[index] for index in order.tolist()]
        num_scheduled = num_scheduled[order]
    slots = np.array([state.slot_of[row.request_id] for row in rows], np.int64)
    starts = np.array([row.start for row in rows], np.int64)
    seq_lens = starts + num_scheduled
    query_start = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(num_scheduled, out=query_start[1:])

    num_tokens = int(query_start[-1])
    if num_tokens == len(rows):
        positions, token_slots = starts, slots
    else:  # token t of row r stands at position start[r] + (t - query_start[r])
        positions = np.arange(num_tokens) + np.repeat(starts - query_start[:-1], num_scheduled)
        token_slots = np.repeat(slots, num_scheduled)
    input_ids = state.token_ids[token_slots, positions].astype(np.int64)
    block_index, offset = np.divmod(positions, state.block_size)
    slot_mapping = state.block_table[token_slots, block_index] * np.int64(state.block_size) + offset

    max_seq_len = int(seq_lens.max())
    num_columns = -(-max_seq_len // state.block_size)
    sampled_rows = np.flatnonzero(seq_lens >= state.num_tokens[slots])
    longs = _to_device([input_ids, positions, slot_mapping, query_start[sampled_rows + 1] - 1], device)
    block_table = state.block_table[slots, :num_columns]
    ints = _to_device([query_start.astype(np.int32), seq_lens.astype(np.int32), block_table], device)
    sampled_slots = slots[sampled_rows]
    return ModelInput(
        rows=rows,
        slots=slots,
        input_ids=longs[0],
        positions=longs[1],
        metadata=AttentionMetadata(
            query_start_loc=ints[0],
            seq_lens=ints[1],
            block_table=ints[2],
            slot_mapping=longs[2],
            num_decode_rows=num_decode_rows,
            max_query_len=int(num_scheduled.max()),
            max_seq_len=max_seq_len,
            query_start_loc_cpu=query_start.tolist(),
            seq_lens_cpu=seq_lens.tolist(),
        ),
        logits_rows=longs[3],
        sampled_rows=sampled_rows,
        sample_batch=SampleBatch(
            slots=sampled_slots,
            lengths=state.num_tokens[sampled_slots],
            num_prompt_tokens=state.num_prompt_tokens[sampled_slots],
            token_ids=state.token_ids,
        ),
    )


def _to_device(arrays: list[np.ndarray], device: torch.device) -> list[Tensor]:
    """Arrays of one dtype as tensors: without a copy on a CPU, in a single one to a GPU."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    packed = torch.from_numpy(np.concatenate([array.ravel() for array in arrays])).pin_memory()
    parts = packed.to(device, non_blocking=True).split([array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]
