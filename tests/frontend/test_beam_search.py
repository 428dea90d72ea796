"""Beam search against an exhaustive one, best_of against its own completions, and what sharing saves."""

from __future__ import annotations

import itertools

import pytest

from engine import LLM, SamplingParams
from engine.frontend.beam_search import BeamSearchParams
from engine.frontend.input_processor import InvalidRequestError

PROMPT = list(range(10, 27))


def total_logprob(llm: LLM, prompt: list[int], continuation: list[int]) -> float:
    """Return the score of a continuation from prompt log-probabilities, independently of beam search."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    (output,) = llm.generate([[*prompt, *continuation]], params)
    positions = output.prompt_logprobs[len(prompt) :]
    return sum(entry[token].logprob for entry, token in zip(positions, continuation, strict=True))


def test_a_beam_as_wide_as_the_tree_finds_the_most_likely_continuation(llm: LLM) -> None:
    """Ten candidates per step, two steps, five beams: all fifty pairs of the likeliest first tokens are seen."""
    params = BeamSearchParams(beam_width=5, max_tokens=2, ignore_eos=True)
    (output,) = llm.beam_search([PROMPT], params)
    first = SamplingParams(max_tokens=1, temperature=0, logprobs=10)
    (start,) = llm.generate([PROMPT], first)
    firsts = sorted(start.outputs[0].logprobs[0].items(), key=lambda item: -item[1].logprob)[:5]
    totals = {}
    for token, entry in firsts:
        (then,) = llm.generate([[*PROMPT, token]], first)
        for second, second_entry in then.outputs[0].logprobs[0].items():
            totals[token, second] = entry.logprob + second_entry.logprob
    best = sorted(totals, key=totals.__getitem__, reverse=True)[:5]
    assert [tuple(beam.tokens[len(PROMPT) :]) for beam in output.sequences] == best
    for beam in output.sequences:
        expected = total_logprob(llm, PROMPT, beam.tokens[len(PROMPT) :])
        assert beam.cum_logprob == pytest.approx(expected, abs=1e-4)


def test_one_beam_is_greedy(llm: LLM) -> None:
    (searched,) = llm.beam_search([PROMPT], BeamSearchParams(1, 8, ignore_eos=True))
    (greedy,) = llm.generate([PROMPT], SamplingParams(max_tokens=8, temperature=0, ignore_eos=True))
    assert searched.sequences[0].tokens[len(PROMPT) :] == greedy.outputs[0].token_ids
    assert searched.memory.cow_copies == 0


def test_wider_beams_never_find_less(llm: LLM) -> None:
    best = [
        llm.beam_search([PROMPT], BeamSearchParams(width, 3, ignore_eos=True))[0].sequences[0].cum_logprob
        for width in (1, 10)
    ]
    assert best[1] >= best[0] - 1e-5


def test_a_beam_that_meets_end_of_sequence_is_finished_and_ranked_by_its_length(llm: LLM) -> None:
    eos = next(iter(llm.llm_engine.input_processor.eos_token_ids))
    (output,) = llm.beam_search([PROMPT], BeamSearchParams(10, 4))
    for beam, following in itertools.pairwise(output.sequences):
        assert beam.score(len(PROMPT), 1.0) >= following.score(len(PROMPT), 1.0)
    for beam in output.sequences:
        assert (beam.tokens[-1] == eos) == (beam.finish_reason == "stop")
        assert eos not in beam.tokens[len(PROMPT) : -1]


def test_the_books_say_what_copying_on_write_would_have_cost(llm: LLM) -> None:
    (output,) = llm.beam_search([PROMPT], BeamSearchParams(4, 6, ignore_eos=True))
    memory = output.memory
    assert 1 <= memory.cow_copies <= 3 * 6, "at most width - 1 forks in each step"
    assert memory.peak_blocks_cow < memory.peak_blocks_unshared
    block_size = llm.llm_engine.engine_core.config.cache.block_size
    assert memory.num_cached_tokens % block_size == 0 and memory.num_cached_tokens > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam_width": 0, "max_tokens": 3}, "beam_width must be an integer >= 1"),
        ({"beam_width": 2, "max_tokens": None}, "max_tokens must be an integer >= 1"),
        ({"beam_width": 2, "max_tokens": 2, "length_penalty": "x"}, "length_penalty must be a number"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BeamSearchParams(**settings)


def test_a_search_that_the_engine_cannot_do_is_refused_before_it_starts(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="max_logprobs"):
        llm.beam_search([PROMPT], BeamSearchParams(50, 2))
    with pytest.raises(InvalidRequestError, match="lower max_tokens"):
        llm.beam_search([PROMPT], BeamSearchParams(2, 100_000))


def test_best_of_returns_the_likeliest_of_its_completions_in_order(llm: LLM) -> None:
    everything = SamplingParams(n=6, max_tokens=5, seed=3, logprobs=0, ignore_eos=True)
    (all_of_them,) = llm.generate([PROMPT], everything)
    ranked = sorted(all_of_them.outputs, key=lambda c: c.cumulative_logprob, reverse=True)
    (best,) = llm.generate([PROMPT], SamplingParams(n=2, best_of=6, max_tokens=5, seed=3, ignore_eos=True))
    assert [c.token_ids for c in best.outputs] == [c.token_ids for c in ranked[:2]]
    assert [c.index for c in best.outputs] == [0, 1]
    assert all(c.logprobs is None for c in best.outputs), "log-probabilities were not asked for"


def test_a_stream_of_best_of_shows_nothing_before_the_winner_is_known(llm: LLM) -> None:
    outputs = list(llm.stream(PROMPT, SamplingParams(best_of=3, max_tokens=4, seed=1, ignore_eos=True)))
    assert len(outputs) == 1 and outputs[0].finished and len(outputs[0].outputs) == 1


def test_completions_of_one_prompt_hold_its_full_blocks_once(llm: LLM) -> None:
    """Four completions of a prompt of f full blocks save 3 * f blocks as long as all of them run."""
    core = llm.llm_engine.engine_core
    most = 0
    update = core.scheduler.update

    def watch(*args):
        nonlocal most
        outputs = update(*args)
        most = max(most, core.scheduler.stats.num_saved_blocks)
        return outputs

    core.scheduler.update = watch
    try:
        llm.generate([PROMPT], SamplingParams(n=4, max_tokens=6, seed=1, ignore_eos=True))
    finally:
        core.scheduler.update = update
    full_blocks = (len(PROMPT) - 1) // core.config.cache.block_size
    assert most == 3 * full_blocks > 0
    assert core.scheduler.stats.num_saved_blocks == 0
