"""Prefix sharing: which blocks, when, and between which requests."""

from __future__ import annotations

import pytest

from engine.core.sched_output import Reason, reason_of
from tests.core.driver import Driver, rows


def hit_of(driver: Driver, request_id: str, prompt: list[int], **options: object) -> int:
    """Run a request alone to its end and return its prefix hit in tokens."""
    driver.add(request_id, prompt, **options)
    driver.run()
    return driver.outputs[request_id][-1].num_cached_tokens


PROMPT = list(range(50, 62))  # three blocks of four


@pytest.mark.parametrize("length, hit", [(11, 8), (12, 8), (13, 12), (4, 0), (5, 4), (1, 0), (3, 0)])
def test_a_fully_cached_prompt_still_computes_its_last_block(length: int, hit: int) -> None:
    driver = Driver()
    prompt = list(range(length))
    assert hit_of(driver, "first", prompt) == 0
    assert hit_of(driver, "again", prompt) == hit
    start, num_tokens = rows(driver.steps[-4])["again"]
    assert (start, num_tokens) == (hit, length - hit)


def test_a_block_is_published_only_after_the_step_that_wrote_it() -> None:
    driver = Driver()
    driver.add("a", PROMPT)
    out = driver.schedule()
    assert not driver.scheduler.kv.pool.cached
    driver.update(out)
    assert len(driver.scheduler.kv.pool.cached) == 3


def test_a_request_aborted_in_flight_leaves_nothing_in_the_cache() -> None:
    driver = Driver()
    driver.add("a", PROMPT)
    out = driver.schedule()
    driver.scheduler.abort(["a"])
    driver.update(out)
    assert not driver.scheduler.kv.pool.cached


def test_a_request_preempted_before_it_computed_leaves_nothing_in_the_cache() -> None:
    """V #43569: scheduled and preempted around one chunk, with priorities and a long-prefill threshold."""
    driver = Driver(num_blocks=8, policy="priority", long_prefill=4, max_num_seqs=4)
    driver.add("low", 16, priority=5, max_tokens=2)
    driver.add("high", 12, priority=0, max_tokens=12)
    while not driver.preempts():
        driver.step()
        pool = driver.scheduler.kv.pool
        computed = sum(request.num_computed_tokens // 4 for request in driver.scheduler.running)
        assert len([b for b in pool.blocks if b.ref_count and b.block_hash]) <= computed
    driver.run()
    assert driver.finish_reason("low") == driver.finish_reason("high") == "length"


def test_of_n_samples_of_one_prompt_one_computes_it_and_the_others_wait_a_step() -> None:
    driver = Driver(budget=256)
    for index in range(8):
        driver.add(f"{index}_r", PROMPT + [99])
    first = driver.step()
    assert rows(first) == {"0_r": (0, 13)}
    assert reason_of(first, "7_r").reason is Reason.PREFIX_IN_FLIGHT
    second = driver.step()
    assert rows(second) == {"0_r": (13, 1)} | {f"{i}_r": (12, 1) for i in range(1, 8)}
    prefill = 13 + 7 * 1
    assert first.num_scheduled_tokens + second.num_scheduled_tokens == prefill + 1


def test_samples_wait_for_a_chunked_prompt_too_even_when_a_chunk_is_less_than_a_block() -> None:
    driver = Driver(long_prefill=2)
    driver.add("a", PROMPT + [99])
    driver.add("b", PROMPT + [99])
    driver.step()
    driver.run_until(lambda: "b" in rows(driver.steps[-1]))
    assert rows(driver.steps[-1])["b"] == (12, 1)


def test_a_request_one_step_behind_shares_what_is_already_computed() -> None:
    driver = Driver(budget=8)
    driver.add("a", PROMPT + [99])
    driver.step()
    driver.add("b", PROMPT + [98])
    driver.step()  # a computes its third block and the rest of the prompt; b waits for that block
    assert "b" not in rows(driver.steps[-1])
    driver.step()
    assert rows(driver.steps[-1])["b"] == (12, 1)


def test_a_prefix_in_flight_does_not_hold_up_others() -> None:
    driver = Driver()
    driver.add("a", PROMPT)
    driver.add("same", PROMPT)
    driver.add("other", 8)
    assert set(rows(driver.step())) == {"a", "other"}


def test_when_the_leader_is_aborted_in_flight_a_follower_takes_over() -> None:
    driver = Driver()
    driver.add("a", PROMPT)
    driver.add("b", PROMPT)
    out = driver.schedule()
    driver.scheduler.abort(["a"])
    driver.update(out)
    assert rows(driver.step()) == {"b": (0, 12)}


def test_adapters_and_the_base_model_never_share_a_block() -> None:
    driver = Driver()
    hit_of(driver, "base", PROMPT)
    assert hit_of(driver, "a", PROMPT, lora_key="a:/a:1") == 0
    assert hit_of(driver, "b", PROMPT, lora_key="b:/b:1") == 0
    assert hit_of(driver, "a again", PROMPT, lora_key="a:/a:1") == 8


def test_an_adapter_loaded_again_under_its_name_does_not_see_its_old_blocks() -> None:
    driver = Driver()
    hit_of(driver, "old", PROMPT, lora_key="a:/a:1")
    assert hit_of(driver, "new", PROMPT, lora_key="a:/a:2") == 0


def test_a_salt_that_spells_an_adapters_name_shares_nothing_with_it() -> None:
    driver = Driver()
    hit_of(driver, "lora", PROMPT, lora_key="tenant")
    assert hit_of(driver, "salt", PROMPT, cache_salt="tenant") == 0
    assert hit_of(driver, "both", PROMPT, cache_salt="tenant", lora_key="tenant") == 0
    assert hit_of(driver, "salt again", PROMPT, cache_salt="tenant") == 8


def test_output_is_cached_like_a_prompt() -> None:
    driver = Driver()
    driver.add("turn 1", PROMPT, max_tokens=5)
    driver.run()
    history = PROMPT + driver.tokens("turn 1")
    assert hit_of(driver, "turn 2", history + [7]) == 16


def test_drafts_never_reach_the_cache_unless_the_model_confirmed_them() -> None:
    driver = Driver()
    driver.add("a", PROMPT, max_tokens=9)
    driver.drafts = {"a": [70, 71, 72, 73]}  # always rejected: the model says DULL_TOKEN
    driver.run()
    wrong = PROMPT + driver.tokens("a")[:1] + [70, 71, 72, 73]
    assert hit_of(driver, "b", wrong) == 12


def test_when_one_of_two_copies_is_evicted_the_other_is_a_miss_and_never_stale() -> None:
    driver = Driver(num_blocks=8)
    pool = driver.scheduler.kv.pool
    driver.add("a", PROMPT, skip_reading_prefix_cache=True, max_tokens=8)
    driver.add("b", PROMPT, skip_reading_prefix_cache=True, max_tokens=2)
    driver.step()
    named = [block for block in driver.scheduler.requests["a"].blocks if block.block_hash]
    copies = driver.scheduler.requests["b"].blocks[:3]
    assert len(named) == 3 and not any(block.block_hash for block in copies)
    driver.run()
    driver.add("eater", 25, max_tokens=8)  # needs every block: all cached content goes
    driver.run()
    assert all(pool.cached.get(block.block_hash or b"") in (block, None) for block in [*named, *copies])
    assert hit_of(driver, "c", PROMPT) == 0


def test_a_chain_is_evicted_from_its_end() -> None:
    driver = Driver(num_blocks=6)
    hit_of(driver, "old", PROMPT + [1], max_tokens=1)  # 3 cached blocks, 3 never used
    hit_of(driver, "eater", 13, max_tokens=1)  # takes 4: the 3 unused and the chain's last
    assert hit_of(driver, "again", PROMPT + [1], max_tokens=1) == 8


def test_the_least_recently_used_prefix_goes_first_and_a_hit_counts_as_use() -> None:
    driver = Driver(num_blocks=7)
    first, second = [1, 1, 1, 1, 9], [2, 2, 2, 2, 9]
    hit_of(driver, "first", first, max_tokens=1)
    hit_of(driver, "second", second, max_tokens=1)
    hit_of(driver, "first again", first, max_tokens=1)
    hit_of(driver, "eater", 24, max_tokens=1)  # 6 of 7 blocks: one of the two prefixes goes
    cached = {block.block_id for block in driver.scheduler.kv.pool.cached.values()}
    assert len(cached) == 7
    driver.scheduler.abort(list(driver.scheduler.requests))
    assert hit_of(driver, "second again", second, max_tokens=1) == 0


def test_worthless_blocks_are_reused_before_cached_ones() -> None:
    driver = Driver(num_blocks=10)
    hit_of(driver, "kept", PROMPT + [1], max_tokens=1)
    for index in range(5):  # partial blocks only: nothing worth keeping
        hit_of(driver, f"short {index}", 3, max_tokens=1)
    assert driver.scheduler.kv.pool.num_evictions == 0
    assert hit_of(driver, "again", PROMPT + [1], max_tokens=1) == 12


def test_reset_refuses_while_blocks_are_used() -> None:
    driver = Driver()
    driver.add("a", PROMPT)
    driver.step()
    assert not driver.scheduler.reset_prefix_cache()
    assert driver.scheduler.kv.pool.cached
    driver.run()
    assert driver.scheduler.reset_prefix_cache()
    driver.scheduler.check_integrity()
    assert hit_of(driver, "b", PROMPT) == 0


def test_hits_are_counted_in_tokens() -> None:
    driver = Driver()
    hit_of(driver, "a", PROMPT)
    driver.add("b", PROMPT)
    driver.step()
    stats = driver.scheduler.stats
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (12, 8)


def test_requests_that_were_not_admitted_are_not_counted() -> None:
    driver = Driver(num_blocks=6)
    hit_of(driver, "warm", PROMPT, max_tokens=1)
    driver.add("runs", 17, max_tokens=4)
    driver.step()
    driver.add("waits", PROMPT, max_tokens=4)
    out = driver.step()
    assert reason_of(out, "waits").reason is Reason.NO_BLOCKS
    assert driver.scheduler.stats.prefix_cache_queries == 0
    assert driver.scheduler.requests["waits"].num_cached_tokens == -1


def test_a_request_that_resumes_is_not_counted_again() -> None:
    driver = Driver(num_blocks=8)
    for request_id in ("a", "b"):
        driver.add(request_id, 12, max_tokens=12)
    queries = 0
    while driver.scheduler.has_unfinished():
        driver.step()
        queries += driver.scheduler.stats.prefix_cache_queries
    assert any(out.preempted_request_ids for out in driver.steps)
    assert queries == 24


@pytest.mark.parametrize("skip", [{"prompt_logprobs": 0}, {"skip_reading_prefix_cache": True}])
def test_prompt_logprobs_bypass_reading_the_cache_and_still_fill_it(skip: dict[str, object]) -> None:
    driver = Driver()
    hit_of(driver, "warm", PROMPT)
    assert hit_of(driver, "skips", PROMPT, **skip) == 0
    driver.scheduler.reset_prefix_cache()
    hit_of(driver, "fills", PROMPT, **skip)
    assert hit_of(driver, "reads", PROMPT) == 8


def test_bypassing_requests_do_not_count_as_queries() -> None:
    driver = Driver()
    driver.add("skips", PROMPT, skip_reading_prefix_cache=True)
    driver.step()
    assert driver.scheduler.stats.prefix_cache_queries == 0


def test_with_prefix_caching_off_nothing_is_hashed_shared_or_waited_for() -> None:
    driver = Driver(caching=False)
    driver.add("a", PROMPT)
    driver.add("b", PROMPT)
    assert rows(driver.step()) == {"a": (0, 12), "b": (0, 12)}
    driver.run()
    assert not driver.scheduler.kv.pool.cached
    assert hit_of(driver, "c", PROMPT) == 0
