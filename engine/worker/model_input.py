"""Turn the scheduler's rows into the tensors of one forward pass.

All rows are packed without padding. Rows that compute a single token come first, so that attention can treat them as
one block:

    rows         a: 1 token   b: 1 token   c: tokens 3..6 of its prompt (6 known)    d: 0..1 of 5 known
    input_ids    [ a7         b3           c3 c4 c5                                  d0 d1 ]
    positions    [ 7          3            3  4  5                                   0  1  ]
    logits_rows  [ 0          1                  4                                         ]

Only rows that reach their last known token get logits: d's prompt continues in the next step. A row with drafts gets
logits at its newest token and at every draft, where the model's choice tells whether the next draft is accepted. Most
steps decode the same requests as the step before and reuse what depends only on the rows and their lengths.

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

MAX_LAYOUTS = 64


@dataclass(slots=True)
class ModelInput:
    """A packed batch: R rows, T tokens, S sampled positions."""

    rows: list[Scheduled]
    """[R] decode rows first."""
    slots: np.ndarray
    """int64 [R]: state slot of each row."""
    input_ids: Tensor
    """int64 [T]"""
    positions: Tensor
    """int64 [T]"""
    metadata: AttentionMetadata
    logits_rows: Tensor | None
    """int64 [S]: indices of the tokens whose logits are needed; None: all T."""
    sampled_rows: np.ndarray
    """int64 [S]: index into `rows`. A row with drafts appears once more for every draft."""
    sample_batch: SampleBatch
    has_drafts: bool
    query_start: np.ndarray
    """int64 [R + 1]: `query_start_loc` in numpy."""
    starts: np.ndarray
    """int64 [R]: position of each row's first token."""
    token_adapter: Tensor | None
    """int32 [T]: LoRA slot of each token, -1: none; None if no row has an adapter."""


class InputBuilder:
    """Build the inputs of each step, reusing those of the step before where possible."""

    def __init__(self, state: BatchState, device: torch.device) -> None:
        self._state = state
        self._device = device
        self._layouts: dict[tuple[int, ...], _Layout] = {}
        """Layouts of the same requests, by tokens per row, which change with drafts."""

    def build(self, rows: list[Scheduled], has_drafts: bool = False) -> ModelInput:
        """Gather the inputs of `rows` (at least one) from the state tables.

        has_drafts: some rows have drafts, which the tables hold after the known tokens.
        """
        state, layout = self._state, self._layout_of(rows)
        if layout.order is not None:
            rows = [rows[index] for index in layout.order]
        starts = np.array([row.start for row in rows], np.int64)
        seq_lens = starts + layout.num_scheduled
        positions, token_slots = layout.tokens(starts)
        input_ids = state.token_ids[token_slots, positions].astype(np.int64)
        block_index, offset = np.divmod(positions, state.block_size)
        slot_mapping = state.block_table[token_slots, block_index] * np.int64(state.block_size) + offset

        seq_lens_cpu = seq_lens.tolist()
        max_seq_len = max(seq_lens_cpu)
        block_table = state.block_table[layout.slots, : -(-max_seq_len // state.block_size)]
        lengths = state.num_tokens[layout.slots]
        sampled_rows = np.flatnonzero(seq_lens >= lengths)
        num_drafts = None
        if has_drafts:
            sampled_rows, num_drafts = _at_every_draft(sampled_rows, seq_lens - lengths)
        last_tokens = layout.query_start[sampled_rows + 1] - 1
        sampled_lengths = lengths[sampled_rows]
        if num_drafts is not None:
            sampled_lengths = sampled_lengths + num_drafts
            last_tokens -= seq_lens[sampled_rows] - sampled_lengths
        all_sampled = len(sampled_rows) == len(positions)
        logits_rows = [] if all_sampled else [last_tokens]
        longs = _to_device([input_ids, positions, slot_mapping, *logits_rows], self._device)
        ints = _to_device([seq_lens.astype(np.int32), block_table], self._device)
        sampled_slots = layout.slots[sampled_rows]
        return ModelInput(
            rows=rows,
            slots=layout.slots,
            input_ids=longs[0],
            positions=longs[1],
            metadata=AttentionMetadata(
                query_start_loc=layout.query_start_loc,
                seq_lens=ints[0],
                block_table=ints[1],
                slot_mapping=longs[2],
                num_decode_rows=layout.num_decode_rows,
                max_query_len=layout.max_query_len,
                max_seq_len=max_seq_len,
                query_start_loc_cpu=layout.query_start_loc_cpu,
                seq_lens_cpu=seq_lens_cpu,
            ),
            logits_rows=None if all_sampled else longs[3],
            sampled_rows=sampled_rows,
            sample_batch=SampleBatch(
                slots=sampled_slots,
                lengths=sampled_lengths,
                num_prompt_tokens=state.num_prompt_tokens[sampled_slots],
                token_ids=state.token_ids,
                num_drafts=num_drafts,
            ),
            has_drafts=has_drafts,
            query_start=layout.query_start,
            starts=starts,
            token_adapter=layout.token_adapter,
        )

    def _layout_of(self, rows: list[Scheduled]) -> _Layout:
        """Return the layout of an earlier step if it fits these rows, else a new one."""
        request_ids = [row.request_id for row in rows]
        num_scheduled = [row.num_tokens for row in rows]
        key = tuple(num_scheduled)
        layout = self._layouts.get(key)
        is_same = layout is not None and layout.request_ids == request_ids
        if layout is None or not is_same or layout.num_state_changes != self._state.num_changes:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[key] = self._make_layout(request_ids, num_scheduled)
        return layout

    def _make_layout(self, request_ids: list[str], tokens_per_request: list[int]) -> _Layout:
        slots = np.array([self._state.slot_of[request_id] for request_id in request_ids], np.int64)
        num_scheduled = np.array(tokens_per_request, np.int64)
        is_decode = num_scheduled == 1
        num_decode_rows = int(np.count_nonzero(is_decode))
        order = None
        if not is_decode[:num_decode_rows].all():
            order = np.argsort(~is_decode, kind="stable")
            slots, num_scheduled = slots[order], num_scheduled[order]
        query_start = np.zeros(len(slots) + 1, np.int64)
        np.cumsum(num_scheduled, out=query_start[1:])
        return _Layout(
            request_ids=request_ids,
            num_state_changes=self._state.num_changes,
            order=None if order is None else order.tolist(),
            slots=slots,
            num_scheduled=num_scheduled,
            query_start=query_start,
            query_start_loc=_to_device([query_start.astype(np.int32)], self._device)[0],
            query_start_loc_cpu=query_start.tolist(),
            num_decode_rows=num_decode_rows,
            max_query_len=int(num_scheduled.max()),
            token_adapter=self._token_adapter(slots, num_scheduled),
        )

    def _token_adapter(self, slots: np.ndarray, num_scheduled: np.ndarray) -> Tensor | None:
        """Return the LoRA slot of each token; constant with the layout: adapters of running requests stay."""
        adapters = self._state.lora_slot[slots]
        if (adapters < 0).all():
            return None
        return _to_device([np.repeat(adapters, num_scheduled)], self._device)[0]


@dataclass(slots=True)
class _Layout:
    """The rows and their numbers of tokens: constant during decode until a request starts or ends."""

    request_ids: list[str]
    """Rows in the scheduler's order."""
    num_state_changes: int
    """`BatchState.num_changes` when this was made."""
    order: list[int] | None
    """Permutation to decode rows first; None if they are. The following fields are in this order."""
    slots: np.ndarray
    """int64 [R]: state slot of each row."""
    num_scheduled: np.ndarray
    """int64 [R]: tokens of each row."""
    query_start: np.ndarray
    """int64 [R + 1]: row r owns tokens query_start[r] .. query_start[r + 1] - 1."""
    query_start_loc: Tensor
    """int32 [R + 1]: `query_start` on the device."""
    query_start_loc_cpu: list[int]
    num_decode_rows: int
    max_query_len: int
    token_adapter: Tensor | None

    def tokens(self, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return position and state slot of every token, int64 [T] each, for rows that begin at `starts`."""
        if self.max_query_len == 1:
            return starts, self.slots
        # Token t of row r stands at position starts[r] + (t - query_start[r]).
        first_positions = np.repeat(starts - self.query_start[:-1], self.num_scheduled)
        return np.arange(self.query_start[-1]) + first_positions, np.repeat(self.slots, self.num_scheduled)


def _at_every_draft(rows: np.ndarray, num_drafts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Repeat each row 1 + num_drafts[row] times; return rows and the drafts before each, int64 [S]."""
    counts = num_drafts[rows] + 1
    first = np.cumsum(counts) - counts
    return np.repeat(rows, counts), np.arange(counts.sum()) - np.repeat(first, counts)


def _to_device(arrays: list[np.ndarray], device: torch.device) -> list[Tensor]:
    """Convert arrays of one dtype to tensors: without a copy on a CPU, with a single one to a GPU."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    packed = torch.from_numpy(np.concatenate([array.ravel() for array in arrays])).pin_memory()
    parts = packed.to(device, non_blocking=True).split([array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]
