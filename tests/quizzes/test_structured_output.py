"""Grammar and tool experiments against brute force."""

from __future__ import annotations

import pytest

from quizzes.experiments.context import Context
from quizzes.experiments.structured_output.live import tool_calls, valid_share
from quizzes.experiments.structured_output.masks import draft_masks, forced, nesting, token_mask
from quizzes.oracles import structured_output as oracle

VOCABULARY = ["y", "ye", "yes", "e", "es", "s", "no", "n", "o", "not", "t", " "]
TEXTS = ["yes", "no", "not"]


@pytest.mark.parametrize("said", [[], ["y"], ["ye"], ["no"], ["n"], ["yes"]])
def test_a_token_is_allowed_if_the_output_stays_a_prefix(said: list[str]) -> None:
    found = token_mask(vocabulary=VOCABULARY, regex="|".join(TEXTS), said=said)
    assert found.allowed == oracle.allowed_tokens(VOCABULARY, TEXTS, said)
    assert found.accepted == len(said)


def test_a_row_with_k_drafts_has_k_plus_one_masks_and_the_grammar_is_rolled_back() -> None:
    found = draft_masks(vocabulary=VOCABULARY, regex="yes|no", said=["y"], drafts=["e", "o", "s"])
    assert (found.rows, found.legal_drafts, found.position_after) == (4, 1, 1)
    assert found.legal_drafts == oracle.legal_prefix(["yes", "no"], ["y"], ["e", "o", "s"])
    assert found.allowed[3] == len(VOCABULARY) + 1, "nothing behind an illegal draft is ever used"


def test_an_automaton_counts_only_as_deep_as_it_was_built() -> None:
    flat, deep = nesting(depth=1), nesting(depth=6)
    assert flat.accepts_depth and deep.accepts_depth
    assert not flat.accepts_deeper and not deep.accepts_deeper
    assert deep.automaton_states > flat.automaton_states
    assert not deep.automaton_takes_recursive_schema and deep.automaton_kinds < deep.stack_kinds


def test_a_grammar_makes_noise_valid_unless_it_is_cut() -> None:
    whole = valid_share(Context(), answers=6)
    assert (whole.valid_free, whole.valid_masked, whole.invalid_whole_masked) == (0, 6, 0)
    cut = valid_share(Context(), answers=6, max_tokens=4)
    assert (cut.valid_masked, cut.cut_masked) == (0, 6)


def test_a_forced_call_is_a_call_and_not_the_right_one() -> None:
    forced = tool_calls(Context(), choice="named", answers=4)
    assert forced.called == forced.schema_valid == 4 and forced.right_argument < 4
    free = tool_calls(Context(), choice="none", answers=4)
    assert free.called == free.masked_positions == 0


@pytest.mark.parametrize("said", ["small", "smart", "medium"])
def test_a_grammar_forces_tokens_on_which_all_texts_agree(said: str) -> None:
    texts = ["small", "smart", "medium"]
    assert forced(texts=texts, said=said).forced == oracle.forced_positions(texts, said)
