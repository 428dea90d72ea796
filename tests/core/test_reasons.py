"""Every request that computes nothing in a step has exactly one reason, and explaining costs nothing."""

from __future__ import annotations

import pickle

from engine.core.sched_output import Reason, reason_of
from engine.core.scheduler import MAX_DEFERRED_PER_STEP
from tests.core.driver import Driver, rows


def test_a_scheduled_request_has_no_reason() -> None:
    driver = Driver()
    driver.add("a")
    assert reason_of(driver.step(), "a") is None


def test_all_who_were_not_looked_at_share_one_entry() -> None:
    driver = Driver(max_num_seqs=1)
    for index in range(1000):
        driver.add(f"r{index}", 4)
    out = driver.step()
    assert len(out.not_scheduled) == 1 and out.not_scheduled[0].request_id is None
    assert {reason_of(out, f"r{index}").reason for index in range(1, 1000)} == {Reason.MAX_NUM_SEQS}


def test_a_used_up_budget_is_the_reason_of_those_who_wait() -> None:
    driver = Driver(budget=10)
    driver.add("a", 30)
    driver.add("b", 7)
    reason = reason_of(driver.step(), "b")
    assert reason is not None
    assert (reason.reason, reason.details) == (Reason.BUDGET_EXHAUSTED, {"need": 7, "left": 0})


def test_one_step_passes_over_a_bounded_number_of_requests() -> None:
    driver = Driver(max_num_seqs=500, budget=1000, num_blocks=1000)
    prompt = list(range(13))
    for index in range(MAX_DEFERRED_PER_STEP + 20):
        driver.add(f"r{index}", prompt)
    out = driver.step()
    assert set(rows(out)) == {"r0"}
    named = [entry for entry in out.not_scheduled if entry.request_id is not None]
    assert len(named) == MAX_DEFERRED_PER_STEP
    assert {entry.reason for entry in named} == {Reason.PREFIX_IN_FLIGHT}
    last = reason_of(out, f"r{MAX_DEFERRED_PER_STEP + 19}")
    assert last is not None and last.reason is Reason.BEHIND_IN_QUEUE
    assert len(rows(driver.step())) == MAX_DEFERRED_PER_STEP + 20


def test_the_order_of_the_queue_survives_being_passed_over() -> None:
    driver = Driver(max_num_seqs=2)
    prompt = list(range(13))
    for request_id in "abcd":
        driver.add(request_id, prompt)
    driver.run()
    order = [row.request_id for out in driver.steps for row in out.scheduled if row.init]
    assert order == list("abcd")


def test_a_request_that_lost_its_own_blocks_because_it_is_last_in_line_lacks_blocks() -> None:
    driver = Driver(num_blocks=8, caching=False)
    driver.add("a", 12, max_tokens=16)
    driver.add("b", 15, max_tokens=10)  # a has 3 blocks, b 4: the next request that needs a block is b
    driver.add("c", 4, max_tokens=2)
    driver.run_until(driver.preempts)
    out = driver.steps[-1]
    reasons = {entry.request_id: entry.reason for entry in out.not_scheduled}
    assert set(out.preempted_request_ids) <= set(reasons)
    assert set(reasons.values()) <= {Reason.NO_BLOCKS, Reason.LOWER_PRIORITY, Reason.PREEMPTING}


def test_a_step_travels_to_a_worker_in_another_process() -> None:
    driver = Driver(max_num_seqs=1)
    driver.add("a")
    driver.add("b")
    out = driver.step()
    assert pickle.loads(pickle.dumps(out)) == out
