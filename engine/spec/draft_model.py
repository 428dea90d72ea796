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
from engine.models.loader import CausalLM
from engine.sample.draft_acceptance import DRAFT_NOISE, target_probabilities
from engine.spec.base import DrafterContext, DraftStep
from engine.spec.chain import DraftChain, DraftModel, NewTokens

USUAL_TOKENS = 2  # Tokens of pass 0 in most steps: the last draft, if all were accepted, and the newest token


class ModelDrafter:
    """Base of drafters that run a `DraftChain`; they keep the distributions of drafts for rejection sampling."""

    def __init__(
        self, context: DrafterContext, run: DraftModel, model: CausalLM, *, reads_hidden: bool = False
    ) -> None:
        """model: the one whose output head scores the states that `run` returns."""
        self._sampler = context.sampler
        self._keeps_probabilities = context.config.verifier == "rejection"
        tag = DRAFT_NOISE if self._keeps_probabilities else 0
        self._chain = DraftChain(run, model.compute_logits, context, noise_tag=tag, reads_hidden=reads_hidden)
        self._probabilities: dict[int, Tensor] = {}

    def add_request(self, slot: int, init: RequestInit, start: int) -> None:
        pass

    def remove_request(self, slot: int) -> None:
        self._probabilities.pop(slot, None)

    def draft_probabilities(self, slot: int) -> Tensor | None:
        """Slot -> fp32 [k, V]: distributions of its last drafts."""
        return self._probabilities.get(slot)

    def _room(self, step: DraftStep) -> np.ndarray:
        """Return [R]: positions with blocks from the newest token's on, whose KV is yet to be written."""
        return (step.num_blocks[step.slots] * self._chain.block_size - (step.lengths - 1)).clip(0)

    def _run(self, new: NewTokens, step: DraftStep, rows: np.ndarray, counts: np.ndarray) -> list[list[int]]:
        """Return up to counts[row] drafts for each row of the step; none for those that are not in `rows`."""
        drafted = self._chain.run(new, step, self._sampler, max(1, int(counts.max())))
        columns = [token_ids.tolist() for token_ids in drafted.token_ids]
        drafts: list[list[int]] = [[] for _ in step.max_drafts]
        for place, row in enumerate(rows.tolist()):
            drafts[row] = [column[place] for column in columns[: max(0, counts[row])]]
        if self._keeps_probabilities:
            plan = self._sampler.plan(new.slots)
            tables = [target_probabilities(part[: len(rows)], plan) for part in drafted.logits]
            self._probabilities.update(zip(new.slots.tolist(), torch.stack(tables, dim=1), strict=True))
        return drafts


def spans(starts: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return query_start [R + 1] and the positions starts[r] .. starts[r] + counts[r] - 1 of all rows, packed."""
    query_start = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=query_start[1:])
    return query_start, np.arange(query_start[-1]) + np.repeat(starts - query_start[:-1], counts)


class DraftModelDrafter(ModelDrafter):
    """Draft with a second model that shares the target's vocabulary and blocks."""

    def __init__(self, context: DrafterContext) -> None:
        model = cast(CausalLM, context.draft_model)
        super().__init__(
            context, lambda input_ids, positions, _: cast(Tensor, model(input_ids, positions)), model
        )
        self._num_computed = np.zeros(context.num_slots, np.int64)
        self._drafts: dict[int, list[int]] = {}  # Slot -> tokens of the last drafts; all but the last have KV

    def add_request(self, slot: int, init: RequestInit, start: int) -> None:
        self._num_computed[slot] = start

    def remove_request(self, slot: int) -> None:
        super().remove_request(slot)
        self._drafts.pop(slot, None)

    def propose(self, step: DraftStep) -> list[list[int]]:
        ends = step.starts + np.diff(step.query_start)
        goes_on = ends < step.lengths - 1  # the prompt continues in the next step
        counts = np.minimum(step.max_drafts, self._room(step))
        rows = np.flatnonzero((counts > 0) | goes_on)
        if not len(rows):
            return [[] for _ in step.max_drafts]
        stops = np.where(goes_on, ends, step.lengths)[rows]
        drafts = self._run(self._new_tokens(step, rows, stops), step, rows, counts)
        for row, slot in zip(rows, step.slots[rows].tolist(), strict=True):
            self._drafts[slot] = drafts[row]
        return drafts

    def _new_tokens(self, step: DraftStep, rows: np.ndarray, stops: np.ndarray) -> NewTokens:
        slots, lengths = step.slots[rows], step.lengths[rows]
        for slot, length in zip(slots.tolist(), lengths.tolist(), strict=True):
            self._count_accepted(slot, step.token_ids[slot, :length])
        starts = np.minimum(self._num_computed[slots], (stops - USUAL_TOKENS).clip(0))
        self._num_computed[slots] = stops
        query_start, positions = spans(starts, stops - starts)
        input_ids = step.token_ids[np.repeat(slots, stops - starts), positions].astype(np.int64)
        return NewTokens(slots, input_ids, positions, query_start, lengths)

    def _count_accepted(self, slot: int, token_ids: np.ndarray) -> None:
        """Count KV that was written while drafting, for accepted drafts."""
        start = int(self._num_computed[slot])
        for draft in self._drafts.pop(slot, [])[:-1]:
            if start == len(token_ids) or token_ids[start] != draft:
                break
            start += 1
        self._num_computed[slot] = start
