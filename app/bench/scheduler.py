"""Measure the scheduler's time per step with a worker that answers at once: no model, no torch.

Two claims are measured: a step of 256 decodes is cheap, and its cost does not depend on how many
requests wait behind them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter

from app.bench.timing import Spread, Tell, partial_results, spread
from engine.config import CacheConfig, SchedulerConfig
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput
from engine.core.scheduler import Scheduler
from engine.sampling_params import SamplingParams

PROMPT_TOKENS = 128
WARM_UP_STEPS = 20
QUEUES = (100, 1_000, 10_000, 100_000)


@dataclass(frozen=True)
class DecodeCost:
    """Steps in which `requests` requests decode one token each and the queue is empty."""

    requests: int
    schedule: Spread
    update: Spread
    total: Spread


@dataclass(frozen=True)
class QueueCost:
    """The same steps with `waiting` requests that cannot start."""

    waiting: int
    blocked_by: str
    """max_seqs: max_num_seqs requests run. no_blocks: each step tries the head of the queue, which does not fit."""
    total: Spread
    add_us: float
    """Mean time to add one request to the queue, in microseconds."""


@dataclass
class SchedulerReport:
    """Times in milliseconds."""

    decode: DecodeCost | None = None
    queues: list[QueueCost] = field(default_factory=list)
    interrupted: bool = False


def measure(
    tell: Tell, *, requests: int = 256, steps: int = 300, queues: tuple[int, ...] = QUEUES
) -> SchedulerReport:
    """Run the benchmark; Ctrl-C ends it early with what was measured so far."""
    report = SchedulerReport()
    with partial_results(report):
        tell(f"{requests} decodes per step")
        report.decode = _decode_cost(requests, steps)
        for blocked_by in ("max_seqs", "no_blocks"):
            for waiting in queues:
                tell(f"{requests} decodes per step, {waiting:,} waiting ({blocked_by})")
                report.queues.append(_queue_cost(requests, waiting, blocked_by, steps))
    return report


def _decode_cost(requests: int, steps: int) -> DecodeCost:
    scheduler = _decoding(requests, steps, max_num_seqs=requests, block_size=16)
    times = list(_steps(scheduler, steps))
    schedule, update = zip(*times, strict=True)
    return DecodeCost(requests, spread(schedule), spread(update), spread([sum(both) for both in times]))


def _queue_cost(requests: int, waiting: int, blocked_by: str, steps: int) -> QueueCost:
    if blocked_by == "max_seqs":
        scheduler = _decoding(requests, steps, max_num_seqs=requests, block_size=16)
    else:  # one block holds a request's whole life, and every block is taken
        scheduler = _decoding(requests, steps, max_num_seqs=2 * requests, block_size=_tokens_each(steps))
    params = SamplingParams(max_tokens=16)
    start = perf_counter()
    for index in range(waiting):
        scheduler.add(Request(f"waiting-{index}", _prompt(requests + index), params))
    add_us = 1e6 * (perf_counter() - start) / waiting
    times = [sum(both) for both in _steps(scheduler, steps)]
    return QueueCost(waiting, blocked_by, spread(times), add_us)


def _tokens_each(steps: int) -> int:
    return PROMPT_TOKENS + WARM_UP_STEPS + steps + 1


def _decoding(requests: int, steps: int, *, max_num_seqs: int, block_size: int) -> Scheduler:
    """Return a scheduler with `requests` requests past their prompts, each with `steps` decodes left."""
    tokens_each = _tokens_each(steps)
    blocks_each = -(-tokens_each // block_size)
    budget = requests * PROMPT_TOKENS
    scheduler = Scheduler(
        SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=max_num_seqs, max_model_len=tokens_each),
        CacheConfig(num_blocks=1 + requests * blocks_each, block_size=block_size),
    )
    params = SamplingParams(max_tokens=None)
    for index in range(requests):
        scheduler.add(Request(f"running-{index}", _prompt(index), params))
    for _ in _steps(scheduler, WARM_UP_STEPS):
        pass
    return scheduler


def _steps(scheduler: Scheduler, count: int) -> Iterator[tuple[float, float]]:
    """Run steps and yield the seconds spent in `schedule` and in `update`."""
    for _ in range(count):
        start = perf_counter()
        out = scheduler.schedule()
        planned = perf_counter()
        # As a worker that computes nothing: every row samples token 7.
        result = ModelRunnerOutput(sampled_token_ids={row.request_id: [7] for row in out.scheduled})
        asked = perf_counter()
        scheduler.update(out, result)
        yield planned - start, perf_counter() - asked


def _prompt(seed: int) -> list[int]:
    """Return a prompt that shares no block with others, so that the prefix cache does its full work."""
    return [(seed * 7919 + position) % 50_000 for position in range(PROMPT_TOKENS)]
