"""The costs of a trace, counted in instructions of Python and in bytes: a copy in C is one instruction."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from statistics import median

import pytest

from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput
from engine.sampling_params import SamplingParams
from engine.trace.reader import TraceReader
from engine.trace.writer import TraceWriter
from tests.counting import instructions, peak_bytes
from tests.trace.trace_workloads import header, make_scheduler

NUM_BLOCKS = 10_000
NUM_STEPS = 5_000


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> TraceReader:
    """10,000 blocks and 5,000 steps; with one token per block, 8 decodes change some 30 blocks a step."""
    path = tmp_path_factory.mktemp("trace") / "big.itrace"
    scheduler = make_scheduler(NUM_BLOCKS, 1, max_num_seqs=8, max_num_batched_tokens=512)
    rng = random.Random(0)
    with TraceWriter(path, header(), scheduler) as tracer:
        for step in range(NUM_STEPS):
            while len(scheduler.requests) < 11:
                prompt = [rng.randrange(1000) for _ in range(rng.randint(5, 60))]
                params = SamplingParams(max_tokens=rng.randint(100, 500))
                request = Request(f"r{step}-{rng.random()}", prompt, params, step)
                scheduler.add(request)
                tracer.add(request)
            out = scheduler.schedule()
            result = ModelRunnerOutput(
                {
                    row.request_id: [rng.randrange(1000)]
                    for row in out.scheduled
                    if row.start + row.num_tokens >= scheduler.requests[row.request_id].num_tokens
                }
            )
            tracer.step(out, result, scheduler.update(out, result), 0.01)
    return TraceReader(path)


def test_a_seek_does_not_run_through_the_steps_or_the_blocks(big: TraceReader) -> None:
    assert big.num_steps == NUM_STEPS and big.num_blocks == NUM_BLOCKS and not big.problems
    assert sum(len(big.events(kind)) for kind in ("alloc", "seal", "free", "evict")) > 20 * NUM_STEPS
    rng = random.Random(1)

    def seek(step: int) -> None:
        state = big.state_at(step)
        assert len(state.blocks.ref) == NUM_BLOCKS and state.running

    seeks = [partial(seek, rng.randrange(NUM_STEPS)) for _ in range(50)]
    counts = [instructions(one) for one in seeks]
    assert median(counts) < 3 * NUM_BLOCKS  # 10,300 with Python 3.11; a scan runs through a million events
    assert max(map(peak_bytes, seeks)) < 20 * NUM_BLOCKS  # 55,000; a copy of their steps takes 650,000


def test_the_next_event_is_found_without_a_scan(big: TraceReader) -> None:
    big.next_event("evict", 0)  # the index of a kind is made once
    big.next_event("admit", 0)

    def look() -> None:
        for step in range(0, NUM_STEPS, 5):
            big.next_event("evict", step)
            big.next_event("admit", step)

    assert instructions(look) / 2000 < 300  # 102 with Python 3.11
    assert peak_bytes(look) < 10_000  # 396; a copy of these events takes 100,000 or more


def test_a_traced_step_of_256_decodes_runs_a_few_instructions_for_each(tmp_path: Path) -> None:
    scheduler = make_scheduler(4000, 16, max_num_seqs=256, max_num_batched_tokens=8192)
    counts = []
    with TraceWriter(tmp_path / "run.itrace", header(), scheduler) as tracer:
        for number in range(256):
            request = Request(f"r{number}", [number, 7], SamplingParams(max_tokens=200), number)
            scheduler.add(request)
            tracer.add(request)
        for _ in range(50):
            out = scheduler.schedule()
            result = ModelRunnerOutput({row.request_id: [3] for row in out.scheduled})
            outs = scheduler.update(out, result)
            counts.append(instructions(partial(tracer.step, out, result, outs, 0.01)))
    assert len(out.scheduled) == 256
    assert median(counts) < 200 * 256  # 70 for each with Python 3.11
