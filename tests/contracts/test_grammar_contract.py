"""Contract of grammar backends.

A backend is tested through its compiled grammars: `Class(pattern, vocabulary)` compiles a regular expression for an
`engine.grammar.vocabulary.Vocabulary`, and `start()` gives a request its place in it. A set of texts is exactly what
its masks let through.
"""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from engine.config import StructuredOutputsConfig
from engine.core.grammar_protocol import CompiledGrammar, Grammar
from engine.grammar.manager import GrammarCompiler
from engine.grammar.vocabulary import Vocabulary
from engine.sampling_params import StructuredOutputsParams
from tests.grammar.vocabularies import EOS, VOCABULARY, allowed, said

PATTERNS = [
    "[0-9]{2,4}",
    "ab(c|ab)*",
    r"(true|false|null)( and (true|false))?",
    "[^a]{1,3}b?",
    r'\{"a": [12]+\}',
]

SPEAKING = [t for t in range(len(VOCABULARY)) if VOCABULARY.token_bytes[t] or t == EOS]
"""All others say nothing: no mask may allow them."""


def dfa(pattern: str, vocabulary: Vocabulary) -> CompiledGrammar:
    return _ours("dfa", pattern, vocabulary)


def xgrammar(pattern: str, vocabulary: Vocabulary) -> CompiledGrammar:
    pytest.importorskip("xgrammar")
    return _ours("xgrammar", pattern, vocabulary)


def _ours(backend: str, pattern: str, vocabulary: Vocabulary) -> CompiledGrammar:
    compiler = GrammarCompiler(vocabulary, StructuredOutputsConfig(backend))
    return compiler.compile(StructuredOutputsParams(regex=pattern))


@pytest.fixture(params=[dfa, xgrammar])
def compile_pattern(request: pytest.FixtureRequest, grammar_class: Any) -> Any:
    """Both of ours, or the one that --impl names."""
    if grammar_class is not None and request.param is xgrammar:
        pytest.skip("judged once")
    return grammar_class or request.param


@pytest.mark.parametrize("pattern", PATTERNS)
def test_whatever_the_masks_let_through_matches_and_ends_where_it_may(
    compile_pattern: Any, pattern: str
) -> None:
    compiled = compile_pattern(pattern, VOCABULARY)
    for seed in range(10):
        text = random_walk(compiled.start(), random.Random(seed), pattern)
        if text is not None:
            assert is_match(pattern, text), (pattern, text)


def random_walk(grammar: Grammar, rng: random.Random, pattern: str) -> bytes | None:
    """A random output, checking every mask on the way; None if it has not ended after 30 tokens."""
    token_ids: list[int] = []
    for _ in range(30):
        choices = allowed(grammar)
        assert choices == {t for t in SPEAKING if grammar.validate_tokens([t])}, "mask and validate differ"
        assert (EOS in choices) == is_match(pattern, said(token_ids)), (
            f"end-of-sequence after {said(token_ids)!r}"
        )
        token_id = rng.choice(sorted(choices))
        assert grammar.accept_tokens([token_id])
        if token_id == EOS:
            assert grammar.is_terminated() and not allowed(grammar)
            return said(token_ids)
        assert not grammar.is_terminated()
        token_ids.append(token_id)
    return None


def is_match(pattern: str, text: bytes) -> bool:
    try:
        return re.fullmatch(pattern, text.decode(), re.ASCII) is not None
    except UnicodeDecodeError:  # it stopped inside a character
        return False


def test_tokens_taken_back_leave_no_trace(compile_pattern: Any) -> None:
    grammar = compile_pattern("ab(c|ab)*", VOCABULARY).start()
    a, b, c = (VOCABULARY.token_bytes.index(letter) for letter in (b"a", b"b", b"c"))
    masks = [allowed(grammar)]
    for token_id in (a, b, c):
        assert grammar.accept_tokens([token_id])
        masks.append(allowed(grammar))
    grammar.rollback(2)
    assert allowed(grammar) == masks[1]
    assert grammar.accept_tokens([b, c, EOS]) and grammar.is_terminated()
    grammar.rollback(1)
    assert not grammar.is_terminated() and allowed(grammar) == masks[3]


def test_a_forbidden_token_changes_nothing_whatever_came_before_it(compile_pattern: Any) -> None:
    grammar = compile_pattern("ab(c|ab)*", VOCABULARY).start()
    a, b, x = (VOCABULARY.token_bytes.index(letter) for letter in (b"a", b"b", b"x"))
    before = allowed(grammar)
    assert not grammar.accept_tokens([a, b, x])
    assert allowed(grammar) == before
    assert grammar.validate_tokens([a, b, EOS, a]) == [a, b, EOS], "nothing follows end-of-sequence"
    assert grammar.validate_tokens([a, x, b]) == [a]
    assert allowed(grammar) == before


def test_requests_that_share_a_grammar_do_not_share_their_place_in_it(compile_pattern: Any) -> None:
    compiled = compile_pattern("[0-9]{2,4}", VOCABULARY)
    one, other = compiled.start(), compiled.start()
    before = allowed(other)
    assert one.accept_tokens([VOCABULARY.token_bytes.index(b"7")])
    assert allowed(other) == before
