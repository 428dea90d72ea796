"""Speculation experiments against closed forms."""

from __future__ import annotations

import pytest

from quizzes.experiments.context import Context
from quizzes.experiments.speculation.counting import expected_tokens, lookup, prompt_lookup, speedup
from quizzes.experiments.speculation.live import lossless
from quizzes.experiments.speculation.rejection import rejection
from quizzes.oracles import speculation as oracle


@pytest.mark.parametrize(("acceptance", "k"), [(0.0, 3), (0.5, 4), (0.8, 2), (1.0, 5)])
def test_tokens_per_step_equal_the_series(acceptance: float, k: int) -> None:
    found = expected_tokens(Context(), acceptance=acceptance, k=k)
    assert found.tokens_per_step == pytest.approx(oracle.tokens_per_step(acceptance, k), rel=0.03)
    assert found.acceptance_rate == pytest.approx(oracle.logged_acceptance(acceptance, k), abs=0.02)


@pytest.mark.parametrize("draft", [[3, 5, 2], [6, 3, 1], [0.1, 0.1, 9.8]])
def test_rejection_gives_the_target_whatever_the_drafts_are(draft: list[float]) -> None:
    found = rejection(target=[6, 3, 1], draft=draft)
    assert found.furthest_from_target < 0.015
    assert found.acceptance == pytest.approx(oracle.overlap([6, 3, 1], draft), abs=0.015)


@pytest.mark.parametrize("tokens", [[1, 2, 3, 1, 2], [4, 4, 4, 4], [1, 2, 3], [7, 1, 2, 9, 1, 2, 8, 1, 2]])
def test_prompt_lookup_finds_what_lists_find(tokens: list[int]) -> None:
    found = lookup(tokens=tokens, shortest=1, longest=3, k=3)
    assert found.drafts == oracle.looked_up(tokens, 1, 3, 3)


def test_drafts_pay_alone_and_not_in_a_full_batch() -> None:
    alone, full = (speedup(Context(), batch=batch, output=60) for batch in (1, 512))
    assert alone.pays and not full.pays
    assert speedup(Context(), batch=1, acceptance=0.05, output=60).speedup < alone.speedup


def test_drafts_from_the_prompt_predict_edits_and_not_new_text() -> None:
    edit, write = (prompt_lookup(task=task, tokens=600) for task in ("edit", "write"))
    assert edit.tokens_per_step > 2 * write.tokens_per_step


@pytest.mark.parametrize(
    ("verifier", "temperature", "identical"), [("rejection", 0.0, True), ("coupling", 1.0, True)]
)
def test_drafts_change_no_token(verifier: str, temperature: float, identical: bool) -> None:
    found = lossless(
        Context(),
        method="draft_model",
        verifier=verifier,
        temperature=temperature,
        workload="free",
        requests=2,
    )
    assert found.identical is identical
    assert found.steps_with < found.steps_without
    assert found.first_token_step_with == found.first_token_step_without
