"""Requests come, end and are aborted at any moment; nothing they held stays behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.core.errors import IntegrityError, RequestRejected
from engine.core.request import RequestStatus
from tests.core.driver import DULL_TOKEN, Driver, make_request, rows


def all_blocks_are_free(driver: Driver) -> bool:
    driver.scheduler.check_integrity()
    return driver.scheduler.kv.pool.num_used == 0


def test_aborting_an_unknown_id_does_nothing() -> None:
    driver = Driver()
    assert driver.scheduler.abort(["unknown"]) == []


def test_aborting_twice_gives_one_last_output() -> None:
    driver = Driver()
    driver.add("a")
    driver.step()
    assert len(driver.scheduler.abort(["a", "a"])) == 1
    assert driver.scheduler.abort(["a"]) == []
    assert all_blocks_are_free(driver)


def test_a_request_can_be_aborted_before_its_first_step() -> None:
    driver = Driver()
    request = driver.add("a")
    (output,) = driver.scheduler.abort(["a"])
    assert (output.finish_reason, output.new_token_ids, output.num_cached_tokens) == ("abort", [], 0)
    assert request.status is RequestStatus.FINISHED_ABORTED
    out = driver.step()
    assert not out.scheduled and not out.finished_request_ids, "the worker never had it"


def test_a_waiting_request_can_be_aborted_without_disturbing_the_queue() -> None:
    driver = Driver(max_num_seqs=1)
    for request_id in "abcd":
        driver.add(request_id, 3, max_tokens=1)
    driver.scheduler.abort(["c", "a"])
    driver.run()
    assert [next(iter(rows(out))) for out in driver.steps] == ["b", "d"]


def test_a_client_that_leaves_frees_its_blocks_at_once() -> None:
    driver = Driver()
    driver.add("a", 40)
    driver.step()
    assert driver.scheduler.kv.pool.num_used == 10
    driver.scheduler.abort(["a"])
    assert all_blocks_are_free(driver)
    assert driver.step().finished_request_ids == ["a"]
    assert driver.step().finished_request_ids == []


@pytest.mark.parametrize("max_tokens", [1, 4])
def test_an_abort_while_the_step_is_in_flight_wins_even_if_the_step_would_finish_it(max_tokens: int) -> None:
    driver = Driver()
    driver.add("a", 8, max_tokens=max_tokens)
    out = driver.schedule()
    (last,) = driver.scheduler.abort(["a"])
    assert last.finish_reason == "abort"
    assert driver.update(out) == []
    assert all_blocks_are_free(driver)


def test_an_abort_after_the_step_that_finished_it_comes_too_late() -> None:
    driver = Driver()
    driver.add("a", 8, max_tokens=1)
    driver.step()
    assert driver.finish_reason("a") == "length"
    assert driver.scheduler.abort(["a"]) == []
    assert driver.step().finished_request_ids == ["a"]
    assert all_blocks_are_free(driver)


def test_a_preempted_request_can_be_aborted() -> None:
    driver = Driver(num_blocks=8)
    driver.add("a", 8, max_tokens=20)
    driver.add("b", 8, max_tokens=20)
    driver.run_until(driver.preempts)
    (last,) = driver.scheduler.abort(["b"])
    assert (last.finish_reason, last.num_preemptions) == ("abort", 1)
    assert "b" not in driver.step().finished_request_ids, "the worker freed its slot at the preemption"
    driver.run()
    assert all_blocks_are_free(driver)


def test_an_id_can_be_used_again_while_the_old_requests_step_is_in_flight() -> None:
    driver = Driver()
    driver.add("a", 8)
    out = driver.schedule()
    driver.scheduler.abort(["a"])
    driver.scheduler.add(make_request("a", [5, 6, 7]))
    assert driver.update(out) == [], "the old step's token is dropped"
    following = driver.step()
    assert following.finished_request_ids == ["a"], "the worker frees the old slot first"
    assert following.scheduled[0].init is not None
    assert following.scheduled[0].init.token_ids == [5, 6, 7]
    driver.run()
    assert driver.tokens("a") == [DULL_TOKEN] * 4


def test_aborting_everything_at_once_leaves_an_empty_scheduler() -> None:
    driver = Driver(num_blocks=30, max_num_seqs=4)
    for index in range(20):
        driver.add(f"r{index}", 10)
    driver.step()
    assert len(driver.scheduler.abort(list(driver.scheduler.requests))) == 20
    assert not driver.scheduler.has_unfinished()
    assert not driver.scheduler.waiting and not driver.scheduler.running
    assert all_blocks_are_free(driver)


def test_a_duplicate_id_is_rejected_while_the_first_lives_and_accepted_after() -> None:
    driver = Driver()
    driver.add("a", max_tokens=1)
    with pytest.raises(RequestRejected) as caught:
        driver.add("a")
    assert caught.value.code == "duplicate_id"
    driver.run()
    driver.add("a")
    driver.run()
    assert len(driver.tokens("a")) == 1 + 4


def test_a_rejected_request_leaves_no_trace() -> None:
    driver = Driver(num_blocks=4)
    with pytest.raises(RequestRejected):
        driver.add("a", 100)
    assert not driver.scheduler.requests and not driver.scheduler.waiting
    assert not driver.step().finished_request_ids


def ticking() -> Iterator[float]:
    now = 0.0
    while True:
        now += 1.0
        yield now


def test_a_request_records_the_events_of_its_life_in_order() -> None:
    clock = ticking()
    driver = Driver(num_blocks=8, clock=lambda: next(clock))
    driver.add("a", 8, max_tokens=20)
    driver.add("b", 8, max_tokens=20)
    driver.run()
    events = driver.outputs["b"][-1].events
    assert events is not None
    names = [name for name, _ in events]
    assert names == ["QUEUED", "SCHEDULED", "FIRST_TOKEN", "PREEMPTED", "SCHEDULED", "FINISHED"]
    times = [time for _, time in events]
    assert times == sorted(times)


def test_prompt_logprobs_are_delivered_once_even_if_the_prompt_is_computed_again() -> None:
    from engine.core.sched_output import ModelRunnerOutput, TokenLogprobs

    driver = Driver(num_blocks=8, budget=6, long_prefill=3)
    driver.add("a", 3, max_tokens=25)
    driver.add("b", 8, max_tokens=15, prompt_logprobs=0)
    delivered: list[int] = []
    while driver.scheduler.has_unfinished():
        out = driver.schedule()
        result = ModelRunnerOutput()
        for row in out.scheduled:
            request, end = driver.scheduler.requests[row.request_id], row.start + row.num_tokens
            targets = request.prompt_token_ids[row.start + 1 : end + 1]
            if row.request_id == "b" and targets:
                result.prompt_logprobs["b"] = [TokenLogprobs([token], [0.0], 1) for token in targets]
            if end >= request.num_tokens:
                result.sampled_token_ids[row.request_id] = [DULL_TOKEN]
        for output in driver.scheduler.update(out, result):
            delivered += [entry.token_ids[0] for entry in output.prompt_logprobs or []]
    assert any(out.preempted_request_ids for out in driver.steps)
    assert delivered == make_request("b", 8).prompt_token_ids[1:]


def test_logprobs_of_dropped_tokens_are_dropped() -> None:
    from engine.core.sched_output import ModelRunnerOutput, TokenLogprobs

    driver = Driver()
    driver.add("a", 6, max_tokens=9, eos=(7,))
    driver.drafts = {"a": [5, 7, 5]}
    driver.step()
    out = driver.schedule()
    logprobs = [TokenLogprobs([token], [0.0], 1) for token in (5, 7, 5, 9)]
    (last,) = driver.scheduler.update(out, ModelRunnerOutput({"a": [5, 7, 5, 9]}, {"a": logprobs}))
    assert last.new_token_ids == [5, 7]
    assert last.logprobs == logprobs[:2]


# -- check_integrity notices


def corrupt_ref_count(driver: Driver) -> None:
    driver.scheduler.running[0].blocks[0].ref_count += 1


def corrupt_queue(driver: Driver) -> None:
    pool = driver.scheduler.kv.pool
    pool.free.remove(next(iter(pool.free)))


def corrupt_index(driver: Driver) -> None:
    driver.scheduler.running[0].blocks[0].block_hash = b"other"


def corrupt_running(driver: Driver) -> None:
    driver.scheduler.running.reverse()


def corrupt_null_block(driver: Driver) -> None:
    driver.scheduler.kv.pool.null_block.ref_count = 1


def corrupt_progress(driver: Driver) -> None:
    driver.scheduler.running[0].num_computed_tokens = 400


def corrupt_requests(driver: Driver) -> None:
    del driver.scheduler.requests["a"]


@pytest.mark.parametrize(
    "corrupt",
    [
        corrupt_ref_count,
        corrupt_queue,
        corrupt_index,
        corrupt_running,
        corrupt_null_block,
        corrupt_progress,
        corrupt_requests,
    ],
)
def test_check_integrity_names_what_is_broken(corrupt: object) -> None:
    driver = Driver()
    driver.add("a", 9)
    driver.add("b", 9)
    driver.step()
    corrupt(driver)
    with pytest.raises(IntegrityError, match="inconsistent"):
        driver.scheduler.check_integrity()
