"""Cost of a step, which must not depend on the number of waiting requests.

Measured in processor time, with limits of several times what was seen: they are there to catch a cost
that grows with the queue, not to rank machines.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from engine.config import CacheConfig, SchedulerConfig
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput
from engine.core.scheduler import Scheduler
from engine.sampling_params import SamplingParams

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


def step(scheduler: Scheduler) -> float:
    """Processor seconds of one schedule and update."""
    start = time.process_time()
    out = scheduler.schedule()
    planned = time.process_time()
    result = ModelRunnerOutput({row.request_id: [5] for row in out.scheduled})
    executed = time.process_time()
    scheduler.update(out, result)
    return planned - start + time.process_time() - executed


def milliseconds_per_step(num_waiting: int) -> float:
    scheduler = decoding(256, num_waiting)
    return 1000 * sorted(step(scheduler) for _ in range(100))[50]


def test_a_step_of_256_decodes_costs_two_milliseconds_and_no_more_with_100_000_waiting() -> None:
    short = milliseconds_per_step(100)
    long = milliseconds_per_step(100_000)
    assert short < 5
    assert long < 2 * short + 0.5


def test_aborting_all_of_100_000_waiting_requests_takes_a_second() -> None:
    scheduler = decoding(4, 100_000)
    start = time.process_time()
    scheduler.abort([request_id for request_id in scheduler.requests])
    assert time.process_time() - start < 5
    assert not scheduler.has_unfinished()


def test_the_core_starts_without_torch_and_in_milliseconds() -> None:
    program = (
        "import sys, time; start = time.perf_counter(); import engine.core.scheduler;"
        "print(time.perf_counter() - start, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.split()
    assert printed[1:] == ["False", "False"]
    assert float(printed[0]) < 1
