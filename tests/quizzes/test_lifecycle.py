"""Request-lifecycle experiments against closed forms."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from quizzes.oracles import lifecycle as paper
from quizzes.oracles.scheduling import chunk_steps
from tests.quizzes.runs import runner

run = runner("lifecycle")


@pytest.mark.parametrize("seed", range(30))
def test_a_request_alone_takes_blocks_and_steps_as_counted_by_hand(seed: int) -> None:
    rng = Random(seed)
    prompt, output, block_size = rng.randint(1, 200), rng.randint(1, 80), rng.choice([4, 16, 32])
    budget, shared = rng.choice([7, 64, 8192]), rng.choice([0, 0, rng.randint(1, prompt)])
    life = run(
        "one_request", prompt=prompt, output=output, block_size=block_size, budget=budget, shared=shared
    )
    assert life.blocks_at_end == paper.blocks_at_end(prompt, output, block_size)
    assert life.cached_tokens == paper.hit_tokens(prompt, shared, block_size)
    assert life.kv_tokens_end == prompt + output - 1
    rest = prompt - life.cached_tokens
    assert life.total_steps == paper.total_steps(rest, output, budget)
    if not shared:
        assert life.alloc_steps == paper.alloc_steps(prompt, output, budget, block_size)
    assert life.taken_in_forward == 0 and life.lookup_before_forward


def test_the_live_path_queues_then_schedules_then_computes_then_reads_text() -> None:
    result = run("call_order")
    wanted = ["request_id", "tokenize", "queue", "schedule", "prefix_lookup", "blocks", "forward", "update"]
    assert result.order == [*wanted, "detokenize"]
    assert result.num_forward == result.output_tokens


@pytest.mark.parametrize("seed", range(10))
def test_slots_are_taken_over_in_the_next_iteration(seed: int) -> None:
    rng = Random(seed)
    lens = [rng.randint(1, 12) for _ in range(9)]
    result = run("slots", slots=3, lens=lens)
    assert result.admitted_in == paper.first_iterations(3, lens)
    assert result.idle_gaps == 0 and result.tokens_per_request_and_step == 1


def test_a_free_slot_is_not_enough_without_blocks_or_budget() -> None:
    assert run("slots").idle_gaps == 0 == run("slots").tokenless_rows
    assert run("slots", prompt=40, num_blocks=8).idle_gaps > 0
    assert run("slots", prompt=40, budget=16).tokenless_rows > 0


def test_prompts_and_decodes_share_a_step_even_without_chunking() -> None:
    result = run("mixed_step", chunked=False)
    assert result.mixed_steps == 1 and result.chunks == [200] and result.decode_gap == 1
    cut = run("mixed_step", prompt=2000)
    assert len(cut.chunks) == chunk_steps(8, 2000, 512) == cut.ttft


def test_a_stop_string_is_found_across_tokens_and_never_shown() -> None:
    result = run("stop_scan")
    assert result.stop_spans_tokens and "END" not in result.shown
    assert result.shown_chars == "We have it. Volume 3 costs 700 yen. END of answer.".find("END")
    assert run("stop_scan", min_tokens=18).stopped is False
    assert run("stop_scan", include=True).shown.endswith("END")


@pytest.mark.parametrize(
    ("rules", "tokens", "ended_by"),
    [
        ({}, 12, "eos"),
        ({"min_tokens": 15}, 40, "length"),
        ({"stop_id_at": 7}, 7, "stop_id"),
        ({"ignore_eos": True}, 40, "length"),
        ({"max_tokens": 5}, 5, "length"),
    ],
)
def test_the_first_rule_that_applies_ends_the_request(
    rules: dict[str, Any], tokens: int, ended_by: str
) -> None:
    result = run("stop_rules", **rules)
    assert (result.output_tokens, result.ended_by) == (tokens, ended_by)


def test_hanging_up_frees_every_block_at_once() -> None:
    result = run("hang_up")
    assert result.blocks_after == 0 and result.freed == paper.blocks_freed(100, 20)
    assert result.next_started == 20 < result.next_would_start
    assert result.wasted_tokens + result.saved_tokens == 179


@pytest.mark.parametrize(
    ("how", "reason", "noticed_by"),
    [
        ("eos", "stop", "core"),
        ("length", "length", "core"),
        ("stop_id", "stop", "core"),
        ("stop_string", "stop", "frontend"),
        ("abort", "abort", "client"),
    ],
)
def test_every_ending_has_its_reason_and_leaves_no_blocks(how: str, reason: str, noticed_by: str) -> None:
    result = run("stop_live", how=how)
    assert (result.finish_reason, result.noticed_by) == (reason, noticed_by)
    assert result.blocks_in_use_after == 0
