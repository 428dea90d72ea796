"""Grammars over a toy vocabulary with the engine's automaton backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.grammar.dfa_backend import CompiledDFA


def compile_regex(tokens: Sequence[str], regex: str) -> CompiledDFA:
    """Compile `regex` for a vocabulary of these tokens; the token after the last one ends an output."""
    from engine.grammar.dfa_backend import CompiledDFA
    from engine.grammar.regex import parse
    from engine.grammar.vocabulary import Vocabulary

    spelled = [*(token.encode() for token in tokens), b""]
    return CompiledDFA(parse(regex), Vocabulary(spelled, frozenset({len(tokens)})))


def bits_of(words: Sequence[int], size: int) -> list[int]:
    """Return the token ids whose bit is set: token v is bit v % 32 of word v // 32."""
    return [token for token in range(size) if int(words[token // 32]) >> (token % 32) & 1]
