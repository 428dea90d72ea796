"""The table of an automaton is shared by all texts and dropped when full: no text changes what another may say."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import LLM, SamplingParams
from engine.core.grammar_protocol import GrammarError
from engine.grammar import dfa as dfa_module
from engine.grammar.dfa import DFA, NFA
from engine.grammar.dfa_backend import CompiledDFA, DFAGrammar
from engine.grammar.regex import parse
from tests.grammar.vocabularies import BYTES, EOS, VOCABULARY, allowed

OVERLAPPING = r"(\w+\s?){1,30}"
PATTERNS = [OVERLAPPING, "([A-Za-z]+[ .,]?){1,20}", "[ab]*a[ab]{9}", "(é|東|[a-c]{1,3}){0,12}"]
A, B, SPACE = (BYTES.index(letter) for letter in (b"a", b"b", b" "))


class Text:
    """A random text: steps of a request, each with the mask before it and a rollback now and then."""

    def __init__(self, grammar: DFAGrammar, seed: int) -> None:
        self.grammar, self.rng = grammar, random.Random(seed)
        self.token_ids: list[int] = []
        self.seen: list[object] = []

    def step(self) -> None:
        choices = sorted(allowed(self.grammar))
        drafts = self.rng.choices([A, B, SPACE], k=4)
        self.seen.append((choices, self.grammar.validate_tokens(drafts)))
        if self.rng.random() < 0.2:
            num_tokens = self.rng.randint(0, len(self.token_ids))
            self.grammar.rollback(num_tokens)
            del self.token_ids[len(self.token_ids) - num_tokens :]
        elif choices and (token_id := self.rng.choice(choices)) != EOS:
            assert self.grammar.accept_tokens([token_id])
            self.token_ids.append(token_id)


@pytest.fixture
def drops(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """States in the table at each drop."""
    found: list[int] = []
    drop = DFA._empty_table

    def count(self: DFA) -> None:
        found.append(self.num_states if hasattr(self, "_places") else 0)
        drop(self)

    monkeypatch.setattr(DFA, "_empty_table", count)
    return found


def alone(pattern: str, seeds: Iterable[int], num_steps: int) -> list[list[object]]:
    texts = [Text(CompiledDFA(parse(pattern), VOCABULARY).start(), seed) for seed in seeds]
    for text in texts:
        for _ in range(num_steps):
            text.step()
    return [text.seen for text in texts]


def num_members(dfa: DFA) -> int:
    return sum(len(place) // 4 for place in dfa._places)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("max_states", "max_members"), [(40, 10**6), (10**6, 1_200)])
def test_20_texts_in_one_full_table_see_what_each_sees_alone_in_a_large_one(
    pattern: str, max_states: int, max_members: int, drops: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = alone(pattern, range(20), 40)
    del drops[:]
    monkeypatch.setattr(dfa_module, "MAX_DFA_STATES", max_states)
    monkeypatch.setattr(dfa_module, "MAX_MEMBERS", max_members)
    compiled = CompiledDFA(parse(pattern), VOCABULARY)
    texts = [Text(compiled.start(), seed) for seed in range(20)]
    for _ in range(40):
        for text in texts:
            text.step()
            assert compiled.dfa.num_states <= max_states and num_members(compiled.dfa) <= max_members
    assert [text.seen for text in texts] == expected
    assert len(drops) > 3, "the table was never full"


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PATTERNS), st.integers(3, 30), st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_a_table_too_small_for_one_mask_changes_no_text(pattern: str, bound: int, turns: list[int]) -> None:
    """The turns of four texts come in any order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dfa_module, "MAX_DFA_STATES", bound)
        compiled = CompiledDFA(parse(pattern), VOCABULARY)
        texts = [Text(compiled.start(), seed) for seed in range(4)]
        for turn in turns:
            texts[turn].step()
    for seed, text in enumerate(texts):
        assert [text.seen] == alone(pattern, [seed], len(text.seen))


@pytest.mark.parametrize("max_states", [3, 4, 5])
def test_a_mask_that_alone_fills_the_table_is_made_in_parts(
    max_states: int, drops: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start leads to three states, "ab" to another."""
    expected = allowed(CompiledDFA(parse("x*|(ab|ac|ad|cd)"), VOCABULARY).start())
    monkeypatch.setattr(dfa_module, "MAX_DFA_STATES", max_states)
    compiled = CompiledDFA(parse("x*|(ab|ac|ad|cd)"), VOCABULARY)
    del drops[:]
    for _ in range(3):
        grammar = compiled.start()
        assert allowed(grammar) == expected
        assert grammar.validate_tokens([A, B]) == [A, B]
    assert drops, "the table was never full"


def test_the_states_of_a_single_step_need_not_fit(drops: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the midst of this pattern a state has more positions than the table may have in all."""
    pattern = "(a|b|ab){300}"
    expected = alone(pattern, range(2), 150)
    monkeypatch.setattr(dfa_module, "MAX_MEMBERS", 60)
    del drops[:]
    assert alone(pattern, range(2), 150) == expected
    dfa = DFA(parse(pattern))
    assert len(dfa.after(dfa.start, b"ab" * 60)) // 4 > 60 and len(drops) > 100


@pytest.mark.parametrize("max_members", [200, 3_000])
def test_a_text_longer_than_the_table_matches(max_members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dfa_module, "MAX_MEMBERS", max_members)
    dfa = DFA(parse("(a|b|ab){300}"))
    assert dfa.matches(b"ab" * 150 + b"a" * 150) and not dfa.matches(b"ab" * 301)
    assert max_members < 3_000 or num_members(dfa) <= 3_000


def test_a_table_without_room_for_the_start_is_refused_when_the_pattern_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dfa_module, "MAX_MEMBERS", 100)
    with pytest.raises(GrammarError, match="states of more than 100 positions"):
        DFA(parse("(a?){200}"))


def test_the_closure_of_the_same_states_is_computed_once_until_the_table_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed = []
    closure = NFA.closure
    monkeypatch.setattr(
        NFA, "closure", lambda self, states: computed.append(frozenset(states)) or closure(self, states)
    )
    dfa = DFA(parse(OVERLAPPING))
    for text in (b"ab a ", b"ba b_", b"ab a "):
        for _ in range(5):
            assert dfa.matches(text)
    assert len(computed) == len(set(computed)) == dfa.num_states - 1
    del computed[:]
    dfa._empty_table()
    assert dfa.matches(b"ab a ") and dfa.matches(b"ab a ")
    assert len(computed) == len(set(computed)) == dfa.num_states - 2, "the start is known"


def test_a_closure_visits_each_state_once() -> None:
    """A state that a text may skip is reached from all before it."""

    class Moves(list[list[int]]):
        num_reads = 0

        def __getitem__(self, index: int) -> list[int]:
            self.num_reads += 1
            return super().__getitem__(index)

    nfa = NFA(parse("(a?){1000}"))
    moves = Moves(nfa.free_moves)
    found = dfa_module.reached(range(len(moves)), moves)
    assert len(found) == len(moves) == moves.num_reads


def test_earlier_requests_change_no_token_of_a_later_one(drops: list[int]) -> None:
    """Together they fill the table; one alone does not."""
    sampling = [
        SamplingParams(
            temperature=1.0,
            seed=seed,
            max_tokens=150,
            structured_outputs={"regex": r"(\w+\s?){1,500}"},
        )
        for seed in range(8)
    ]
    with LLM("shop") as llm:
        alone = llm.generate("Hello", sampling[-1], use_tqdm=False)
    assert drops == [0]
    with LLM("shop") as llm:
        outputs = [llm.generate("Hello", each, use_tqdm=False)[0] for each in sampling]
    assert [output.error for output in outputs] == [None] * 8
    assert outputs[-1].outputs[0].token_ids == alone[0].outputs[0].token_ids
    assert len(drops) > 2, "the table was never full"
