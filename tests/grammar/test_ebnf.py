"""Grammars as text for xgrammar: written so that its masks stay fast, and equal to those of our automaton."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from engine.config.features import StructuredOutputsConfig
from engine.grammar.ebnf import BLOCK, ebnf
from engine.grammar.json_schema import schema_rules
from engine.grammar.manager import GrammarCompiler
from engine.grammar.schema.layout import Layout
from engine.grammar.xgrammar_backend import MAX_LITERALS, MAX_RULE, is_small
from engine.sampling_params import StructuredOutputsParams
from tests.grammar.vocabularies import EOS, VOCABULARY, allowed

TEXTS: list[dict[str, Any]] = [
    {"type": "string", "maxLength": 500},
    {"type": "string", "minLength": 3, "maxLength": 30},
    {"type": "string", "minLength": 20},
    {"type": "string", "minLength": 1},
    {"type": "string"},
    {"type": "string", "pattern": "^[^a]*$", "maxLength": 40},
    {"type": "string", "pattern": "^(ab|[^b]){2,20}$"},
    {"type": "string", "pattern": "^(ab|é){2,20}$"},
    {"type": "array", "items": {"enum": ["a", 12]}, "minItems": 2, "maxItems": 30},
    {"type": "array", "items": {"maxLength": 20}, "minItems": 18},
]


def text_of(schema: Any) -> str:
    return ebnf(schema_rules(schema, Layout(False, 20)))


@pytest.mark.parametrize("schema", TEXTS, ids=str)
def test_counted_texts_have_the_masks_of_the_automaton_up_to_their_limit(schema: dict[str, Any]) -> None:
    pytest.importorskip("xgrammar")
    of_dfa, of_library = (
        GrammarCompiler(VOCABULARY, StructuredOutputsConfig(backend)).compile(
            StructuredOutputsParams(json=schema)
        )
        for backend in ("dfa", "xgrammar")
    )
    for seed in range(4):
        rng = random.Random(seed)
        ours, theirs = of_dfa.start(), of_library.start()
        for step in range(600):
            expected = allowed(ours)
            assert allowed(theirs) == expected, (seed, step)
            lasting = [token for token in expected if b'"' not in VOCABULARY.token_bytes[token]] or expected
            token = rng.choice(sorted(expected if rng.random() < 0.02 else lasting))
            assert ours.accept_tokens([token]) and theirs.accept_tokens([token])
            if token == EOS:
                break


@pytest.mark.parametrize("schema", [schema for schema in TEXTS if schema["type"] == "string"], ids=str)
def test_the_library_counts_only_classes(schema: dict[str, Any]) -> None:
    """The library follows all rounds of others that are written, in each step: 1.1 s per mask with maxLength 500."""
    assert not re.search(r"\)\{", text_of(schema))


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": "string", "pattern": "^[^a]*$"}, {}])
def test_a_round_of_a_free_string_is_a_class_and_no_rule(schema: dict[str, Any]) -> None:
    """The library tries tokens one by one if they pass the end of a rule."""
    assert re.search(r'"\\"" \[[^]]+\]\* \(\w+ \[[^]]+\]\*\)\* "\\""', text_of(schema))


def test_all_strings_of_a_schema_share_the_rules_of_their_counts() -> None:
    few = text_of({"properties": {"a": {"type": "string", "maxLength": 500}}})
    several = text_of(
        {"properties": {f"a{most}": {"type": "string", "maxLength": most} for most in (116, 244, 500)}}
    )
    assert 2 * BLOCK < len(few.splitlines()) < 3 * BLOCK
    assert len(several.splitlines()) < len(few.splitlines()) + 20


@pytest.mark.parametrize("most", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 5 * BLOCK + 7, 100_000])
@pytest.mark.parametrize("least", [0, 1, BLOCK - 1])
def test_a_string_ends_exactly_between_its_limits(least: int, most: int) -> None:
    pytest.importorskip("xgrammar")
    compile_ = GrammarCompiler(VOCABULARY, StructuredOutputsConfig("xgrammar")).compile
    schema = {"type": "string", "minLength": least, "maxLength": most}
    grammar = compile_(StructuredOutputsParams(json=schema)).start()
    quote, letter, letters = (VOCABULARY.token_bytes.index(each) for each in (b'"', b"a", b"abc"))
    written = 0

    def write(total: int) -> None:
        nonlocal written
        few = (total - written) % 3
        assert grammar.accept_tokens([letters] * ((total - written) // 3) + [letter] * few)
        written = total

    assert grammar.accept_tokens([quote])
    if least:
        write(least - 1)
        assert quote not in allowed(grammar)
    write(max(least, most - 1))
    assert quote in allowed(grammar) and letters not in allowed(grammar)
    write(most)
    assert allowed(grammar) == {quote}
    assert grammar.accept_tokens([quote, EOS])


def test_many_words_are_compiled_ahead() -> None:
    """The library needs minutes to prepare the automaton of 10,000 words for masks on first use."""
    assert is_small(text_of({"type": "string", "maxLength": 100_000}))
    words = [f"word number {i}" for i in range(10_000)]
    assert not is_small(text_of({"enum": words}))
    assert not is_small(text_of({"properties": {f"a{i}": {"enum": words[:900]} for i in range(9)}}))
    assert not is_small(f'root ::= "{"a" * (MAX_LITERALS + 1)}"')
    assert not is_small("root ::= " + "[a] " * (MAX_RULE // 4))
    pytest.importorskip("xgrammar")
    compile_ = GrammarCompiler(VOCABULARY, StructuredOutputsConfig("xgrammar")).compile
    assert allowed(compile_(StructuredOutputsParams(json={"enum": words})).start())


@pytest.mark.parametrize("before", ['[^"] x', '[^\\]"] x', '"\\"" x', 'x # a "'])
def test_quotes_in_classes_and_comments_of_a_clients_grammar_open_no_literal(before: str) -> None:
    assert not is_small(f'root ::= {before}\nx ::= "{"a" * MAX_LITERALS}" "a"')
    assert is_small(f'root ::= {before}\nx ::= "{"a" * (MAX_LITERALS // 2)}"')


def test_quotes_that_stay_open_are_searched_once() -> None:
    """A search from each of them to the end takes hours for this text, and stops the server meanwhile."""
    assert not is_small("root ::= " + '\\"' * 1_000_000)
