"""Masks from automata: exactly the tokens that lead on, for any vocabulary."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.grammar import dfa_backend
from engine.grammar.dfa_backend import CompiledDFA
from engine.grammar.manager import fill_positions
from engine.grammar.regex import parse
from engine.grammar.vocabulary import TokenTrie, Vocabulary
from tests.grammar.vocabularies import EOS, VOCABULARY, allowed, said


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=4), max_size=40))
def test_every_token_is_found_at_the_end_of_its_bytes_in_the_trie(token_bytes: list[bytes]) -> None:
    trie = TokenTrie(token_bytes)
    spelled = [b""] * trie.num_nodes
    for level in trie.levels:
        for offset, (parent, label) in enumerate(zip(level.parents, level.labels, strict=True)):
            spelled[level.first + offset] = spelled[parent] + bytes([label])
    assert len(set(spelled)) == trie.num_nodes, "one node per different start"
    assert [spelled[node] for node in trie.node_of] == [token_bytes[token] for token in trie.token_ids]
    assert set(trie.token_ids.tolist()) == {i for i, spelling in enumerate(token_bytes) if spelling}


@pytest.mark.parametrize(
    "pattern",
    ["[a-c]+", "(true|false)", r"(é|東|😀)+a?", ".*", "[^x]{1,2}", r"\{\"a\": [0-9.]+\}", "abc|abab"],
)
def test_a_mask_is_what_stepping_through_every_token_gives(pattern: str) -> None:
    compiled = CompiledDFA(parse(pattern), VOCABULARY)
    for seed in range(5):
        rng, grammar, token_ids = random.Random(seed), compiled.start(), []
        for _ in range(12):
            choices = allowed(grammar)
            place = compiled.dfa.after(compiled.dfa.start, said(token_ids))
            assert choices == {t for t in range(len(VOCABULARY)) if compiled.place_after(place, t) != b""}
            token_id = rng.choice(sorted(choices))
            grammar.accept_tokens([token_id])
            if token_id == EOS:
                break
            token_ids.append(token_id)


def test_tokens_that_begin_or_end_inside_a_character_are_allowed_where_they_fit() -> None:
    grammar = CompiledDFA(parse("東a"), VOCABULARY).start()
    first, second, last_and_a = (VOCABULARY.token_bytes.index(b) for b in (b"\xe6", b"\x9d", b"\xb1a"))
    assert allowed(grammar) == {first}
    assert grammar.accept_tokens([first, second])
    assert last_and_a in allowed(grammar)
    assert grammar.accept_tokens([last_and_a])
    assert allowed(grammar) == {EOS}


def test_a_state_is_masked_once() -> None:
    compiled = CompiledDFA(parse("[ab]*"), VOCABULARY)
    grammar = compiled.start()
    a = VOCABULARY.token_bytes.index(b"a")
    made = []
    make = compiled._make_mask
    compiled._make_mask = lambda place: made.append(place) or make(place)
    for _ in range(20):
        allowed(grammar)
        grammar.accept_tokens([a])
    assert len(made) == len(set(made)) <= 2


@pytest.mark.parametrize(("max_bytes", "num_kept"), [(0, 16), (10_000, 30), (1 << 20, 51)])
def test_kept_masks_stay_bounded(max_bytes: int, num_kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dfa_backend, "MAX_MASK_BYTES", max_bytes)
    compiled = CompiledDFA(parse("a{0,50}"), VOCABULARY)
    grammar, a = compiled.start(), VOCABULARY.token_bytes.index(b"a")
    for _ in range(50):
        assert a in allowed(grammar)
        grammar.accept_tokens([a])
    assert allowed(grammar) == {EOS} and len(compiled._masks) == num_kept


def test_a_vocabulary_of_any_size_packs_into_whole_words() -> None:
    for size in (1, 31, 32, 33, 100):
        vocabulary = Vocabulary([b"a"] * size, frozenset({0}))
        assert allowed(CompiledDFA(parse("a+"), vocabulary).start(), vocabulary) == set(range(1, size))


def test_positions_behind_drafts_get_masks_of_their_own_and_the_grammar_stays_put() -> None:
    compiled = CompiledDFA(parse("abc"), VOCABULARY)
    grammar = compiled.start()
    a, b, c = (VOCABULARY.token_bytes.index(letter) for letter in (b"a", b"b", b"c"))
    expected = []
    for token_id in (a, b, c):
        expected.append(allowed(grammar))
        grammar.accept_tokens([token_id])
    grammar.rollback(3)
    words = np.zeros((4, VOCABULARY.num_words), np.int32)
    fill_positions(grammar, [a, b, c], words)
    masks = [set(np.flatnonzero(np.unpackbits(line.view(np.uint8), bitorder="little"))) for line in words]
    assert masks == [*expected, {EOS}]
    assert allowed(grammar) == expected[0]


def test_behind_a_draft_that_ends_the_output_everything_is_allowed_because_nothing_is_used() -> None:
    grammar = CompiledDFA(parse("a"), VOCABULARY).start()
    a = VOCABULARY.token_bytes.index(b"a")
    words = np.zeros((4, VOCABULARY.num_words), np.int32)
    fill_positions(grammar, [a, EOS, a], words)
    assert (words[2:] == -1).all() and not (words[:2] == -1).all()
    assert a in allowed(grammar)
