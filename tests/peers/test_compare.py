"""The comparison itself, without vLLM: it sees what is different, and our engine does every kind of job."""

from __future__ import annotations

from typing import Any

import pytest

from engine.zoo.registry import MODELS
from tests.peers import our_side
from tests.peers.compare import compare
from tests.peers.parity import job
from tests.peers.workloads import Workload, sampling


def result(token_ids: list[int], *, runner_up: float = -3.0, **more: Any) -> dict[str, Any]:
    """One request whose every token has logprob -1, with token 9 as the runner-up."""
    logprobs = [{str(token): -1.0, "9": runner_up} for token in token_ids]
    completion = {"token_ids": token_ids, "finish_reason": "length", "logprobs": logprobs}
    request = {"completions": [completion], "prompt_logprobs": [], "num_cached_tokens": 0}
    return {"requests": [request], "searches": [], "counters": {"prefix_hits": 0}} | more


def test_equal_tokens_agree_and_counters_stand_side_by_side() -> None:
    theirs = result([1, 2, 3], runner_up=-3.5, counters={"prefix_hits": 32})
    comparison = compare("x", result([1, 2, 3]), theirs)
    assert comparison.agrees and comparison.equal == comparison.outputs == 1
    assert comparison.logprob_gap == 0.5
    assert comparison.counters == {"prefix_hits": (0, 32)}


def test_outputs_that_part_where_the_choice_was_clear_do_not_agree() -> None:
    ours, theirs = result([1, 2, 3]), result([1, 9, 3])
    theirs["requests"][0]["completions"][0]["logprobs"][1] = {"9": -1.0, "2": -3.0}
    comparison = compare("x", ours, theirs)
    (difference,) = comparison.differences
    assert (difference.position, difference.ours, difference.theirs) == (1, 2, 9)
    assert (difference.our_gap, difference.their_gap) == (2.0, 2.0)
    assert not comparison.agrees


def test_a_near_tie_on_both_sides_is_forgiven_and_on_one_side_is_not() -> None:
    ours, theirs = result([1, 2], runner_up=-1.001), result([1, 9])
    theirs["requests"][0]["completions"][0]["logprobs"][1] = {"9": -1.0, "2": -1.001}
    assert compare("x", ours, theirs).agrees
    theirs["requests"][0]["completions"][0]["logprobs"][1] = {"9": -1.0, "2": -2.0}
    assert compare("x", ours, theirs, near_tie=1.5).agrees
    assert not compare("x", ours, theirs).agrees


def test_an_output_that_ends_early_differs() -> None:
    assert not compare("x", result([1, 2]), result([1, 2, 3])).agrees


@pytest.mark.parametrize(
    ("tokens", "cum_logprob", "equal"), [([1, 2], -1.0, 1), ([1, 3], -1.0, 0), ([1, 2], -1.1, 0)]
)
def test_beams_need_equal_tokens_and_equal_sums(tokens: list[int], cum_logprob: float, equal: int) -> None:
    ours = result([], searches=[[{"tokens": [1, 2], "cum_logprob": -1.0}]])
    theirs = result([], searches=[[{"tokens": tokens, "cum_logprob": cum_logprob}]])
    ours["requests"] = theirs["requests"] = []
    comparison = compare("x", ours, theirs)
    assert (comparison.outputs, comparison.equal) == (1, equal)


def test_what_vllm_cannot_run_does_not_agree() -> None:
    comparison = compare("x", result([1]), {"error": "no kernel"})
    assert comparison.error == "no kernel" and not comparison.agrees


def test_our_side_does_every_kind_of_job() -> None:
    prompts = [[5, 6, 7, 8] * 12, [9, 10, 11] * 15]
    choice = sampling(max_tokens=8, structured_outputs={"choice": ["yes"]})
    n = sampling(max_tokens=4, temperature=1.0, top_k=1, n=2, prompt_logprobs=1)
    drafts = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}
    settled, chosen, drafted, searched = (
        our_side.run(job(MODELS / "shop", workload))
        for workload in (
            Workload("n", [prompts, prompts], n),
            Workload("structured", [prompts], [choice, sampling(max_tokens=4)]),
            Workload("drafts", [prompts], sampling(max_tokens=24, ignore_eos=True), drafts),
            Workload("beam", [prompts], {}, beam={"beam_width": 2, "max_tokens": 3, "ignore_eos": True}),
        )
    )
    assert [len(request["completions"]) for request in settled["requests"]] == [2] * 4
    assert [len(request["prompt_logprobs"]) for request in settled["requests"]] == [48, 45] * 2
    assert chosen["requests"][0]["completions"][0]["finish_reason"] == "stop"
    assert drafted["counters"]["accepted_tokens"] > 0
    assert [[len(beam["tokens"]) for beam in search] for search in searched["searches"]] == [
        [51, 51],
        [48, 48],
    ]
