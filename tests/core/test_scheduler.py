"""Budget, admission, preemption, stopping: one decision at a time."""

from __future__ import annotations

import pytest

from engine.config import CacheConfig, ConfigError, SchedulerConfig
from engine.core.errors import RequestRejected, WorkerContractError
from engine.core.request import RequestStatus
from engine.core.sched_output import ModelRunnerOutput, Reason, reason_of
from tests.core.driver import DULL_TOKEN, Driver, rows

# -- one budget for everything


def test_a_prompt_larger_than_the_budget_is_computed_in_chunks() -> None:
    driver = Driver(budget=10)
    driver.add("a", 24)
    assert [rows(driver.step())["a"] for _ in range(4)] == [(0, 10), (10, 10), (20, 4), (24, 1)]


def test_only_the_chunk_that_ends_the_prompt_samples() -> None:
    driver = Driver(budget=10)
    driver.add("a", 24)
    driver.step()
    assert driver.tokens("a") == []
    driver.step()
    driver.step()
    assert driver.tokens("a") == [DULL_TOKEN]


def test_decodes_and_prompts_share_a_step() -> None:
    driver = Driver(budget=10)
    driver.add("a", 4, max_tokens=9)
    driver.step()
    driver.add("b", 30)
    assert rows(driver.step()) == {"a": (4, 1), "b": (0, 9)}


def test_a_long_prompt_leaves_room_for_short_ones() -> None:
    driver = Driver(budget=20, long_prefill=6)
    driver.add("long", 40)
    driver.add("short", 5)
    assert rows(driver.step()) == {"long": (0, 6), "short": (0, 5)}


def test_running_requests_without_budget_say_so() -> None:
    driver = Driver(budget=2, max_num_seqs=3)
    for request_id in "abc":
        driver.add(request_id, 2, max_tokens=9)
    for _ in range(3):
        driver.step()
    out = driver.step()
    idle = {request.request_id for request in driver.scheduler.running} - set(rows(out))
    for request_id in idle:
        reason = reason_of(out, request_id)
        assert reason is not None and reason.reason is Reason.BUDGET_EXHAUSTED
        assert reason.details["left"] == 0 and reason.details["need"] >= 1


def test_never_more_requests_run_than_max_num_seqs() -> None:
    driver = Driver(max_num_seqs=2)
    for request_id in "abcd":
        driver.add(request_id, 3)
    out = driver.step()
    assert set(rows(out)) == {"a", "b"}
    assert reason_of(out, "c").reason is Reason.MAX_NUM_SEQS
    driver.run()
    assert all(len(out.scheduled) <= 2 for out in driver.steps)


# -- without chunked prefill


def test_without_chunked_prefill_a_prompt_waits_until_it_fits_whole() -> None:
    driver = Driver(budget=20, max_model_len=20, chunked=False)
    driver.add("a", 12)
    driver.add("b", 12)
    driver.add("c", 2)
    out = driver.step()
    assert rows(out) == {"a": (0, 12)}
    blocked = reason_of(out, "b")
    assert blocked is not None and blocked.reason is Reason.BUDGET_EXHAUSTED
    assert blocked.details == {"need": 12, "left": 8}
    assert reason_of(out, "c").reason is Reason.BEHIND_IN_QUEUE
    assert rows(driver.step()) == {"a": (12, 1), "b": (0, 12), "c": (0, 2)}


def test_without_chunked_prefill_the_budget_must_hold_the_longest_sequence() -> None:
    with pytest.raises(ConfigError, match="raise max_num_batched_tokens"):
        SchedulerConfig(100, 8, max_model_len=101, enable_chunked_prefill=False)
    with pytest.raises(ConfigError, match="only one of them"):
        SchedulerConfig(100, 8, 100, enable_chunked_prefill=False, long_prefill_token_threshold=10)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SchedulerConfig(0, 8, 100),
        lambda: SchedulerConfig(8, 0, 100),
        lambda: SchedulerConfig(8, 8, 1),
        lambda: SchedulerConfig(8, 8, 100, long_prefill_token_threshold=-1),
        lambda: SchedulerConfig(8, 8, 100, policy="sjf"),
        lambda: CacheConfig(1),
        lambda: CacheConfig(10, block_size=0),
        lambda: CacheConfig(10, watermark=1.0),
        lambda: CacheConfig(10, watermark=-0.1),
        lambda: CacheConfig(10, watermark=float("nan")),
        lambda: CacheConfig(10, watermark="0.1"),
    ],
)
def test_settings_that_cannot_work_are_refused(make: object) -> None:
    with pytest.raises(ConfigError):
        make()


# -- rejected requests


@pytest.mark.parametrize(
    "prompt, max_tokens, code",
    [
        (0, 4, "empty_prompt"),
        (60, 4, "prompt_too_long"),
        (59, None, "exceeds_cache"),
        (20, 22, "exceeds_cache"),
    ],
)
def test_requests_that_can_never_finish_are_rejected(prompt: int, max_tokens: int | None, code: str) -> None:
    driver = Driver(num_blocks=10, max_model_len=60)
    with pytest.raises(RequestRejected) as caught:
        driver.add("a", prompt, max_tokens=max_tokens)
    assert caught.value.code == code
    assert not driver.scheduler.has_unfinished()
    assert "a" in str(caught.value) and "rejected" in str(caught.value)


def test_the_largest_request_that_fits_runs_to_its_end() -> None:
    driver = Driver(num_blocks=10)
    driver.add("a", 20, max_tokens=21)  # 41 tokens; the last is never computed, so 40 slots do
    driver.run()
    assert len(driver.tokens("a")) == 21
    assert all(not out.preempted_request_ids for out in driver.steps)


def test_max_tokens_beyond_max_model_len_do_not_make_a_request_too_large() -> None:
    driver = Driver(num_blocks=10, max_model_len=30)
    driver.add("a", 20, max_tokens=1000)
    driver.run()
    assert (len(driver.tokens("a")), driver.finish_reason("a")) == (10, "length")


# -- admission


def test_a_request_starts_only_when_its_whole_prompt_has_a_place() -> None:
    driver = Driver(num_blocks=10, budget=8)
    driver.add("a", 20)
    driver.add("b", 24)
    driver.step()
    assert len(driver.scheduler.requests["a"].blocks) == 5
    driver.step()
    out = driver.step()  # a needs 4 tokens of 8: budget is left, blocks are not
    refusal = reason_of(out, "b")
    assert refusal is not None and refusal.reason is Reason.NO_BLOCKS
    assert refusal.details == {"need": 6, "free": 5, "evictable": 0}
    driver.run()
    assert not any(out.preempted_request_ids for out in driver.steps)


def test_without_reservation_a_request_starts_with_blocks_for_its_first_chunk_and_may_lose_them() -> None:
    driver = Driver(num_blocks=10, budget=8, reserve_full=False)
    driver.add("a", 20)
    driver.add("b", 24)
    for _ in range(3):
        driver.step()
    assert len(driver.scheduler.requests["a"].blocks) == 5 and len(driver.scheduler.requests["b"].blocks) == 1
    driver.run()
    assert [out.preempted_request_ids for out in driver.steps if out.preempted_request_ids][0] == ["b"]


def test_a_start_beside_others_leaves_the_watermark_free_and_a_lone_one_may_take_it() -> None:
    driver = Driver(num_blocks=19, watermark=0.2)  # 4 of 20 blocks, the null block included
    driver.add("a", 40, max_tokens=2)
    driver.add("b", 24, max_tokens=2)
    driver.add("large", 70, max_tokens=2)
    out = driver.step()
    refusal = reason_of(out, "b")
    assert refusal is not None and refusal.reason is Reason.NO_BLOCKS
    assert refusal.details == {"need": 6 + 4, "free": 9, "evictable": 0}
    driver.run()
    assert not any(out.preempted_request_ids for out in driver.steps)
    assert len(driver.tokens("large")) == 2  # 18 blocks: more than the watermark ever leaves


def test_no_request_overtakes_a_head_that_does_not_fit_so_it_cannot_starve() -> None:
    driver = Driver(num_blocks=10)
    driver.add("runs", 20, max_tokens=3)
    driver.step()
    driver.add("large", 30, max_tokens=2)
    for index in range(20):
        driver.add(f"small {index}", 4, max_tokens=2)
    out = driver.step()
    assert reason_of(out, "large").reason is Reason.NO_BLOCKS
    assert reason_of(out, "small 3").reason is Reason.BEHIND_IN_QUEUE
    driver.run()
    order = [row.request_id for out in driver.steps for row in out.scheduled if row.init]
    assert order[:3] == ["runs", "large", "small 0"]


def test_the_hit_is_not_counted_twice_when_its_blocks_are_free() -> None:
    """Reviving a cached block uses up a free one: 4 free, 2 of them the hit, do not hold 3 new ones."""
    driver = Driver(num_blocks=8)
    prefix = list(range(8))
    driver.add("warm", prefix, max_tokens=1)
    driver.run()
    driver.add("runs", 16, max_tokens=2)
    driver.step()
    driver.add("b", prefix + list(range(20, 32)), max_tokens=2)
    out = driver.step()
    refusal = reason_of(out, "b")
    assert refusal is not None and refusal.reason is Reason.NO_BLOCKS
    assert refusal.details["need"] == 3
    assert refusal.details["free"] < 3
    driver.run()


# -- preemption


def two_that_do_not_fit_together(**options: object) -> Driver:
    driver = Driver(num_blocks=8, **options)
    driver.add("a", 8, max_tokens=20)
    driver.add("b", 8, max_tokens=20)
    return driver


@pytest.mark.parametrize("caching", [True, False])
def test_two_requests_that_together_exceed_the_cache_both_finish(caching: bool) -> None:
    driver = two_that_do_not_fit_together(caching=caching)
    driver.run()
    assert len(driver.tokens("a")) == len(driver.tokens("b")) == 20
    preempted = [request_id for out in driver.steps for request_id in out.preempted_request_ids]
    assert 1 <= len(preempted) <= 3 and set(preempted) == {"b"}


def test_a_step_that_preempts_admits_no_request() -> None:
    driver = two_that_do_not_fit_together()
    driver.add("c", 1, max_tokens=30, arrival=1)
    driver.run(200)
    for out in driver.steps:
        if out.preempted_request_ids:
            assert not any(row.init for row in out.scheduled)


def test_the_victim_and_all_behind_it_have_a_reason() -> None:
    driver = Driver(num_blocks=8, max_num_seqs=2)
    driver.add("a", 8, max_tokens=20)
    driver.add("b", 8, max_tokens=20)
    driver.add("c", 8, max_tokens=20)
    driver.run_until(driver.preempts)
    out = driver.steps[-1]
    lost = reason_of(out, "b")
    assert lost is not None and lost.reason in (Reason.LOWER_PRIORITY, Reason.NO_BLOCKS)
    assert lost.details["need"] == 1 and lost.details["free"] == 0
    assert reason_of(out, "c").reason is Reason.PREEMPTING


def test_a_preempted_request_keeps_its_output_and_resumes_with_it() -> None:
    driver = two_that_do_not_fit_together()
    victim = driver.scheduler.requests["b"]
    driver.run_until(driver.preempts)
    before = driver.tokens("b")
    assert victim.status is RequestStatus.PREEMPTED
    assert victim.num_computed_tokens == 0 and not victim.blocks
    assert victim.output_token_ids == before
    driver.run_until(lambda: "b" in rows(driver.steps[-1]))
    row = next(row for row in driver.steps[-1].scheduled if row.request_id == "b")
    assert row.init is not None
    assert row.init.token_ids == victim.prompt_token_ids + before
    assert row.init.num_prompt_tokens == 8 and row.init.seed == victim.seed
    assert row.start > 0, "its own blocks were still cached"


def test_a_request_can_be_preempted_in_the_middle_of_its_prompt() -> None:
    driver = Driver(num_blocks=8, budget=2, policy="priority")
    driver.add("high", 2, priority=0, max_tokens=24)
    driver.step()
    driver.add("low", 20, priority=9, max_tokens=2)
    low = driver.scheduler.requests["low"]
    driver.run_until(driver.preempts)
    assert low.num_output_tokens == 0
    driver.run()
    assert len(driver.tokens("low")) == 2


@pytest.mark.parametrize("prompt", [7, 8, 9])
def test_a_victim_recomputes_only_its_newest_token_and_the_block_that_was_taken(prompt: int) -> None:
    driver = Driver(num_blocks=6)
    driver.add("a", prompt, max_tokens=24 - prompt)
    driver.add("b", prompt, max_tokens=24 - prompt)
    driver.run_until(driver.preempts)
    known = driver.scheduler.requests["b"].num_tokens
    driver.scheduler.abort(["a"])
    start, num_tokens = rows(driver.step())["b"]
    assert start + num_tokens == known and num_tokens <= 4 + 1
    driver.run()
    assert len(driver.tokens("b")) == 24 - prompt


def test_a_waiting_request_never_takes_blocks_from_a_running_one() -> None:
    """Priority decides who starts next and who loses when memory runs out, as in vLLM."""
    driver = Driver(num_blocks=6, policy="priority")
    driver.add("low", 16, priority=9, max_tokens=4)
    driver.step()
    driver.add("high", 16, priority=0, max_tokens=4)
    out = driver.step()
    assert set(rows(out)) == {"low"} and not out.preempted_request_ids
    assert reason_of(out, "high").reason is Reason.NO_BLOCKS


def test_a_request_can_be_preempted_twice_in_a_row() -> None:
    driver = Driver(num_blocks=8, caching=False)
    driver.add("short", 4, max_tokens=8)  # takes low's blocks, then leaves
    driver.add("long", 4, max_tokens=24)  # takes them again when low is back
    low = driver.add("low", 4, max_tokens=20)
    driver.run()
    assert low.num_preemptions == 2
    assert [len(driver.tokens(request_id)) for request_id in ("short", "long", "low")] == [8, 24, 20]
    assert [name for name, _ in low.events].count("PREEMPTED") == low.num_preemptions


def test_the_victim_is_the_least_important_and_among_equals_the_last_to_arrive() -> None:
    driver = Driver(num_blocks=6, policy="priority")
    driver.add("late and dear", 4, priority=0, arrival=5, max_tokens=12)
    driver.add("early and cheap", 4, priority=1, arrival=1, max_tokens=12)
    driver.add("late and cheap", 4, priority=1, arrival=2, max_tokens=12)
    driver.run()
    order = [request_id for out in driver.steps for request_id in out.preempted_request_ids]
    assert order[0] == "late and cheap"
    assert "late and dear" not in order


def test_equal_priorities_are_served_first_come_first() -> None:
    driver = Driver(max_num_seqs=1, policy="priority")
    for request_id, arrival in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
        driver.add(request_id, 3, arrival=arrival, max_tokens=1)
    driver.run()
    assert [next(iter(rows(out))) for out in driver.steps] == ["a", "b", "c"]


def test_equal_arrivals_are_served_in_the_order_of_their_addition() -> None:
    driver = Driver(max_num_seqs=1)
    names = [f"r{index}" for index in range(12)]  # as strings, r10 comes before r2
    for request_id in names:
        driver.add(request_id, 3, max_tokens=1)
    driver.run()
    assert [next(iter(rows(out))) for out in driver.steps] == names


def test_fcfs_ignores_priorities() -> None:
    driver = Driver(max_num_seqs=1, policy="fcfs")
    driver.add("first", 3, priority=9, max_tokens=1)
    driver.add("second", 3, priority=0, max_tokens=1)
    assert set(rows(driver.step())) == {"first"}


def test_a_low_priority_request_goes_on_when_the_load_drops() -> None:
    driver = Driver(num_blocks=8, max_num_seqs=2, policy="priority")
    driver.add("low", 8, priority=9, max_tokens=20)
    for index in range(4):
        driver.add(f"high {index}", 8, priority=0, max_tokens=12)
    driver.run()
    assert len(driver.tokens("low")) == 20


# -- stopping


def sampled(driver: Driver, *tokens: int) -> list[int]:
    """Let the next requests sample these tokens, one a step, and return what the client got."""
    stream = iter(tokens)
    driver.sample = lambda request: [next(stream)]
    driver.run()
    return driver.tokens("a")


def test_eos_stops_and_gives_no_stop_reason() -> None:
    driver = Driver()
    driver.add("a", 4, max_tokens=9, eos=(7, 8))
    assert sampled(driver, 1, 8) == [1, 8]
    last = driver.outputs["a"][-1]
    assert (last.finish_reason, last.stop_reason) == ("stop", None)


def test_ignore_eos_goes_on() -> None:
    driver = Driver()
    driver.add("a", 4, max_tokens=3, eos=(7,), ignore_eos=True)
    assert sampled(driver, 7, 7, 7) == [7, 7, 7]
    assert driver.finish_reason("a") == "length"


def test_a_stop_token_id_stops_and_is_the_reason_even_when_eos_is_ignored() -> None:
    driver = Driver()
    driver.add("a", 4, max_tokens=9, eos=(7,), ignore_eos=True, stop_token_ids=[7])
    assert sampled(driver, 1, 7) == [1, 7]
    last = driver.outputs["a"][-1]
    assert (last.finish_reason, last.stop_reason) == ("stop", 7)


def test_before_min_tokens_neither_eos_nor_stop_ids_count() -> None:
    driver = Driver()
    driver.add("a", 4, max_tokens=9, min_tokens=3, eos=(7,), stop_token_ids=[6])
    assert sampled(driver, 7, 6, 7) == [7, 6, 7]
    assert driver.finish_reason("a") == "stop"


def test_a_stop_on_the_last_allowed_token_is_a_stop() -> None:
    driver = Driver()
    driver.add("a", 4, max_tokens=2, eos=(7,))
    sampled(driver, 1, 7)
    assert driver.finish_reason("a") == "stop"


def test_max_tokens_none_runs_to_max_model_len() -> None:
    driver = Driver(max_model_len=20)
    driver.add("a", 4, max_tokens=None)
    driver.run()
    assert (len(driver.tokens("a")), driver.finish_reason("a")) == (16, "length")


# -- speculation


def speculate(drafts: list[int], sampled_ids: list[int], **options: object) -> Driver:
    """One request that has its first token and is offered drafts, of which the model confirms some."""
    driver = Driver()
    driver.add("a", 6, **({"max_tokens": 20} | options))
    driver.drafts = {"a": drafts}
    driver.step()
    driver.drafts = {}
    driver.sample = lambda request: sampled_ids
    driver.step()
    return driver


@pytest.mark.parametrize("num_accepted", [0, 1, 2, 3])
def test_rejected_drafts_are_rolled_back_and_confirmed_ones_kept(num_accepted: int) -> None:
    drafts = [5, 5, 5]
    driver = speculate(drafts, drafts[:num_accepted] + [9])
    row = driver.steps[-1].scheduled[0]
    assert (row.start, row.num_tokens, row.spec_token_ids) == (6, 4, drafts)
    request = driver.scheduler.requests["a"]
    assert request.output_token_ids == [DULL_TOKEN] + drafts[:num_accepted] + [9]
    assert request.num_computed_tokens == request.num_tokens - 1
    stats = driver.scheduler.stats
    assert (stats.num_draft_tokens, stats.num_accepted_tokens) == (3, num_accepted)


def test_drafts_that_no_longer_fit_into_max_tokens_are_cut() -> None:
    driver = speculate([5, 5, 5, 5, 5], [5, 5, 9], max_tokens=4)
    assert driver.steps[-1].scheduled[0].spec_token_ids == [5, 5]
    assert (driver.tokens("a"), driver.finish_reason("a")) == ([DULL_TOKEN, 5, 5, 9], "length")


def test_drafts_never_reach_beyond_max_model_len() -> None:
    driver = Driver(max_model_len=10)
    driver.add("a", 6, max_tokens=None)
    driver.drafts = {"a": [5] * 9}
    driver.sample = lambda request: [5] * (1 + len(driver.steps[-1].scheduled[0].spec_token_ids))
    driver.run()
    assert all(row.start + row.num_tokens < 10 for out in driver.steps for row in out.scheduled)
    assert driver.tokens("a") == [5] * 4


def test_drafts_are_cut_to_the_budget() -> None:
    driver = Driver(budget=8)
    driver.add("a", 4, max_tokens=20)
    driver.add("b", 4, max_tokens=20)
    driver.drafts = {"a": [5] * 6, "b": [5] * 6}
    driver.step()
    driver.sample = lambda request: [9]
    out = driver.step()
    assert rows(out) == {"a": (4, 7), "b": (4, 1)}
    assert out.scheduled[1].spec_token_ids == []


def test_a_draft_preempts_no_request() -> None:
    driver = Driver(num_blocks=4)
    driver.add("a", 6, max_tokens=4)
    driver.add("b", 6, max_tokens=2)
    driver.drafts = {"a": [5, 5, 5]}
    driver.step()
    out = driver.step()  # 7 tokens in 2 blocks: one more fits, three drafts do not
    assert rows(out) == {"a": (6, 1), "b": (6, 1)}
    driver.run()
    assert not any(out.preempted_request_ids for out in driver.steps)


def test_tokens_behind_an_eos_inside_accepted_drafts_never_existed() -> None:
    driver = speculate([5, 7, 5], [5, 7, 5, 9], eos=(7,))
    assert driver.tokens("a") == [DULL_TOKEN, 5, 7]
    assert driver.finish_reason("a") == "stop"
    assert driver.scheduler.stats.num_generated_tokens == 2


def test_a_request_can_be_preempted_right_after_a_rejection() -> None:
    driver = Driver(num_blocks=6)
    driver.add("a", 8, max_tokens=13)
    driver.add("b", 8, max_tokens=13)
    driver.drafts = {"a": [5, 5], "b": [5, 5]}
    driver.run(200)
    assert any(out.preempted_request_ids for out in driver.steps)
    assert driver.tokens("a") == driver.tokens("b") == [DULL_TOKEN] * 13


# -- the seam to the worker


@pytest.mark.parametrize("sampled_ids", [[], [1, 2]])
def test_an_answer_that_does_not_match_the_step_is_an_error_not_a_hang(sampled_ids: list[int]) -> None:
    driver = Driver()
    driver.add("a", 4)
    out = driver.schedule()
    with pytest.raises(WorkerContractError, match="'a'"):
        driver.scheduler.update(out, ModelRunnerOutput(sampled_token_ids={"a": sampled_ids}))


def test_a_row_that_goes_on_carries_only_what_is_new() -> None:
    driver = Driver(block_size=4)
    driver.add("a", 7)
    first = driver.step().scheduled[0]
    assert first.init is not None and len(first.new_block_ids) == 2
    second, third = driver.step().scheduled[0], driver.step().scheduled[0]
    assert (second.init, second.new_block_ids) == (None, [])  # token 7 still fits
    assert (third.init, len(third.new_block_ids)) == (None, 1)


def test_the_null_block_is_never_handed_out() -> None:
    driver = Driver(num_blocks=5)
    driver.add("a", 16, max_tokens=4)
    driver.run()
    assert all(0 not in row.new_block_ids for out in driver.steps for row in out.scheduled)


def test_an_idle_scheduler_plans_an_empty_step() -> None:
    driver = Driver()
    out = driver.step()
    assert (out.step, out.scheduled, out.not_scheduled) == (0, [], [])
    assert driver.step().step == 1


# -- blocks for drafts


@pytest.mark.parametrize(("lookahead", "num_blocks"), [(1, 2), (2, 3), (5, 3), (6, 4)])
def test_a_request_that_samples_holds_blocks_for_its_drafts(lookahead: int, num_blocks: int) -> None:
    """Prompt of 7 in blocks of 4: a drafter writes from position 7 on, once the whole prompt is computed."""
    driver = Driver(lookahead=lookahead, budget=4)
    request = driver.add("a", 7, max_tokens=20)
    driver.step()
    assert len(request.blocks) == 2
    driver.step()
    assert len(request.blocks) == num_blocks


def test_blocks_for_drafts_end_with_the_request_and_come_from_free_blocks_only() -> None:
    driver = Driver(lookahead=8, num_blocks=4)
    short = driver.add("a", 4, max_tokens=2)
    driver.step()
    assert len(short.blocks) == 2, "6 tokens at most"
    long = driver.add("b", 4, max_tokens=12)
    driver.step()
    assert len(long.blocks) == 1, "8 drafts need two more, and one is free"
