"""Our regular expressions are Python's: the same patterns match the same texts."""

from __future__ import annotations

import math
import random
import re

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from engine.core.grammar_protocol import GrammarError
from engine.grammar.dfa import DFA
from engine.grammar.regex import parse
from engine.grammar.utf8 import utf8_chains

ALPHABET = 'abAB01 _-]^\\.*\n\t"{,é東😀'
Pair = tuple[str, str]
"""A pattern and a text that it matches."""


def matches(pattern: str, text: str) -> bool:
    return DFA(parse(pattern)).matches(text.encode())


def literal(text: str) -> Pair:
    return re.escape(text), text


CLASSES = st.sampled_from(
    [
        ("[a-cA]", "b"), ("[^a-c]", "é"), (r"[\d_]", "7"), (r"[^\w]", "-"), ("[]a]", "]"), ("[^]a]", "b"),
        ("[-a]", "-"), ("[a-]", "-"), (r"[\]\\^-]", "\\"), (r"[à-ü]", "é"), ("[ぁ-龯]", "東"), (r"[\x00-\x1f]", "\t"),
        ("[^a]", "😀"), (r"\d", "0"), (r"\w", "_"), (r"\s", "\n"), (r"\D", "東"), (r"\W", " "), (r"\S", "😀"),
        (".", "é"), (r"\u6771", "東"), (r"\x41", "A"), (r"\n", "\n"), (r"\t", "\t"),
    ]
)  # fmt: skip


def repeated(pair: Pair, sign: str, times: int) -> Pair:
    pattern, text = pair
    return f"(?:{pattern}){sign}", text * times


def repeats(pairs: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    signs = st.sampled_from(
        [("*", 0), ("*", 3), ("+", 1), ("+", 2), ("?", 0), ("?", 1), ("{2}", 2), ("{1,3}", 3), ("{,2}", 0)]
        + [("{2,}", 4), ("*?", 1), ("{1,2}?", 1), ("{,}", 2)]
    )
    return st.builds(lambda pair, sign: repeated(pair, *sign), pairs, signs)


def joined(parts: list[Pair]) -> Pair:
    return "".join(f"(?:{pattern})" for pattern, _ in parts), "".join(text for _, text in parts)


def one_of(options: list[Pair], chosen: int) -> Pair:
    return "(" + "|".join(pattern for pattern, _ in options) + ")", options[chosen % len(options)][1]


PAIRS = st.recursive(
    st.text(ALPHABET, max_size=3).map(literal) | CLASSES,
    lambda pairs: (
        st.lists(pairs, min_size=1, max_size=3).map(joined)
        | st.builds(one_of, st.lists(pairs, min_size=1, max_size=3), st.integers(0, 2))
        | repeats(pairs)
    ),
    max_leaves=6,
)


@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(PAIRS, st.lists(st.text(ALPHABET, max_size=6), max_size=6), st.integers(0, 2**32))
@example(("(a*)*b", "aab"), ["b", "", "aa"], 0)
@example(("(|a)+", ""), ["a", "aa", "b"], 0)
def test_a_random_regex_matches_what_re_matches(pair: Pair, texts: list[str], seed: int) -> None:
    pattern, text = pair
    theirs, ours = re.compile(pattern, re.ASCII), DFA(parse(pattern))
    assert theirs.fullmatch(text), "the strategy is wrong"
    for candidate in [text, *texts, *spoiled(text, random.Random(seed))]:
        assert ours.matches(candidate.encode()) == bool(theirs.fullmatch(candidate)), (pattern, candidate)


def spoiled(text: str, rng: random.Random) -> list[str]:
    """Texts close to a match: one character more, less, or another one."""
    place = rng.randint(0, len(text))
    other = rng.choice(ALPHABET)
    return [
        text[:place] + text[place + 1 :],
        text[:place] + other + text[place + 1 :],
        text[:place] + other + text[place:],
    ]


@pytest.mark.parametrize(
    "text", ["", "a.b", "[x]{2}", r"\d", 'say "hi"', "東京|大阪", "a-b^$", "line\nbreak"]
)
def test_an_escaped_text_matches_itself_and_nothing_else(text: str) -> None:
    assert matches(re.escape(text), text) and re.fullmatch(re.escape(text), text)
    assert not matches(re.escape(text), text + "x")


@pytest.mark.parametrize("pattern", ["^abc$", "abc$", "^abc", "^abc$|^x$"])
def test_anchors_around_the_whole_pattern_change_nothing(pattern: str) -> None:
    assert matches(pattern, "abc") and not matches(pattern, "abcd")


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("(abc", "never closed"),
        ("abc)", "never opened"),
        ("[abc", "never closed"),
        ("*a", "nothing to repeat"),
        ("a|{2}", "nothing to repeat"),
        ("a**", "two repeats"),
        ("a{3,2}", "below the lowest"),
        ("a*+", "possessive"),
        (r"(a)\1", "looks around or back"),
        (r"\bword", "looks around or back"),
        ("(?=a)b", "only groups"),
        ("(?i)a", "only groups"),
        ("a^b", "anchors"),
        ("[z-a]", "not a range"),
        ("a\\", "escapes nothing"),
        (r"\u12", "hex digits"),
        ("a{1,999999}", "no more than"),
        ("(" * 300 + "a" + ")" * 300, "nested"),
    ],
)
def test_what_is_no_regular_expression_is_refused_with_its_place(pattern: str, complaint: str) -> None:
    with pytest.raises(GrammarError, match=complaint) as caught:
        parse(pattern)
    assert "character" in str(caught.value)


@pytest.mark.parametrize("pattern", [r"a[^\x00-\U0010ffff]", r"[^\d\D]|a[^\w\W]+"])
def test_a_pattern_that_matches_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match="no text at all"):
        DFA(parse(pattern))


def test_a_pattern_that_repeats_too_much_is_refused() -> None:
    with pytest.raises(GrammarError, match="repeats too much"):
        DFA(parse("((a{100}){100}){100}"))


def test_states_are_worked_out_only_where_a_text_leads() -> None:
    dfa = DFA(parse("(a|b)*a(a|b){30}"))  # 2**31 states in all
    assert dfa.matches(b"ab" * 40 + b"b") and not dfa.matches(b"b" * 80)
    assert dfa.num_states < 400


def test_a_dead_branch_is_never_entered() -> None:
    dfa = DFA(parse(r"ab|ac[^\x00-\U0010ffff]"))
    assert dfa.step(dfa.step(1, ord("a")), ord("c")) == 0


@settings(max_examples=200, deadline=None)
@given(
    *[
        st.sampled_from([0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF])
        | st.integers(0, 0x10FFFF)
    ]
    * 2
)
def test_utf8_chains_are_exactly_the_encodings_of_a_range(one: int, other: int) -> None:
    first, last = sorted((one, other))
    chains = list(utf8_chains(first, last))
    size = sum(math.prod(high - low + 1 for low, high in chain) for chain in chains)
    surrogates = max(0, min(last, 0xDFFF) - max(first, 0xD800) + 1)
    assert size == last - first + 1 - surrogates, "as many sequences as characters"
    for code_point in {first, last, (first + last) // 2}:
        if not 0xD800 <= code_point <= 0xDFFF:
            encoded = chr(code_point).encode()
            assert any(
                len(chain) == len(encoded)
                and all(low <= byte <= high for (low, high), byte in zip(chain, encoded, strict=True))
                for chain in chains
            )
