"""A request that is passed over keeps its seat, its blocks and the next step's budget."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from engine.core.sched_output import Reason, SchedulerOutput, reason_of
from tests.core.driver import Driver, rows

SHARED = list(range(13))
"""Three full blocks of 4, and one token."""


def refused(out: SchedulerOutput, request_id: str) -> Reason:
    reason = reason_of(out, request_id)
    assert reason is not None
    return reason.reason


@pytest.mark.parametrize("policy", ["priority", "fcfs"])
def test_a_request_whose_prefix_is_in_flight_keeps_its_seat(policy: str) -> None:
    driver = Driver(policy=policy, max_num_seqs=2)
    driver.add("a", SHARED, max_tokens=100)
    driver.add("b", SHARED, max_tokens=100)
    driver.add("c", 8, priority=9, max_tokens=100)
    out = driver.step()
    assert set(rows(out)) == {"a"}
    assert refused(out, "b") is Reason.PREFIX_IN_FLIGHT and refused(out, "c") is Reason.BEHIND_IN_QUEUE
    assert rows(driver.step())["b"] == (12, 1)
    driver.run()


def test_seats_beyond_the_claimed_ones_are_free_for_others() -> None:
    driver = Driver(policy="priority", max_num_seqs=3)
    for name in "ab":
        driver.add(name, SHARED)
    driver.add("c", 8, priority=9)
    assert set(rows(driver.step())) == {"a", "c"}
    assert set(rows(driver.step())) == {"a", "b", "c"}


@pytest.mark.parametrize("num_blocks, starts", [(9, False), (10, True)])
def test_a_request_whose_prefix_is_in_flight_keeps_the_blocks_that_it_will_not_share(
    num_blocks: int, starts: bool
) -> None:
    """a has 5 blocks; b shares 3 of them and needs 2 more; c needs 3."""
    driver = Driver(num_blocks=num_blocks, policy="priority")
    driver.add("a", [*SHARED, *range(50, 55)])
    driver.add("b", [*SHARED[:12], *range(70, 78)])
    driver.add("c", 10, priority=9, max_tokens=2)
    out = driver.step()
    assert refused(out, "b") is Reason.PREFIX_IN_FLIGHT
    assert ("c" in rows(out)) == starts
    assert starts or refused(out, "c") is Reason.BEHIND_IN_QUEUE
    assert rows(driver.step())["b"][0] == 12
    driver.run()


def test_a_long_prompt_does_not_take_the_budget_of_the_step_in_which_a_request_can_start() -> None:
    driver = Driver(budget=20)
    driver.add("a", SHARED)
    driver.add("b", SHARED)
    driver.add("long", 90)
    driver.add("short", 4)
    assert set(rows(driver.step())) == {"a"}
    out = driver.step()
    assert list(rows(out)) == ["a", "b", "long"]


def test_a_prompt_that_is_cut_to_chunks_leaves_budget_and_need_not_wait() -> None:
    driver = Driver(budget=20, long_prefill=6)
    for name in "ab":
        driver.add(name, SHARED[:5])
    driver.add("long", 90)
    assert set(rows(driver.step())) == {"a", "long"}


def waiting_for_a_slot(policy: str, **options: Any) -> Driver:
    """a uses the only slot, b waits for it."""
    driver = Driver(max_loras=1, policy=policy, **options)
    driver.add("a", 8, lora_key="a", max_tokens=10)
    driver.add("b", 8, lora_key="b", max_tokens=10)
    return driver


def test_less_important_requests_leave_a_seat_for_one_that_waits_for_an_adapter_slot() -> None:
    driver = waiting_for_a_slot("priority", max_num_seqs=3)
    driver.add("c", 8, priority=9, max_tokens=100)
    driver.add("d", 8, priority=9, max_tokens=100)
    out = driver.step()
    assert set(rows(out)) == {"a", "c"} and refused(out, "d") is Reason.BEHIND_IN_QUEUE
    driver.run_until(lambda: "a" not in driver.scheduler.requests)
    assert "b" in rows(driver.step())


def test_less_important_requests_leave_blocks_for_one_that_waits_for_an_adapter_slot() -> None:
    driver = waiting_for_a_slot("priority", num_blocks=10)
    driver.add("c", 30, priority=9)
    out = driver.step()
    assert set(rows(out)) == {"a"} and refused(out, "c") is Reason.BEHIND_IN_QUEUE


def test_equals_do_not_wait_for_a_request_that_waits_for_an_adapter_slot() -> None:
    """The slot may take long to fall idle: keeping seats empty until then would cost them more than it saves b."""
    driver = waiting_for_a_slot("fcfs", max_num_seqs=3, num_blocks=14)
    driver.add("c", 30)
    driver.add("d", 8)
    assert set(rows(driver.step())) == {"a", "c", "d"}


def test_less_important_requests_leave_a_seat_for_one_whose_grammar_compiles() -> None:
    driver = Driver(policy="priority", max_num_seqs=1)
    request = driver.add("a")
    driver.scheduler.abort(["a"])
    request.grammar_future = Future()
    driver.scheduler.add(request)
    driver.add("c", priority=9)
    out = driver.step()
    assert not out.scheduled
    assert refused(out, "a") is Reason.GRAMMAR_COMPILING and refused(out, "c") is Reason.BEHIND_IN_QUEUE


def test_claims_end_with_the_step() -> None:
    driver = Driver(policy="priority", max_num_seqs=2)
    for name in "ab":
        driver.add(name, SHARED)
    driver.add("c", 8, priority=9)
    driver.step()
    driver.scheduler.abort(["b"])
    assert set(rows(driver.step())) == {"a", "c"}
