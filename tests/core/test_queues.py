"""The waiting queue: order, and removal that does not care how long it is."""

from __future__ import annotations

import random
from functools import partial

import pytest

from engine.core.queues import HeapQueue, fcfs_key, priority_key
from engine.core.request import Request
from tests.core.driver import make_request
from tests.counting import Ordered, instructions, peak_bytes

MOST_INSTRUCTIONS = 100
"""Bound of a removal; 29 with Python 3.11."""
MOST_BYTES = 1000
"""Bound of the memory of a removal; 92 with Python 3.11."""


def queued(count: int) -> tuple[HeapQueue, list[Request]]:
    """A queue of requests r0, r1, ... in this order."""
    queue = HeapQueue()
    template = make_request("template")
    requests = []
    for index in range(count):
        request = Request(f"r{index}", [1], template.sampling_params)
        request.sort_key = Ordered((0, 0.0, index))
        queue.push(request)
        requests.append(request)
    return queue, requests


def test_any_mix_of_pushes_pops_and_removals_keeps_the_order() -> None:
    rng = random.Random(0)
    for _ in range(200):
        queue, requests = queued(20)
        living = {request.sort_key: request for request in requests}
        outside: list[Request] = []
        for _ in range(60):
            action = rng.random()
            if action < 0.4 and living:
                request = living.pop(rng.choice(list(living)))
                queue.remove(request)
                outside.append(request)
            elif action < 0.7 and living:
                request = queue.pop()
                assert request is living.pop(min(living))
                outside.append(request)
            elif outside:
                request = outside.pop(rng.randrange(len(outside)))
                queue.push(request)
                living[request.sort_key] = request
            assert len(queue) == len(living)
            assert list(queue) == [living[key] for key in sorted(living)]
            assert not living or queue.peek() is living[min(living)]


def test_priority_comes_before_arrival_and_arrival_before_order() -> None:
    dear = make_request("a", priority=-1, arrival=9.0)
    early = make_request("b", priority=0, arrival=1.0)
    late = make_request("c", priority=0, arrival=2.0)
    assert priority_key(dear, 5) < priority_key(early, 4) < priority_key(late, 3)
    assert fcfs_key(early, 4) < fcfs_key(late, 3) < fcfs_key(dear, 5)
    assert fcfs_key(early, 1) < fcfs_key(early, 2)


def test_removing_a_request_takes_a_few_instructions_whatever_the_length_of_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Request, "__eq__", lambda one, other: one is other)  # a search of a list counts
    most = []
    for waiting in (1000, 100_000):
        queue, requests = queued(waiting)
        victims = random.Random(0).sample(requests, 400)
        most.append(max(instructions(partial(queue.remove, victim)) for victim in victims[:200]))
        assert max(peak_bytes(partial(queue.remove, victim)) for victim in victims[200:]) < MOST_BYTES
    assert most[0] == most[1] < MOST_INSTRUCTIONS


def test_removed_requests_do_not_pile_up_in_memory() -> None:
    queue, _ = queued(10)
    for index in range(10_000):
        request = make_request("passing")
        request.sort_key = (1, 0.0, index)
        queue.push(request)
        queue.remove(request)
    assert len(queue._heap) < 100
