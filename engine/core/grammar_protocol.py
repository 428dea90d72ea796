"""The seam between the engine and whatever knows which tokens may come next.

    SamplingParams.structured_outputs --compile, once--> CompiledGrammar --start, per request--> Grammar

A compiled grammar is shared; a Grammar is one request's place in it and lives with the Request, so that
preemption, resumption and drafts never lose it. The worker only ever sees bits. Source: vLLM
v1/structured_output/backend_types.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable


class GrammarError(ValueError):
    """A grammar that cannot be compiled, can never be satisfied, or grew beyond what fits in memory."""


@runtime_checkable
class Grammar(Protocol):
    """How far one request's output has come in its grammar.

        accept_tokens       [ {   "na   me"   : ]
                                              ^ fill_bitmask: what may follow here
        rollback(2)         [ {   "na ]

    End-of-sequence is a token like any other, allowed only where the output so far is complete.
    """

    def accept_tokens(self, token_ids: Sequence[int]) -> bool:
        """Advance by tokens that were chosen. False, with nothing changed, if one of them is not allowed."""
        ...

    def validate_tokens(self, token_ids: Sequence[int]) -> list[int]:
        """The longest prefix that would be accepted from here. Changes nothing."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take the last accepted tokens back."""
        ...

    def fill_bitmask(self, words: Any) -> None:
        """Write which tokens may come next to `words`, contiguous int32 [ceil(V / 32)]: token v is bit v % 32
        of word v // 32. All bits are written, those past the vocabulary as 0. May raise GrammarError."""
        ...

    def is_terminated(self) -> bool:
        """Whether end-of-sequence was accepted: nothing may follow."""
        ...


@runtime_checkable
class CompiledGrammar(Protocol):
    """A grammar ready for use by any number of requests."""

    def start(self) -> Grammar:
        """A request's own place, before the first token."""
        ...
