"""EAGLE: one layer that extrapolates the target's hidden states, with the target's output head.

    position            4          5          6          7
    target computed     t4         t5         d6         d7        d6 was right, d7 not: the token there is t7
    its states          f4         f5         f6         (f7)
    head reads          f4, t5     f5, d6     f6, t7               pass 0: draft for 8
    then                                                 g, d8     pass 1: its own state g in place of f7

The head's keys at a position depend on the next token. So the last block of a prefix hit is recomputed
(`CacheConfig.drop_last_hit_block`): the token after it may differ. Every step runs the head, also without drafts,
because the target's states are not kept.

Sources: EAGLE, Li et al. 2024; vLLM v1/spec_decode/eagle.py. The head itself: engine/models/llama.py.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.core.sched_output import RequestInit
from engine.sample.draft_acceptance import DRAFT_NOISE, target_probabilities
from engine.spec.base import DrafterContext, DraftStep
from engine.spec.chain import DraftChain, NewTokens


class EagleDrafter:
    """Draft with a head on the target's hidden states."""

    def __init__(self, context: DrafterContext) -> None:
        assert context.draft_model is not None
        head, target = context.draft_model, context.model
        self._sampler = context.sampler
        self._keeps_probabilities = context.config.verifier == "rejection"
        self._chain = DraftChain(
            lambda input_ids, positions, hidden: head(target.embed_tokens(input_ids), hidden, positions),
            target.compute_logits,
            context.backend,
            context.kv_cache,
            max_position=context.max_model_len,
            reads_hidden=True,
            record=context.record,
            noise_tag=DRAFT_NOISE if self._keeps_probabilities else 0,
        )
        self._probabilities: dict[int, Tensor] = {}

    def add_request(self, slot: int, init: RequestInit, start: int) -> None:
        pass

    def remove_request(self, slot: int) -> None:
        self._probabilities.pop(slot, None)

    def draft_probabilities(self, slot: int) -> Tensor | None:
        """Slot -> fp32 [k, V]: distributions of its last drafts."""
        return self._probabilities.get(slot)

    def propose(self, step: DraftStep) -> list[list[int]]:
        drafts: list[list[int]] = [[] for _ in step.max_drafts]
        stops = np.minimum(step.starts + np.diff(step.query_start), step.lengths - 1)
        rows = np.flatnonzero(stops > step.starts)
        if not len(rows):
            return drafts
        counts = np.minimum(step.max_drafts, self._room(step))
        most = max(1, int(counts.max()))
        drafted = self._chain.run(self._new_tokens(step, rows, stops[rows]), step, self._sampler, most)
        columns = [token_ids.tolist() for token_ids in drafted.token_ids]
        for place, row in enumerate(rows.tolist()):
            drafts[row] = [column[place] for column in columns[: counts[row]]]
        if self._keeps_probabilities:
            slots = step.slots[rows]
            plan = self._sampler.plan(slots)
            tables = torch.stack(
                [target_probabilities(part[: len(slots)], plan) for part in drafted.logits], dim=1
            )
            self._probabilities.update(zip(slots.tolist(), tables, strict=True))
        return drafts

    def _room(self, step: DraftStep) -> np.ndarray:
        """Limit drafts to positions with blocks; the first needs none, later passes write after the newest token."""
        return 1 + (step.num_blocks[step.slots] * self._chain.block_size - (step.lengths - 1)).clip(0)

    def _new_tokens(self, step: DraftStep, rows: np.ndarray, stops: np.ndarray) -> NewTokens:
        """Return the tokens that the target has just computed, up to the last confirmed one."""
        slots, starts = step.slots[rows], step.starts[rows]
        counts = stops - starts
        query_start = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=query_start[1:])
        within = np.arange(query_start[-1]) - np.repeat(query_start[:-1], counts)
        positions = np.repeat(starts, counts) + within
        hidden = step.hidden
        if len(positions) < hidden.shape[0]:
            hidden = hidden[
                torch.from_numpy(np.repeat(step.query_start[rows], counts) + within).to(hidden.device)
            ]
        return NewTokens(
            slots=slots,
            input_ids=step.token_ids[np.repeat(slots, counts), positions + 1].astype(np.int64),
            positions=positions,
            query_start=query_start,
            last=query_start[1:] - 1,
            lengths=step.lengths[rows],
            hidden=hidden,
        )
