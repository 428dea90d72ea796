"""Make traces of any size with the real scheduler: chats that share one of four openings, more than fit at once."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path

from app.bench.timing import Tell
from engine.config import CacheConfig, SchedulerConfig
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput, SchedulerOutput
from engine.core.scheduler import Scheduler
from engine.sampling_params import SamplingParams
from engine.trace.writer import TraceWriter
from prep_common.text import counted

VOCABULARY = 128_000
MAX_NUM_SEQS = 128
SHARED_TOKENS = 96
"""Tokens of an opening: six blocks of 16."""
TELL_EVERY = 1_000


def make_trace(path: Path, blocks: int, steps: int, tell: Tell, seed: int = 0) -> None:
    """Record `steps` steps of a scheduler with `blocks` blocks; about 0.5 kB of file and 2 ms each."""
    rng = random.Random(seed)
    scheduler = Scheduler(
        SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=MAX_NUM_SEQS, max_model_len=4096),
        CacheConfig(blocks, 16, True),
    )
    openings = [[rng.randrange(VOCABULARY) for _ in range(SHARED_TOKENS)] for _ in range(4)]
    numbers = count()
    with TraceWriter(path, {"model": "none: tokens are random", "seed": seed}, scheduler) as tracer:
        for step in range(steps):
            if step % TELL_EVERY == 0:
                tell(f"recording {counted(blocks, 'block')} x {counted(steps, 'step')}: {step / steps:.0%}")
            while len(scheduler.waiting) < 8:
                request = _request(next(numbers), openings, rng)
                scheduler.add(request)
                tracer.add(request)
            out = scheduler.schedule()
            result = _answer(scheduler, out, rng)
            tracer.step(out, result, scheduler.update(out, result), 0.02)


def _request(number: int, openings: list[list[int]], rng: random.Random) -> Request:
    opening = rng.choice(openings) if rng.random() < 0.5 else []
    own = [rng.randrange(VOCABULARY) for _ in range(rng.randint(200, 2_000))]
    return Request(f"r{number}", opening + own, SamplingParams(max_tokens=rng.randint(50, 600)), number)


def _answer(scheduler: Scheduler, out: SchedulerOutput, rng: random.Random) -> ModelRunnerOutput:
    """Answer as a worker without a model: one random token for each request whose known tokens are computed."""
    rows = [
        row
        for row in out.scheduled
        if row.start + row.num_tokens >= scheduler.requests[row.request_id].num_tokens
    ]
    return ModelRunnerOutput({row.request_id: [rng.randrange(VOCABULARY)] for row in rows})
