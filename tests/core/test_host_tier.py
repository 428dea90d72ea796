"""Swap and offload, one decision at a time. Random workloads with host tiers are in test_shadow_kv.py."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.config import CacheConfig, ConfigError, TierConfig
from engine.core.blocks import Block
from engine.core.host_tier import HostTier
from engine.trace.reader import TraceReader
from tests.core.driver import Driver, rows
from tests.trace.test_trace_verify import records_of, write
from tests.trace.trace_workloads import random_run


def device_blocks(*hashes: bytes) -> list[Block]:
    blocks = [Block(10 + index) for index in range(len(hashes))]
    for block, block_hash in zip(blocks, hashes, strict=True):
        block.block_hash = block_hash
    return blocks


def swapping(
    num_host_blocks: int = 20, num_blocks: int = 6, caching: bool = True, **options: object
) -> Driver:
    """Blocks of 4 tokens. Two requests of 12 + n tokens outgrow 6 blocks together."""
    tiers = TierConfig(num_host_blocks, swap=True)
    return Driver(num_blocks=num_blocks, caching=caching, tiers=tiers, **options)


def preempt_one(driver: Driver, first: int = 11, second: int = 11) -> None:
    driver.add("keeps", first, max_tokens=9)
    driver.add("victim", second, max_tokens=9)
    driver.run_until(driver.preempts)


# -- the tier alone


def test_a_block_on_the_host_is_found_only_after_the_step_that_wrote_it() -> None:
    host = HostTier(4)
    (block,) = device_blocks(b"a")
    assert host.offload(block)
    assert host.close_step(0) == ([(10, 1)], [])
    assert not host.pool.cached
    host.end_step(0)
    assert list(host.pool.cached) == [b"a"] and host.pool.num_used == 0


def test_a_step_that_never_ran_leaves_nothing_to_find() -> None:
    host = HostTier(4)
    host.offload(device_blocks(b"a")[0])
    host.close_step(0)
    host.offload(device_blocks(b"b")[0])
    host.close_step(1)
    host.end_step(1)
    assert list(host.pool.cached) == [b"b"] and host.pool.num_used == 0
    assert host.check_integrity([]) == []


def test_a_block_that_is_read_in_a_step_is_not_overwritten_in_it() -> None:
    host = HostTier(1)
    host.offload(device_blocks(b"a")[0])
    host.close_step(0)
    host.end_step(0)
    hit = [host.pool.cached[b"a"]]
    host.hold(hit)
    assert not host.offload(device_blocks(b"b")[0])
    host.copy_in(hit, [Block(7)])
    assert host.close_step(1) == ([], [(1, 7)])
    host.end_step(1)
    assert host.offload(device_blocks(b"b")[0])


def test_what_the_host_has_is_not_copied_again() -> None:
    host = HostTier(4)
    blocks = device_blocks(b"a", b"b")
    kept = host.swap_out(blocks, [b"a", b"b"])
    assert host.swap_out(blocks, [b"a", b"b"]) == kept  # in the same step
    assert not host.offload(blocks[0])
    assert len(host.close_step(0)[0]) == 2
    host.end_step(0)
    assert host.swap_out(blocks, [b"a", b"b"]) == kept
    assert host.close_step(1) == ([], [])
    host.end_step(1)
    assert host.check_integrity(kept * 3) == []


def test_a_full_host_keeps_the_start_of_a_chain() -> None:
    host = HostTier(2)
    kept = host.swap_out(device_blocks(b"a", b"b", b"c"), [b"a", b"b", b"c"])
    assert len(kept) == 2
    host.close_step(0)
    host.end_step(0)
    assert list(host.pool.cached) == [b"a", b"b"]


def test_the_host_evicts_a_chain_from_its_tail_as_the_device_did() -> None:
    host = HostTier(3)
    for block in reversed(device_blocks(b"a", b"b", b"c")):  # the device evicts tail first
        host.offload(block)
    host.close_step(0)
    host.end_step(0)
    host.offload(device_blocks(b"x")[0])
    host.close_step(1)
    host.end_step(1)
    assert set(host.pool.cached) == {b"a", b"b", b"x"}


def test_a_reset_forgets_the_host_unless_a_request_owns_blocks_there() -> None:
    host = HostTier(2)
    kept = host.swap_out(device_blocks(b"a"), [b"a"])
    host.close_step(0)
    assert not host.reset()
    host.release(kept)
    assert host.reset() and not host.pool.cached
    host.end_step(0)  # comes too late to publish anything
    assert not host.pool.cached and host.check_integrity([]) == []


def test_keeping_blocks_without_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_host_blocks is 0"):
        TierConfig(swap=True)
    with pytest.raises(ConfigError, match="enable_prefix_caching=False"):
        CacheConfig(9, enable_prefix_caching=False, tiers=TierConfig(2, offload=True))


# -- preemption by swap


@pytest.mark.parametrize("caching", [True, False])
def test_a_victim_goes_on_where_its_last_full_block_ends(caching: bool) -> None:
    driver = swapping(caching=caching)
    preempt_one(driver)
    step = driver.steps[-1]
    assert step.preempted_request_ids == ["victim"]
    assert [host for _, host in step.copy_out] == [1, 2, 3]
    driver.run_until(lambda: "victim" in rows(driver.steps[-1]))
    step = driver.steps[-1]
    start = rows(step)["victim"][0]
    row = next(row for row in step.scheduled if row.request_id == "victim")
    copied = [device for _, device in step.copy_in]
    assert start == 12  # of 13 computed
    assert copied == row.new_block_ids[3 - len(copied) : 3]
    if not caching:
        assert step.copy_in == [(1, copied[0]), (2, copied[1]), (3, copied[2])]
    driver.run()
    assert len(driver.tokens("victim")) == 9


def test_a_full_host_falls_back_to_recomputation() -> None:
    driver = swapping(num_host_blocks=1, caching=False)
    preempt_one(driver)
    assert len(driver.steps[-1].copy_out) == 1
    driver.run_until(lambda: "victim" in rows(driver.steps[-1]))
    assert rows(driver.steps[-1])["victim"][0] == 4
    driver.run()


def test_a_device_block_that_goes_out_may_be_reused_in_the_same_step() -> None:
    driver = swapping(caching=False)
    preempt_one(driver)
    step = driver.steps[-1]
    went = {device for device, _ in step.copy_out}
    taken = {block for row in step.scheduled for block in row.new_block_ids}
    assert taken and taken <= went


def test_preempted_in_the_middle_of_its_prompt() -> None:
    driver = swapping(num_blocks=13, budget=8, caching=False)
    driver.add("keeps", 7, max_tokens=30)
    driver.add("victim", 40, max_tokens=2)
    driver.run_until(driver.preempts)
    computed = len(driver.steps[-1].copy_out) * 4
    assert 0 < computed < 40
    driver.run_until(lambda: "victim" in rows(driver.steps[-1]))
    assert rows(driver.steps[-1])["victim"][0] == computed
    driver.run()


def test_preempted_twice_in_a_row_it_copies_only_what_is_new() -> None:
    driver = swapping(num_blocks=7, policy="priority")
    driver.add("keeps", 11, max_tokens=9)
    driver.add("victim", 11, max_tokens=16, priority=1)
    driver.run_until(driver.preempts)
    driver.run_until(lambda: "keeps" not in driver.scheduler.requests)
    driver.add("keeps too", 8, max_tokens=12)
    driver.run()
    copied = [host for step in driver.steps for _, host in step.copy_out]
    assert sum("victim" in step.preempted_request_ids for step in driver.steps) == 2
    assert len(copied) == len(set(copied)) > 3
    assert len(driver.tokens("victim")) == 16


def test_preempted_on_a_block_boundary_nothing_is_computed_twice() -> None:
    driver = swapping(caching=False)
    driver.add("keeps", 12, max_tokens=9)
    driver.add("victim", 12, max_tokens=9)
    driver.run_until(driver.preempts)
    assert len(driver.steps[-1].copy_out) == 3  # all 12 computed tokens
    driver.run()
    assert sum(num_tokens for step in driver.steps for _, num_tokens in rows(step).values()) == 2 * (12 + 8)


def test_preempted_right_after_its_drafts_were_rejected() -> None:
    driver = swapping(caching=False)
    driver.add("keeps", 11, max_tokens=9)
    driver.add("victim", 11, max_tokens=9)
    driver.step()
    driver.drafts = {"victim": [5, 5, 5, 5]}
    driver.run_until(driver.preempts)
    assert len(driver.steps[-1].copy_out) * 4 <= 13  # rejected drafts filled more slots than that
    driver.drafts = {}
    driver.run()
    assert len(driver.tokens("victim")) == 9


def test_a_swapped_request_that_is_aborted_gives_its_host_blocks_back() -> None:
    driver = swapping()
    preempt_one(driver)
    host = driver.scheduler.kv.host
    assert host.pool.num_used == 3
    assert not driver.scheduler.reset_prefix_cache()
    driver.scheduler.abort(["victim", "keeps"])
    assert host.pool.num_used == 0
    driver.step()
    driver.scheduler.check_integrity()
    assert driver.scheduler.reset_prefix_cache() and not host.pool.cached


def test_others_hit_what_a_victim_left_on_the_host() -> None:
    prompt = list(range(11))
    driver = swapping(num_blocks=6)
    driver.add("keeps", 11, max_tokens=9)
    driver.add("victim", prompt, max_tokens=9)
    driver.run()
    driver.add("big", 23, max_tokens=1)  # through the device's cache
    driver.run()
    driver.add("later", prompt, max_tokens=1)
    step = driver.step()
    assert rows(step)["later"][0] == 8 and len(step.copy_in) >= 1


# -- offloading


def offloading(num_host_blocks: int = 20, num_blocks: int = 6) -> Driver:
    return Driver(num_blocks=num_blocks, tiers=TierConfig(num_host_blocks, offload=True))


def evicted_prefix(driver: Driver) -> list[int]:
    prompt = list(range(13))
    driver.add("first", prompt, max_tokens=1)
    driver.run()
    driver.add("big", 23, max_tokens=1)
    driver.run()
    return prompt


def test_what_the_device_evicts_is_found_on_the_host() -> None:
    driver = offloading()
    prompt = evicted_prefix(driver)
    assert len(driver.steps[-1].copy_out) == 3
    driver.add("again", prompt, max_tokens=1)
    step = driver.step()
    assert rows(step)["again"] == (12, 1)
    assert [host for host, _ in step.copy_in] == [3, 2, 1]  # evicted from the tail


def test_two_with_the_same_prefix_on_the_host_copy_it_once() -> None:
    driver = offloading(num_blocks=8)
    prompt = evicted_prefix(driver)
    driver.add("a", prompt, max_tokens=2)
    driver.add("b", prompt, max_tokens=2)
    driver.run()
    assert sum(len(step.copy_in) for step in driver.steps) <= 3
    shared = [step for step in driver.steps if "b" in rows(step)]
    assert rows(shared[0])["b"][0] == 12


def test_without_offloading_an_evicted_block_is_gone() -> None:
    driver = swapping()
    prompt = evicted_prefix(driver)
    assert not any(step.copy_out for step in driver.steps)
    driver.add("again", prompt, max_tokens=1)
    assert rows(driver.step())["again"] == (0, 13)


# -- what a run tells about it


def test_cached_tokens_are_counted_by_where_they_were() -> None:
    driver = offloading()
    prompt = evicted_prefix(driver)
    driver.add("again", prompt, max_tokens=1)
    driver.step()
    on_host = len(driver.steps[-1].copy_in) * 4
    stats = driver.scheduler.stats
    assert driver.outputs["again"][-1].cached_tokens_by_source == {"host": on_host}
    assert (stats.prefix_cache_hits, stats.prefix_cache_host_hits) == (12, on_host)
    driver.add("once more", prompt, max_tokens=1)
    driver.step()
    assert driver.outputs["once more"][-1].cached_tokens_by_source == {"device": 12}
    assert driver.scheduler.stats.prefix_cache_host_hits == 0


def test_blocks_and_bytes_that_move_are_counted() -> None:
    tiers = TierConfig(20, swap=True, offload=True, block_bytes=1000)
    driver = Driver(num_blocks=6, tiers=tiers)
    preempt_one(driver)
    stats = driver.scheduler.stats
    out = driver.steps[-1].copy_out
    assert (stats.num_blocks_swapped_out, stats.num_blocks_offloaded) == (3, len(out) - 3)
    assert stats.host_bytes_out == 1000 * len(out)
    driver.run_until(lambda: bool(driver.steps[-1].copy_in))
    stats = driver.scheduler.stats
    assert stats.num_blocks_copied_in == len(driver.steps[-1].copy_in) > 0
    assert stats.host_bytes_in == 1000 * stats.num_blocks_copied_in


def traced_run_with_copies(path: Path) -> TraceReader:
    for seed in range(100):
        run = random_run(path, seed, num_requests=40)
        reader = TraceReader(path)
        if sum(len(out.copy_in) for out in run.outputs) > 20:
            told = [(step.copy_out, step.copy_in) for step in map(reader.step, range(reader.num_steps))]
            assert told == [(out.copy_out, out.copy_in) for out in run.outputs]
            return reader
    raise AssertionError("no seed copies much")


def test_a_trace_tells_every_copy_and_its_counters(tmp_path: Path) -> None:
    reader = traced_run_with_copies(tmp_path / "run.itrace")
    assert not reader.problems
    steps = [reader.step(index) for index in range(reader.num_steps)]
    for step in steps:
        assert step.counters.get("num_blocks_copied_in", 0) == len(step.copy_in)
        num_out = step.counters.get("num_blocks_swapped_out", 0) + step.counters.get(
            "num_blocks_offloaded", 0
        )
        assert num_out == len(step.copy_out)


def test_a_trace_in_which_a_block_comes_back_as_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.itrace"
    traced_run_with_copies(path)
    records = records_of(path.read_bytes())
    reader = write(path, records, honest_log=True)
    assert not reader.problems
    copies = [pair for record in records if record["t"] == "step" for pair in record.get("in", [])]
    for pair in copies:
        pair[0] = next(other[0] for other in [*copies, [pair[0] + 1]] if other[0] != pair[0])
    reader = write(path, records, honest_log=True)
    assert any("publishes another hash" in problem.message for problem in reader.problems)


def test_a_thousand_random_requests_leave_nothing_behind() -> None:
    rng = random.Random(0)
    tiers = TierConfig(24, swap=True, offload=True)
    driver = Driver(num_blocks=24, tiers=tiers, policy="priority", max_num_seqs=6)
    shared = [rng.randrange(50) for _ in range(40)]
    for index in range(1000):
        same = rng.randrange(40)
        prompt = shared[:same] + [rng.randrange(50) for _ in range(rng.randint(1, 20))]
        driver.add(f"r{index}", prompt, max_tokens=rng.randint(1, 30), priority=rng.randrange(3))
        if rng.random() < 0.1:
            driver.scheduler.abort([f"r{rng.randrange(index + 1)}"])
        if len(driver.scheduler.requests) > 8:
            driver.run_until(lambda: len(driver.scheduler.requests) < 4)
    driver.run()
    kv = driver.scheduler.kv
    assert kv.pool.num_used == kv.host.pool.num_used == 0
    assert sum(len(step.copy_in) for step in driver.steps) > 100
    assert sum(bool(step.preempted_request_ids) for step in driver.steps) > 20
    assert driver.scheduler.reset_prefix_cache()
    assert not kv.pool.cached and not kv.host.pool.cached
    assert len(kv.host.pool.free) == 24 and len(kv.pool.free) == 24
