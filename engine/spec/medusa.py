"""Medusa: one draft per head, all from the state in front of the newest token.

    position      6          7          8          9          10
    tokens        t6         t7         t8                               t8: the newest token, which f7 gave
    states                   f7 -----------------> head 0's draft
                             f7 ----------------------------> head 1's draft

The heads have no attention and no KV: the drafts of a step depend on one state, and nothing is kept between steps.
They do not see t8. At temperature 0 the state determines it; otherwise the drafts fit the most likely t8, not the one
that was drawn. The paper checks a tree of each head's best tokens; vLLM 0.32 and this engine check one draft per head.

Sources: Cai et al. 2024; vLLM v1/spec_decode/medusa.py. The heads: engine/models/medusa.py, engine/zoo/medusa.py.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch

from engine.core.sched_output import RequestInit
from engine.models.medusa import MedusaHeads
from engine.spec.base import DrafterContext, DraftStep


class MedusaDrafter:
    """Draft the most likely token of each head."""

    def __init__(self, context: DrafterContext) -> None:
        self._heads = cast(MedusaHeads, context.draft_model)
        self._target = context.model

    def add_request(self, slot: int, init: RequestInit, start: int) -> None:
        pass

    def remove_request(self, slot: int) -> None:
        pass

    def propose(self, step: DraftStep) -> list[list[int]]:
        drafts: list[list[int]] = [[] for _ in step.max_drafts]
        rows = np.flatnonzero(step.max_drafts)
        if not len(rows):
            return drafts
        # The newest token is at lengths - 1; its state is not computed yet, that of the token before it is.
        last = step.query_start[rows] + step.lengths[rows] - 2 - step.starts[rows]
        hidden = step.hidden[torch.from_numpy(last).to(step.hidden.device)]
        logits = self._heads(hidden, max(step.max_drafts), self._target.compute_logits)
        columns = torch.stack([logit.argmax(-1) for logit in logits], dim=1).tolist()
        for row, tokens in zip(rows.tolist(), columns, strict=True):
            drafts[row] = tokens[: step.max_drafts[row]]
        return drafts
