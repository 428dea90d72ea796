"""Sizes of patterns are counted before anything is built, so that one too large costs nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest

from engine.core.grammar_protocol import GrammarError
from engine.grammar.dfa import DFA, NFA
from engine.grammar.language import Language
from engine.grammar.regex import parse
from engine.grammar.size import Sizes
from engine.sampling_params import StructuredOutputsParams
from tests.grammar.test_schema_suite import compiler

PATTERNS = ["a", ".", "[^a]{3,7}", "(a?b|c*){2,5}x", "é*|日+", "(a{2,}){3}|", "(|[à-￿])+", r"\d{3}-\D*"]


@pytest.mark.parametrize("of_bytes", [True, False])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_size_of_a_pattern_is_that_of_its_automaton(pattern: str, of_bytes: bool) -> None:
    tree = parse(pattern)
    graph = Language.of(tree).node()
    for node in (tree, graph):
        size = Sizes(of_bytes=of_bytes).of(node)
        assert size.states + 1 == len(NFA(node, of_bytes=of_bytes).edges)
        assert size.is_empty == (re.fullmatch(pattern, "") is not None)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("(a?){5000}", "what may be empty over 5,000 characters, the maximum is 1,000; leave the inner"),
        ("((a?){100}){100}", "over 10,000 characters"),
        ("(a?b?c?d?){1000}", "over 4,000 characters"),
        ("(a*){3000}", "over 3,000 characters"),
        ("(|a){4000}", "over 4,000 characters"),
        ("(a{0,200}){200}", "over 40,000 characters"),
        ("x" + "a?" * 2000, "over 2,000 characters"),
        (
            "((a{100}){100}){100}",
            "repeats too much: it needs 1,010,101 states, the maximum is 200,000; lower",
        ),
        ("((a{1,50}){1,50}){1,50}", "252,550 states"),
        ("[^a]{50000}", "states, the maximum is 200,000"),
        ("((((((a+)+){9}){9}){9}){9}){9}", "states, the maximum is 200,000"),
    ],
)
def test_a_pattern_too_large_is_refused_before_its_first_state(
    pattern: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(NFA, "_state")
    with pytest.raises(GrammarError, match=says):
        DFA(parse(pattern))
    if "over" in says:
        with pytest.raises(GrammarError, match=says):
            Language.of(parse(pattern))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"(\w+\s?){1,500}", "ab 1_c " * 150),
        ("[a-z]{0,3000}[0-9]{0,3000}", "a" * 2000 + "1" * 2000),
        (r"(\s*\w*){100}", "ab  1 " * 49),
        ("(a?){1000}", "a" * 1000),
    ],
)
def test_a_pattern_with_usual_repeats_is_not_refused(pattern: str, text: str) -> None:
    dfa = DFA(parse(pattern))
    assert dfa.matches(text.encode()) and not dfa.matches(text.encode() + b"!")


def test_states_that_overlap_too_much_are_refused_by_their_members() -> None:
    with pytest.raises(GrammarError, match=r"500,000 positions in all.*lower the counts"):
        Language.of(parse("(a|b|ab){2000}"))


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (
            {"properties": {"tags": {"type": "array", "items": {"type": "string"}, "maxItems": 10**7}}},
            "#/properties/tags: 'maxItems' is not supported by the backend dfa: it needs .* lower it, or use the",
        ),
        (
            {"type": "array", "items": {"type": "string", "minLength": 10, "maxLength": 90_000}},
            "#/items: 'maxLength' is not",
        ),
        (
            {"properties": {f"p{i}": {"type": "string", "maxLength": 3_000} for i in range(9)}},
            "#: is not supported by the backend dfa: .*make the schema smaller, or use the backend xgrammar: ",
        ),
    ],
)
def test_a_schema_too_large_for_dfa_names_place_and_keyword_before_its_first_state(
    schema: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(NFA, "_state")
    with pytest.raises(GrammarError, match=f"^JSON schema at {says}"):
        compiler("dfa").compile(StructuredOutputsParams(json=schema))


def test_the_smallest_automaton_matches_the_same_texts() -> None:
    for pattern in ["(ab|cb)*(x|y)?", "a{0,5}(bd|cd)", "(é1|è2)x*|(ê1|ë2)x*"]:
        language = Language.of(parse(pattern))
        small = language.minimal()
        assert len(small.edges) < len(language.edges)
        assert (language - small).is_empty() and (small - language).is_empty()
    assert Language.of(parse("a{4000}")).minimal().longest() == 4000  # too long to make smaller
