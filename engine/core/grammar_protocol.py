"""The seam between the engine and a grammar backend, which knows the tokens that may come next.

    SamplingParams.structured_outputs --compile, once--> CompiledGrammar --start, per request--> Grammar

A compiled grammar is shared. A Grammar is one request's place in it and lives with the Request, so that preemption,
resumption and drafts do not lose it. The worker sees only bits. Source: vLLM v1/structured_output/backend_types.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable


class GrammarError(ValueError):
    """A grammar that cannot be compiled, can never be satisfied, or grew beyond what fits in memory."""


@runtime_checkable
class Grammar(Protocol):
    """One request's place in its grammar.

        accept_tokens       [ {   "na   me"   : ]
                                              ^ fill_bitmask: what may follow here
        rollback(2)         [ {   "na ]

    End-of-sequence is a token like any other, allowed only where the output so far is complete.
    """

    def accept_tokens(self, token_ids: Sequence[int]) -> bool:
        """Advance by chosen tokens. False, with nothing changed, if one of them is not allowed."""

    def validate_tokens(self, token_ids: Sequence[int]) -> list[int]:
        """Return the longest prefix that would be accepted from here. Changes nothing."""

    def rollback(self, num_tokens: int) -> None:
        """Undo the last `num_tokens` accepted tokens."""

    def fill_bitmask(self, words: Any) -> None:
        """Write the tokens that may come next to `words`, contiguous int32 [ceil(V / 32)]: token v is bit v % 32 of
        word v // 32. All bits are written, those past the vocabulary as 0. May raise GrammarError."""

    def is_terminated(self) -> bool:
        """Whether end-of-sequence was accepted, so that no token may follow."""


@runtime_checkable
class CompiledGrammar(Protocol):
    """A grammar ready for any number of requests."""

    def start(self) -> Grammar:
        """Return a new request's place, before the first token."""
