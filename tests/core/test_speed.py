"""Cost of a step, which must not depend on the number of waiting requests: counted in instructions of Python."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from statistics import median

import pytest

from engine.config import CacheConfig, SchedulerConfig
from engine.core.queues import POLICIES, fcfs_key
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput
from engine.core.scheduler import Scheduler
from engine.sampling_params import SamplingParams
from tests.counting import Ordered, instructions, peak_bytes

MOST_INSTRUCTIONS = 2000
"""Bound of a step for each request that runs; 654 with Python 3.11."""

REPOSITORY = Path(__file__).parents[2]


def decoding(num_running: int, num_waiting: int) -> Scheduler:
    """A scheduler in which `num_running` requests decode and the others wait for a seat."""
    limits = SchedulerConfig(max_num_batched_tokens=8192, max_num_seqs=num_running, max_model_len=4096)
    scheduler = Scheduler(limits, CacheConfig(num_blocks=num_running * 40 + 1))
    params = SamplingParams(max_tokens=500)
    for index in range(num_running + num_waiting):
        prompt = [index] * (20 if index < num_running else 3)
        scheduler.add(Request(f"r{index}", prompt, params))
    while any(request.num_output_tokens == 0 for request in scheduler.running) or not scheduler.running:
        step(scheduler)
    return scheduler


def step(scheduler: Scheduler) -> None:
    out = scheduler.schedule()
    scheduler.update(out, ModelRunnerOutput({row.request_id: [5] for row in out.scheduled}))


@pytest.fixture(autouse=True)
def work_in_c_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a search of a list and a comparison of two sort keys run instructions of Python."""
    monkeypatch.setattr(Request, "__eq__", lambda one, other: one is other)
    monkeypatch.setitem(POLICIES, "fcfs", lambda request, order: Ordered(fcfs_key(request, order)))


def cost_of_a_step(num_waiting: int) -> tuple[float, float]:
    """Return instructions and peak memory."""
    scheduler = decoding(256, num_waiting)
    one = partial(step, scheduler)
    return median(instructions(one) for _ in range(20)), median(peak_bytes(one) for _ in range(20))


def test_a_step_of_256_decodes_does_the_same_work_with_100_000_waiting() -> None:
    short, bytes_of_short = cost_of_a_step(100)
    long, bytes_of_long = cost_of_a_step(100_000)
    assert short == long < 256 * MOST_INSTRUCTIONS
    assert bytes_of_long < 1.1 * bytes_of_short


def test_aborting_a_waiting_request_costs_the_same_whatever_their_number() -> None:
    def cost(num_waiting: int) -> float:
        scheduler = decoding(4, num_waiting)
        request_ids = list(scheduler.requests)
        count = instructions(lambda: scheduler.abort(request_ids))
        assert not scheduler.has_unfinished()
        return count / num_waiting

    def most_bytes_of_one(num_waiting: int) -> int:
        scheduler = decoding(4, num_waiting)
        victims = list(scheduler.requests)[10 : num_waiting // 2 : num_waiting // 100]
        return max(peak_bytes(partial(scheduler.abort, [victim])) for victim in victims)

    assert cost(20_000) < 1.1 * cost(1000)
    assert most_bytes_of_one(20_000) < 1.1 * most_bytes_of_one(1000)


def test_the_core_starts_without_torch_and_numpy() -> None:
    program = "import sys, engine.core.scheduler; print('torch' in sys.modules, 'numpy' in sys.modules)"
    printed = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.split()
    assert printed == ["False", "False"]
