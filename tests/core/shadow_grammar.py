"""A grammar for the shadow worker, which knows no masks: it writes down what it is told, and dislikes some drafts."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from engine.core.grammar_protocol import CompiledGrammar, GrammarError


class RecordingGrammar:
    """Accepts every token that the model says; of drafts, those before the first that `dislikes`."""

    def __init__(self) -> None:
        self.accepted: list[int] = []

    def accept_tokens(self, token_ids: Sequence[int]) -> bool:
        self.accepted += token_ids
        return True

    def validate_tokens(self, token_ids: Sequence[int]) -> list[int]:
        return list(token_ids[: next((i for i, token in enumerate(token_ids) if dislikes(token)), None)])

    def rollback(self, num_tokens: int) -> None:
        del self.accepted[len(self.accepted) - num_tokens :]

    def fill_bitmask(self, words: Any) -> None:
        words[:] = -1

    def is_terminated(self) -> bool:
        return False


def dislikes(token_id: int) -> bool:
    return token_id % 3 == 0


class Compiling:
    """A grammar that is ready some steps after it was asked for, or turns out to be wrong."""

    def __init__(self, step: int, num_steps: int, fails: bool) -> None:
        self.future: Future[CompiledGrammar] = Future()
        self.grammar = RecordingGrammar()
        self._due, self._fails = step + num_steps, fails
        self.at(step)

    def start(self) -> RecordingGrammar:
        return self.grammar

    def at(self, step: int) -> None:
        """A step begins."""
        if step < self._due or self.future.done():
            return
        if self._fails:
            self.future.set_exception(GrammarError("a planted error"))
        else:
            self.future.set_result(self)
