"""Prompt lookup against the obvious search."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.spec.ngram import continuation

small = st.integers(0, 3)
awkward = st.sampled_from([0, 1, 256, 65536, 1 << 24, 257, (1 << 24) + 1])
"""Ids whose bytes look alike when they are read across the borders of tokens."""


def obvious(tokens: list[int], shortest: int, longest: int, count: int) -> list[int]:
    for size in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[-size:]:
                return tokens[start + size : start + size + count]
    return []


@given(
    st.one_of(st.lists(small, min_size=1, max_size=40), st.lists(awkward, min_size=1, max_size=24)),
    st.integers(1, 3),
    st.integers(0, 4),
    st.integers(1, 5),
)
def test_drafts_are_what_followed_the_last_occurrence_of_the_longest_ending(
    tokens: list[int], shortest: int, more: int, count: int
) -> None:
    found = continuation(np.array(tokens, np.int32), shortest, shortest + more, count)
    assert found == obvious(tokens, shortest, shortest + more, count)


def test_an_ending_may_overlap_its_earlier_occurrence() -> None:
    assert continuation(np.array([7, 7, 7], np.int32), 1, 2, 3) == [7]
