"""The learner's `propose` as a drafter of the engine."""

from __future__ import annotations

from engine.core.sched_output import RequestInit
from engine.spec.base import DrafterContext, DraftStep
from lessons.mine.errors import PieceError, ask
from lessons.mine.workspace import current

SETTINGS = {"num_speculative_tokens": 4, "disable_by_batch_size": 4}
"""Drafts in large batches cost more than they save: the rows already fill the processor."""


class MineDrafter:
    """Asks the learner's function for drafts of every row. The engine accepts those that the model agrees with."""

    def __init__(self, context: DrafterContext) -> None:
        piece = current()["drafter"]
        self._says, self._propose = piece.says, piece.item
        self._longest = context.config.prompt_lookup_max
        self._vocab_size = context.model_config.vocab_size

    def add_request(self, slot: int, init: RequestInit, start: int) -> None:
        pass

    def remove_request(self, slot: int) -> None:
        pass

    def propose(self, step: DraftStep) -> list[list[int]]:
        rows = zip(step.slots.tolist(), step.lengths.tolist(), step.max_drafts, strict=True)
        return [
            self._drafts(step.token_ids[slot, :length].tolist(), most) if most else []
            for slot, length, most in rows
        ]

    def _drafts(self, token_ids: list[int], most: int) -> list[int]:
        drafts = list(ask(self._says, f"{most} drafts", self._propose, token_ids, most, self._longest))
        if len(drafts) > most:
            raise PieceError(self._says, "at most num_drafts tokens", f"{len(drafts)} of {most}")
        if not all(type(token) is int and 0 <= token < self._vocab_size for token in drafts):
            raise PieceError(self._says, "drafts are token ids", f"{drafts}")
        return drafts
