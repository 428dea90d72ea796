"""Drafting with a small model: one pass over the new tokens, then one for each further draft.

    pass 0      the tokens that are new since the last drafts      -> draft 1       T tokens of R rows
    pass 1      draft 1, one position further                      -> draft 2       R tokens
    pass 2      draft 2                                            -> draft 3

The slots that a pass writes and the positions that it sees do not depend on the drafts, so the inputs of all passes are
known before the first. With our C++ kernels, sampling included, the whole chain is one recording
(`kernels/cpu/graph.py`): drafting fills in inputs, replays it, and reads k token ids.

Keys and values lie in the target's blocks, in layers after the target's, so prefix hits, preemption, swap and transfer
apply to them too. Source: vLLM v1/spec_decode/eagle.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.attention.backend import AttentionMetadata
from engine.attention.forward_context import ForwardContext, set_forward_context
from engine.sample.rng import row_keys
from engine.sample.sampler import Sampler
from engine.spec.base import DrafterContext, DraftStep
from kernels import ops

logger = logging.getLogger(__name__)

MAX_RECORDED_TOKENS = 512
"""Maximum tokens of a recorded pass 0. Longer ones are prompts, where Python overhead is small."""
MAX_RECORDINGS = 256
ARENA_BYTES = 64 << 20
SETTINGS = ("temperature", "top_k", "top_p", "min_p")

DraftModel = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(input_ids [T], positions [T], hidden [T, hidden] | None) -> states [T, hidden], inside a forward context."""


@dataclass(slots=True)
class NewTokens:
    """Input of pass 0: T tokens of R rows, packed row by row."""

    slots: np.ndarray  # int64 [R]: state slots
    input_ids: np.ndarray  # int64 [T]
    positions: np.ndarray  # int64 [T]: slots that their keys are written to
    query_start: np.ndarray  # int64 [R + 1]
    lengths: np.ndarray  # int64 [R]: position of the first draft
    hidden: Tensor | None = None
    """[T, hidden]: the target's states at these tokens, for drafters that read them."""


class _Inputs:
    """Inputs of a chain at fixed addresses, as numpy arrays. Unused rows and tokens are padding."""

    def __init__(
        self, num_rows: int, num_tokens: int, num_drafts: int, max_blocks: int, hidden: Tensor | None
    ) -> None:
        """hidden: a tensor like that of the target's states, for drafters that read them."""
        self.num_drafts = num_drafts
        self.block_table = np.zeros((num_rows, max_blocks), np.int32)
        self.input_ids = np.zeros(num_tokens, np.int64)
        self.positions = np.zeros(num_tokens, np.int64)
        self.slot_mapping = np.full(num_tokens, -1, np.int64)
        self.query_start = np.zeros(num_rows + 1, np.int32)
        self.seq_lens = np.zeros(num_rows, np.int32)
        self.last = np.zeros(num_rows, np.int64)
        later = (num_drafts - 1, num_rows)  # pass 1 is in row 0
        self.later_positions = np.zeros(later, np.int64)
        self.later_slot_mapping = np.full(later, -1, np.int64)
        self.later_query_start = np.zeros(num_rows + 1, np.int32)
        self.later_seq_lens = np.zeros(later, np.int32)
        self.temperature = np.zeros(num_rows, np.float32)
        self.top_k = np.ones(num_rows, np.int32)
        self.top_p = np.ones(num_rows, np.float32)
        self.min_p = np.zeros(num_rows, np.float32)
        self.keys = np.zeros((num_drafts, num_rows, 2), np.int32)
        self.hidden = None if hidden is None else hidden.new_zeros((num_tokens, hidden.shape[1]))


@dataclass(slots=True)
class Drafted:
    """Results of a chain: tensors of the R rows (and padding), one per draft, valid until the next run."""

    token_ids: list[Tensor]  # int64 [R]
    logits: list[Tensor]  # fp32 [R, V]


class DraftChain:
    """Run chains of one model over the target's blocks."""

    def __init__(
        self,
        model: DraftModel,
        compute_logits: Callable[[Tensor], Tensor | None],
        context: DrafterContext,
        *,
        noise_tag: int,
        reads_hidden: bool = False,
    ) -> None:
        """reads_hidden: a pass reads the states that the pass before ended with. noise_tag: see `Sampler.draft`."""
        self._model = model
        self._compute_logits = compute_logits
        self._backend = context.backend
        self._kv_cache = context.kv_cache
        self.block_size = context.kv_cache.kv.shape[-2]
        self._max_position = context.max_model_len
        self._reads_hidden = reads_hidden
        self._noise_tag = noise_tag
        self._recorder = _Recorder(self._compute) if context.record else None

    def run(self, new: NewTokens, step: DraftStep, sampler: Sampler, num_drafts: int) -> Drafted:
        """Compute the new tokens and `num_drafts` >= 1 drafts after each row."""
        num_rows, num_tokens = len(new.slots), len(new.input_ids)
        max_blocks = step.block_table.shape[1]
        if self._recorder is not None:
            rows = num_rows if num_rows <= 8 else -(-num_rows // 8) * 8  # so that there are few recordings
            tokens = rows * int(np.diff(new.query_start).max())
            if tokens <= MAX_RECORDED_TOKENS:
                inputs = self._recorder.inputs(rows, tokens, num_drafts, max_blocks, new.hidden)
                self._fill(inputs, new, step, sampler)
                return self._recorder.run(inputs)
        inputs = _Inputs(num_rows, num_tokens, num_drafts, max_blocks, new.hidden)
        self._fill(inputs, new, step, sampler)
        return self._compute(inputs)

    def _fill(self, inputs: _Inputs, new: NewTokens, step: DraftStep, sampler: Sampler) -> None:
        rows, tokens, block_size = len(new.slots), len(new.input_ids), self.block_size
        table = step.block_table[new.slots]
        room = step.num_blocks[new.slots] * block_size
        inputs.block_table[:rows] = table

        inputs.input_ids[:tokens] = new.input_ids
        inputs.positions[:tokens] = new.positions
        row_of_token = np.repeat(np.arange(rows), np.diff(new.query_start))
        inputs.slot_mapping[:tokens] = _slots(new.positions, row_of_token, table, room, block_size)
        inputs.slot_mapping[tokens:] = -1
        inputs.query_start[: rows + 1] = new.query_start
        inputs.query_start[rows + 1 :] = tokens
        last = new.query_start[1:] - 1  # the tokens after which drafts begin
        inputs.seq_lens[:rows] = np.minimum(new.positions[last] + 1, room)
        inputs.seq_lens[rows:] = 0
        inputs.last[:rows] = last
        inputs.last[rows:] = 0
        if inputs.hidden is not None and new.hidden is not None:
            inputs.hidden[:tokens] = new.hidden

        if inputs.num_drafts > 1:
            distance = np.arange(1, inputs.num_drafts)[:, None]
            positions = new.positions[last] + distance
            inputs.later_positions[:, :rows] = np.minimum(positions, self._max_position - 1)
            inputs.later_slot_mapping[:, :rows] = _slots(positions, np.arange(rows), table, room, block_size)
            inputs.later_slot_mapping[:, rows:] = -1
            inputs.later_seq_lens[:, :rows] = np.minimum(positions + 1, room)
            inputs.later_seq_lens[:, rows:] = 0
            inputs.later_query_start[:] = np.minimum(np.arange(len(inputs.later_query_start)), rows)

        plan = sampler.plan(new.slots)
        inputs.temperature[:] = 0.0
        if plan.seeds is not None:
            for name in SETTINGS:
                getattr(inputs, name)[:rows] = getattr(plan, name).cpu().numpy()
            for index in range(inputs.num_drafts):
                inputs.keys[index, :rows] = row_keys(plan.seeds ^ self._noise_tag, new.lengths + index)

    def _compute(self, inputs: _Inputs) -> Drafted:
        device = self._kv_cache.kv.device

        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(device)

        table = tensor(inputs.block_table)
        settings = {name: tensor(getattr(inputs, name)) for name in SETTINGS}
        drafted = Drafted([], [])
        places = tensor(inputs.positions), tensor(inputs.slot_mapping)
        lengths = inputs.query_start, inputs.seq_lens
        states = self._pass(tensor(inputs.input_ids), *places, *lengths, table, inputs.hidden)
        states = ops.embedding(states, tensor(inputs.last))  # gathers the tokens after which drafts begin
        for index in range(inputs.num_drafts):
            logits = self._compute_logits(states)
            assert logits is not None, "drafters run on one rank"
            token_ids, _ = ops.sample(logits, **settings, keys=tensor(inputs.keys[index]))
            drafted.token_ids.append(token_ids)
            drafted.logits.append(logits)
            if index + 1 < inputs.num_drafts:
                places = tensor(inputs.later_positions[index]), tensor(inputs.later_slot_mapping[index])
                lengths = inputs.later_query_start, inputs.later_seq_lens[index]
                hidden = states if self._reads_hidden else None
                states = self._pass(token_ids, *places, *lengths, table, hidden)
        return drafted

    def _pass(
        self,
        input_ids: Tensor,
        positions: Tensor,
        slot_mapping: Tensor,
        query_start: np.ndarray,
        seq_lens: np.ndarray,
        block_table: Tensor,
        hidden: Tensor | None,
    ) -> Tensor:
        """Run one forward pass; return states [T, hidden]."""
        longest = int(np.diff(query_start).max())
        metadata = AttentionMetadata(
            query_start_loc=torch.from_numpy(query_start).to(positions.device),
            seq_lens=torch.from_numpy(seq_lens).to(positions.device),
            block_table=block_table,
            slot_mapping=slot_mapping,
            num_decode_rows=len(seq_lens) if longest == 1 else 0,
            max_query_len=longest,
            max_seq_len=int(seq_lens.max()),
            query_start_loc_cpu=query_start.tolist(),
            seq_lens_cpu=seq_lens.tolist(),
        )
        self._backend.build(metadata)
        cache = self._kv_cache
        with set_forward_context(ForwardContext(metadata, self._backend, cache.kv, cache.scales)):
            return self._model(input_ids, positions, hidden)


def _slots(
    positions: np.ndarray, row: np.ndarray, table: np.ndarray, room: np.ndarray, block_size: int
) -> np.ndarray:
    """Return the slots for keys at these positions; -1 (none) beyond the blocks of a row."""
    block_index, offset = np.divmod(positions, block_size)
    block = table[row, np.minimum(block_index, table.shape[1] - 1)]
    return np.where(positions < room[row], block * np.int64(block_size) + offset, -1)


# -- recordings


class _Recorder:
    """One recording for each number of rows, tokens and drafts. The first run records, the second is checked."""

    def __init__(self, compute: Callable[[_Inputs], Drafted]) -> None:
        self._compute = compute
        self._arena = ops.Arena(ARENA_BYTES)
        self._inputs: dict[tuple[int, int, int], _Inputs] = {}
        self._recorded: dict[int, tuple[ops.CPUGraph, Drafted]] = {}
        self._verified_calls: set[int] = set()
        self.off_reason = ""
        """Reason why nothing is replayed any more; empty while chains are."""

    def inputs(
        self, num_rows: int, num_tokens: int, num_drafts: int, max_blocks: int, hidden: Tensor | None
    ) -> _Inputs:
        """Return the inputs of a recording, new ones if there is none."""
        key = (num_rows, num_tokens, num_drafts)
        inputs = self._inputs.get(key)
        if inputs is None:
            if len(self._inputs) >= MAX_RECORDINGS:
                self._inputs.clear()
                self._recorded.clear()
            inputs = self._inputs[key] = _Inputs(*key, max_blocks, hidden)
        return inputs

    def run(self, inputs: _Inputs) -> Drafted:
        if self.off_reason:
            return self._compute(inputs)
        recorded = self._recorded.get(id(inputs))
        if recorded is None:
            try:
                recorded = ops.CPUGraph.record(lambda: self._compute(inputs), self._arena)
            except ops.ArenaFull:
                return self._compute(inputs)
            self._recorded[id(inputs)] = recorded
            return recorded[1]
        graph, drafted = recorded
        graph.replay()
        if graph.num_calls in self._verified_calls:
            return drafted
        expected = self._compute(inputs)
        pairs = zip(expected.logits, drafted.logits, strict=True)
        if all(torch.equal(one.view(torch.int32), other.view(torch.int32)) for one, other in pairs):
            self._verified_calls.add(graph.num_calls)
        else:
            self.off_reason = "the draft model does more than our kernels record"
            logger.warning(
                "chains of drafts are not replayed any more, each takes longer: %s", self.off_reason
            )
        return expected
