"""Lab grammar-mask: the tokens that a grammar allows next, from an automaton over bytes.

The seam is a grammar backend (engine/core/grammar_protocol.py; ours is engine/grammar/dfa_backend.py). An automaton
reads the output byte by byte. A token is allowed if its bytes lead from the current state to a state of the automaton:
a token may cross several states, and it may begin or end within a character. The sampler sets the logits of all other
tokens to minus infinity.

    pattern  "yes|yeah"      state 1 -y-> 2 -e-> 3 -s-> 4 (accepting)
                                                 3 -a-> 5 -h-> 4
    tokens   0 "y"  1 "ye"  2 "yes"  3 "es"  4 "ah"  5 "yet"  6 "" (special)  7 "" (end of sequence)

    place = grammar.start()      place.mask()  -> 0b00000111      y, ye, yes
    place.accept([0])  -> True   place.mask()  -> 0b00001000      es
    place.accept([3])  -> True   place.mask()  -> 0b10000000      end of sequence

A mask is an array("I") of ceil(V / 32) words for V tokens: token v is bit v % 32 of word v // 32, all other bits are 0.
The automaton builds a state when it is first asked for, which is expensive, and a request visits the same states again
and again: ask once per state, build one mask per state, and share both among all requests.
Sources: Willard and Louf 2023 (2307.09702); vLLM v1/structured_output/backend_types.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence

State = tuple[dict[int, int], bool]
"""Byte -> next state, without the bytes that lead nowhere, and whether the text so far is complete."""


class Grammar:
    """A grammar with a vocabulary, ready for any number of requests."""

    def __init__(
        self, automaton: Callable[[int], State], start: int, tokens: Sequence[bytes], eos: Collection[int]
    ) -> None:
        """automaton: returns a state by its number, 0 or more; call it at most once for each state.

        start: number of the first state. tokens: bytes of each token id; b"" for special tokens, which are never
        allowed. eos: ids of end of sequence, allowed where the text is complete, whatever their bytes. From every
        state of the automaton a complete text can be reached.
        """
        raise NotImplementedError("write Grammar")

    def start(self) -> Place:
        """Return the place of a new request, before its first token."""
        raise NotImplementedError("write start")


class Place:
    """One request's place in its grammar. `Grammar.start` makes it."""

    def __init__(self, grammar: Grammar) -> None:
        raise NotImplementedError("write Place")

    @property
    def is_ended(self) -> bool:
        """Whether end of sequence was accepted."""
        raise NotImplementedError("write is_ended")

    def mask(self) -> array[int]:
        """Return the mask of the tokens that may come next; all bits are 0 after end of sequence.

        Places in one state get the same object, each time: the engine copies from it and does not change it.
        """
        raise NotImplementedError("write mask")

    def accept(self, token_ids: Sequence[int]) -> bool:
        """Advance by tokens that were chosen. Return False, and change nothing, if one of them is not allowed.

        Ids outside of the vocabulary are not allowed. After end of sequence no token is.
        """
        raise NotImplementedError("write accept")

    def validate(self, token_ids: Sequence[int]) -> list[int]:
        """Return the longest prefix of these tokens that `accept` would accept. Change nothing."""
        raise NotImplementedError("write validate")

    def rollback(self, count: int) -> None:
        """Undo the last `count` accepted tokens, also those of several calls and end of sequence.

        Raises ValueError, and changes nothing, for a negative count and for more tokens than were accepted.
        """
        raise NotImplementedError("write rollback")
