"""Draft with a small model of the same family.

Its keys and values lie beside the target's in every block, for the same tokens. The only state of a request is the
number of tokens that they cover:

    token_ids      t t t t t t t t t n          n: the newest token, which the target has just chosen
    its KV         k k k k k k k k              num_computed = 8; accepted drafts already have KV
    pass 0                         . .          computes the rest, two tokens in most steps

Sources: Leviathan et al. 2023, Chen et al. 2023; vLLM v1/spec_decode/draft_model.py.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor

from engine.core.sched_output import RequestInit
from engine.models.registry import CausalLM
from engine.sample.draft_acceptance import DRAFT_NOISE, target_probabilities
from engine.spec.base import DrafterContext, DraftStep
from engine.spec.chain import DraftChain, NewTokens

USUAL_TOKENS = 2
"""Tokens of pass 0 in most steps: the last draft, if all were accepted, and the newest token."""


class DraftModelDrafter:
    """Draft with a second model that shares the target's vocabulary and blocks."""

    def __init__(self, context: DrafterContext) -> None:
        assert context.draft_model is not None
        model = cast(CausalLM, context.draft_model)
        self._sampler = context.sampler
        self._keeps_probabilities = context.config.verifier == "rejection"
        self._chain = DraftChain(
            lambda input_ids, positions, hidden: cast(Tensor, model(input_ids, positions)),
            model.compute_logits,
            context.backend,
            context.kv_cache,
            max_position=context.max_model_len,
            record=context.record,
            noise_tag=DRAFT_NOISE if self._keeps_probabilities else 0,
        )
        self._num_computed = np.zeros(context.num_slots, np.int64)
        self._drafts: dict[int, list[int]] = {}
        """Slot -> position and tokens of the last drafts; all but the last have KV."""
        self._probabilities: dict[int, Tensor] = {}

    def add_request(self, slot: int, init: RequestInit, start: int) -> None:
        self._num_computed[slot] = start

    def remove_request(self, slot: int) -> None:
        self._drafts.pop(slot, None)
        self._probabilities.pop(slot, None)

    def draft_probabilities(self, slot: int) -> Tensor | None:
        """Slot -> fp32 [k, V]: distributions of its last drafts."""
        return self._probabilities.get(slot)

    def propose(self, step: DraftStep) -> list[list[int]]:
        ends = step.starts + np.diff(step.query_start)
        goes_on = ends < step.lengths - 1  # the prompt continues in the next step
        counts = np.minimum(step.max_drafts, self._room(step))
        rows = np.flatnonzero((counts > 0) | goes_on)
        drafts: list[list[int]] = [[] for _ in step.max_drafts]
        if not len(rows):
            return drafts
        most = max(1, int(counts.max()))
        drafted = self._chain.run(self._new_tokens(step, rows, goes_on, ends), step, self._sampler, most)
        columns = [token_ids.tolist() for token_ids in drafted.token_ids]
        for place, (row, slot) in enumerate(zip(rows.tolist(), step.slots[rows].tolist(), strict=True)):
            drafts[row] = [column[place] for column in columns[: max(0, counts[row])]]
            self._drafts[slot] = drafts[row]
        if self._keeps_probabilities:
            self._keep_probabilities(drafted.logits, step.slots[rows])
        return drafts

    def _room(self, step: DraftStep) -> np.ndarray:
        """Limit drafts to positions with blocks; the newest token's KV is written first."""
        block_size = self._chain.block_size
        return (step.num_blocks[step.slots] * block_size - (step.lengths - 1)).clip(0)

    def _new_tokens(
        self, step: DraftStep, rows: np.ndarray, goes_on: np.ndarray, ends: np.ndarray
    ) -> NewTokens:
        slots, lengths = step.slots[rows], step.lengths[rows]
        for slot, length in zip(slots.tolist(), lengths.tolist(), strict=True):
            self._count_accepted(slot, step.token_ids[slot, :length])
        stop = np.where(goes_on[rows], ends[rows], lengths)
        start = np.minimum(self._num_computed[slots], (stop - USUAL_TOKENS).clip(0))
        self._num_computed[slots] = stop
        query_start = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(stop - start, out=query_start[1:])
        positions = np.arange(query_start[-1]) + np.repeat(start - query_start[:-1], stop - start)
        return NewTokens(
            slots=slots,
            input_ids=step.token_ids[np.repeat(slots, stop - start), positions].astype(np.int64),
            positions=positions,
            query_start=query_start,
            last=query_start[1:] - 1,
            lengths=lengths,
        )

    def _count_accepted(self, slot: int, token_ids: np.ndarray) -> None:
        """Count KV that was written while drafting, for accepted drafts."""
        start = int(self._num_computed[slot])
        for draft in self._drafts.pop(slot, [])[:-1]:
            if start == len(token_ids) or token_ids[start] != draft:
                break
            start += 1
        self._num_computed[slot] = start

    def _keep_probabilities(self, logits: list[Tensor], slots: np.ndarray) -> None:
        plan = self._sampler.plan(slots)
        tables = torch.stack([target_probabilities(part[: len(slots)], plan) for part in logits], dim=1)
        self._probabilities.update(zip(slots.tolist(), tables, strict=True))
