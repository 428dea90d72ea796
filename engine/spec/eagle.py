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

from engine.spec.base import DrafterContext, DraftStep
from engine.spec.chain import NewTokens
from engine.spec.draft_model import ModelDrafter, spans


class EagleDrafter(ModelDrafter):
    """Draft with a head on the target's hidden states."""

    def __init__(self, context: DrafterContext) -> None:
        head, target = context.draft_model, context.model
        assert head is not None
        super().__init__(
            context,
            lambda input_ids, positions, hidden: head(target.embed_tokens(input_ids), hidden, positions),
            target,
            reads_hidden=True,
        )

    def propose(self, step: DraftStep) -> list[list[int]]:
        stops = np.minimum(step.starts + np.diff(step.query_start), step.lengths - 1)
        rows = np.flatnonzero(stops > step.starts)
        if not len(rows):
            return [[] for _ in step.max_drafts]
        # The first draft needs no block, later passes write after the newest token.
        counts = np.minimum(step.max_drafts, 1 + self._room(step))
        return self._run(self._new_tokens(step, rows, stops[rows]), step, rows, counts)

    def _new_tokens(self, step: DraftStep, rows: np.ndarray, stops: np.ndarray) -> NewTokens:
        """Return the tokens that the target has just computed, up to the last confirmed one."""
        slots, starts = step.slots[rows], step.starts[rows]
        counts, hidden = stops - starts, step.hidden
        query_start, positions = spans(starts, counts)
        if len(positions) < hidden.shape[0]:
            _, computed = spans(step.query_start[rows], counts)
            hidden = hidden[torch.from_numpy(computed).to(hidden.device)]
        input_ids = step.token_ids[np.repeat(slots, counts), positions + 1].astype(np.int64)
        return NewTokens(slots, input_ids, positions, query_start, step.lengths[rows], hidden)
