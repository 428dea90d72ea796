"""Sampling experiments against oracles."""

from __future__ import annotations

import pytest

from quizzes.experiments.context import Context
from quizzes.experiments.sampling.completions import completions
from quizzes.experiments.sampling.live import beam, seeds
from quizzes.experiments.sampling.sampler import allowed_set, drawn, penalties
from quizzes.oracles import sampling as oracle

PROBS = [41, 23, 11, 9, 7, 5, 3, 1]


@pytest.mark.parametrize(
    "settings",
    [
        {"top_p": 0.7},
        {"top_k": 3},
        {"min_p": 0.2},
        {"temperature": 2.0, "top_p": 0.7},
        {"temperature": 0.5, "min_p": 0.2, "top_k": 6, "top_p": 0.9},
    ],
    ids=str,
)
def test_the_sampler_keeps_the_tokens_that_the_definitions_keep(settings: dict[str, float]) -> None:
    found = allowed_set(probs=PROBS, **settings)
    assert found.allowed == oracle.allowed_tokens(PROBS, **settings)
    assert sum(found.probs) == pytest.approx(1, abs=1e-5)


def test_a_higher_temperature_enlarges_the_nucleus() -> None:
    cold, hot = (allowed_set(probs=PROBS, temperature=t, top_p=0.8) for t in (0.5, 3.0))
    assert cold.num_allowed < hot.num_allowed and not hot.order_free


@pytest.mark.parametrize("token", range(4))
def test_penalties_follow_their_definitions(token: int) -> None:
    settings = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.7}
    logits, prompt, output = [3.0, -2.0, 1.0, 0.5], [1, 2], [0, 0, 2]
    found = penalties(logits=logits, prompt=prompt, output=output, **settings)
    assert found.logits[token] == pytest.approx(
        oracle.penalised(logits, prompt, output, **settings, token=token), abs=1e-4
    )


def test_draws_follow_the_distribution_and_greedy_follows_the_peak() -> None:
    found = drawn(probs=PROBS, temperature=0.8, top_p=0.95)
    assert found.chi_square < 30 and found.distinct > 3
    assert drawn(probs=PROBS, temperature=0, draws=200).greedy_share == 1


@pytest.mark.parametrize(("n", "best_of", "prompt"), [(3, None, 100), (2, 5, 96), (1, None, 33)])
def test_completions_share_one_prefill(n: int, best_of: int | None, prompt: int) -> None:
    found = completions(Context(), n=n, best_of=best_of, prompt=prompt, output=20, block_size=16)
    copies = best_of or n
    assert (found.computed, found.returned) == (copies, n)
    assert found.prompt_tokens_computed == oracle.prefill_tokens(copies, prompt, 16)
    assert found.peak_blocks == oracle.blocks_of_family(copies, prompt, 20, 16)


def test_a_search_asks_once_per_beam_and_token() -> None:
    found = beam(Context(), beam_width=3, max_tokens=5, prompt=40)
    assert found.requests == oracle.beam_requests(3, 5)
    assert found.candidates == 2 * 3 * found.requests
    assert found.best_logprob >= found.greedy_logprob


def test_a_seed_belongs_to_the_request_and_not_to_the_batch() -> None:
    found = seeds(Context(), n=3, others=3, max_tokens=8)
    assert found.same_alone_and_in_a_batch and found.same_twice and found.nth_is_seed_plus_index
