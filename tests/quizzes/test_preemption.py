"""Preemption experiments against oracles."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from quizzes.experiments import Ask, BadArguments, CoreEngine
from quizzes.experiments.preemption.victim_policies import VictimScheduler, draw
from quizzes.oracles import preemption as paper
from tests.quizzes.runs import runner

run = runner("preemption")


@pytest.mark.parametrize("seed", range(40))
def test_victims_and_their_cost_equal_the_oracle(seed: int) -> None:
    rng = Random(seed)
    count = rng.randint(2, 6)
    prompts = [rng.randint(1, 60) for _ in range(count)]
    outputs = [rng.randint(1, 60) for _ in range(count)]
    block_size = rng.choice([4, 16])
    priorities = [rng.randint(0, 2) for _ in range(count)] if seed % 2 else []
    longest = max(p + o for p, o in zip(prompts, outputs, strict=True))
    case = {
        "prompts": prompts,
        "outputs": outputs,
        "block_size": block_size,
        "num_blocks": -(-longest // block_size) + rng.randint(0, 6),
        "priorities": priorities,
    }
    result = run("victims", policy="priority", **case)
    assert result.victims == paper.victims_in_order(**case)
    assert result.recomputed_tokens == paper.recomputed(**case)


def test_the_newest_is_the_victim_and_only_priorities_change_that() -> None:
    assert run("victims").first_victim == 2
    assert run("victims", policy="priority", priorities=[5, 0, 0]).first_victim == 0


@pytest.mark.parametrize("seed", range(8))
def test_victim_policies_compare_with_the_engines_own_choice(seed: int) -> None:
    """The rule `newest` is what the engine does; each rule takes the victim that its name says."""
    found = run("victim_policies", seed=seed, requests=16, num_blocks=40)
    rows = draw(Random(f"victims-{seed}"), 16, [(16, 160)] * 2, 2)
    ours = run(
        "victims",
        prompts=[row[0] for row in rows],
        outputs=[row[1] for row in rows],
        arrivals=[row[2] for row in rows],
        num_blocks=40,
    )
    assert found.rules[0] == "newest" and ours.num_preemptions > 0
    assert found.num_preemptions[0] == ours.num_preemptions
    assert found.recomputed_tokens[0] == ours.recomputed_tokens
    assert found.total_steps[0] == ours.total_steps


@pytest.mark.parametrize(
    ("rule", "victim"),
    [("newest", 2), ("oldest", 0), ("fewest_computed", 1), ("most_blocks", 0), ("lowest_priority", 1)],
)
def test_a_victim_rule_takes_the_request_that_its_name_says(rule: str, victim: int) -> None:
    engine = CoreEngine(
        num_blocks=9,
        enable_prefix_caching=False,
        make_scheduler=partial(VictimScheduler, victim=rule),
    )
    for index, (prompt, priority) in enumerate([(60, 0), (20, 2), (40, 1)]):
        engine.add(Ask(f"r{index}", prompt, 60, priority=priority))
    engine.run()
    assert engine.preempted[0][1] == f"r{victim}"


def test_prompts_without_an_output_are_refused_and_not_dropped() -> None:
    with pytest.raises(BadArguments, match="3 prompts need as many outputs, not 2"):
        run("victims", prompts=[40, 40, 40], outputs=[60, 60])


def test_the_first_preemption_happens_when_blocks_run_out() -> None:
    result = run("victims", prompts=[40, 50, 60], outputs=[90, 90, 90], num_blocks=14)
    assert result.first_step == paper.first_shortage_step([40, 50, 60], 14)
    assert result.dropped_tokens[0] == paper.tokens_at_shortage([40, 50, 60], 14)


def test_a_victim_that_had_tokens_shows_in_its_gap_and_not_in_its_ttft() -> None:
    result = run("which_metric")
    assert result.victim_had_tokens > 0 and result.victim_ttft_delay == 0
    assert result.victim_longest_gap > result.victim_gap_undisturbed == 1
    assert max(result.others_ttft_delay) > 0


def test_a_victim_in_its_prompt_pays_in_ttft() -> None:
    result = run("which_metric", last_prompt=400, budget=24, num_blocks=35)
    assert (result.victim, result.victim_had_tokens) == (2, 0)
    assert result.victim_ttft_delay > 0 and result.victim_longest_gap == 1


def test_swap_moves_full_blocks_and_computes_the_rest_again() -> None:
    for prompt in range(40, 60):
        result = run("swap_counts", prompt=prompt)
        assert result.swapped_out_blocks == paper.swapped_blocks(prompt, 10)
        assert result.recomputed_with_swap == paper.swap_leftover(prompt, 10)
        assert result.same_victims and result.recomputed_without == result.had_tokens


def test_whole_copies_beat_recomputing_and_one_copy_per_block_does_not() -> None:
    whole, pieces = run("swap_or_recompute"), run("swap_or_recompute", copies="per_block")
    assert whole.cheaper == "swap" and pieces.cheaper == "recompute"
    assert whole.swap_ms == pytest.approx(paper.llama_8b_swap_ms(8192, 64))
    assert pieces.num_copies == 512 * 32 * 2 * 2


def test_under_load_both_modes_preempt_and_only_one_copies() -> None:
    result = run("swap_under_load", num_requests=30)
    assert result.preemptions_recompute and result.preemptions_swap
    assert result.copied_mib > 0 and result.extra_prefill_tokens > 0


@pytest.mark.parametrize(
    ("situation", "outcome"),
    [
        ("newcomer", "waits"),
        ("growth", "preempts"),
        ("prompt_too_long", "rejected"),
        ("never_fits", "rejected"),
    ],
)
def test_requests_without_memory_wait_or_are_preempted_or_rejected(situation: str, outcome: str) -> None:
    num_blocks = 10 if situation == "newcomer" else 12
    result = run("no_room", situation=situation, num_blocks=num_blocks)
    assert result.outcome == outcome
    assert result.finished == 3 - result.rejected


def test_a_failed_step_ends_all_requests_and_a_failed_request_only_itself() -> None:
    step, request, boot = (run("engine_failure", where=where) for where in ("step", "request", "boot"))
    assert (step.ended_with_error, step.accepts_new_requests) == (step.live_requests, False)
    assert (request.ended_with_error, request.accepts_new_requests) == (1, True)
    full = run("engine_failure", where="pool")
    assert full.preemptions > 0 == full.ended_with_error and full.finished_before == 4
    assert (boot.started, boot.error_type) == (False, "ConfigError")


def test_a_long_tail_stays_inside_the_bounds_set_at_boot() -> None:
    result = run("tail_context")
    assert result.peak_step_tokens <= result.budget and result.peak_blocks <= result.num_blocks
    assert not result.over_bounds and result.rejected == 0


def test_the_safe_limit_is_where_preemptions_begin() -> None:
    result = run("concurrency_sweep", limits=[5, 6])
    assert result.safe_limit == 5 == paper.safe_limit(32, 96, 40)
    assert result.preemptions[0] == 0 < result.preemptions[1]


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_preemption_changes_no_answer(mode: str) -> None:
    result = run("same_text", mode=mode)
    assert result.num_preemptions > 0 and result.same_answers == result.num_requests
    assert (result.blocks_copied > 0) == (mode == "swap")
