"""The figures of a step, checked by hand."""

from __future__ import annotations

from tests.core.driver import Driver


def test_the_figures_of_a_mixed_step() -> None:
    driver = Driver(budget=10, num_blocks=10, max_num_seqs=2)
    driver.add("a", 4, max_tokens=9)
    driver.step()
    driver.add("b", 12)
    driver.add("c", 4)
    driver.step()
    stats = driver.scheduler.stats
    assert stats.step == 1
    assert (stats.num_scheduled_tokens, stats.num_decode_tokens, stats.num_prefill_tokens) == (10, 1, 9)
    assert (stats.num_running, stats.num_waiting, stats.num_admitted) == (2, 1, 1)
    assert (stats.num_generated_tokens, stats.num_finished, stats.num_preempted) == (1, 0, 0)
    assert (stats.num_free_blocks, stats.kv_cache_usage) == (5, 0.5)
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (12, 0)


def test_a_prompt_of_one_token_is_a_prefill() -> None:
    driver = Driver()
    driver.add("a", 1)
    driver.step()
    assert (driver.scheduler.stats.num_prefill_tokens, driver.scheduler.stats.num_decode_tokens) == (1, 0)
    driver.step()
    assert (driver.scheduler.stats.num_prefill_tokens, driver.scheduler.stats.num_decode_tokens) == (0, 1)


def test_an_eviction_counts_in_the_step_that_reuses_the_block() -> None:
    driver = Driver(num_blocks=4)
    driver.add("a", 12, max_tokens=1)
    driver.step()
    assert driver.scheduler.stats.num_evictable_blocks == 3
    driver.add("b", 12, max_tokens=1)
    driver.step()
    assert driver.scheduler.stats.num_evictions == 2
    assert driver.scheduler.stats.num_evictable_blocks == 4


def test_an_empty_step_has_figures_too() -> None:
    driver = Driver(num_blocks=4)
    driver.step()
    stats = driver.scheduler.stats
    assert (stats.step, stats.num_scheduled_tokens, stats.num_free_blocks) == (0, 0, 4)


def test_the_sum_of_the_steps_is_what_the_requests_got() -> None:
    driver = Driver(num_blocks=12, budget=7)
    for index in range(6):
        driver.add(f"r{index}", 9, max_tokens=8)
    generated = finished = preempted = 0
    while driver.scheduler.has_unfinished():
        driver.step()
        generated += driver.scheduler.stats.num_generated_tokens
        finished += driver.scheduler.stats.num_finished
        preempted += driver.scheduler.stats.num_preempted
    assert (generated, finished) == (6 * 8, 6)
    assert preempted == sum(len(out.preempted_request_ids) for out in driver.steps) > 0
