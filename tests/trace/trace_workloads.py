"""Random workloads on the real scheduler, traced, for the tests of the trace."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from engine.config import CacheConfig, SchedulerConfig, TierConfig
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput, SchedulerOutput
from engine.core.scheduler import Scheduler
from engine.sampling_params import SamplingParams
from engine.trace.writer import TraceWriter


@dataclass
class Snapshot:
    """The engine's own state, copied out of its objects."""

    refs: list[int]
    hashes: list[str | None]
    tables: dict[str, list[int]]
    running: list[str]
    waiting: list[str]
    num_computed: dict[str, int]
    num_tokens: dict[str, int]
    eviction_order: list[int]

    @classmethod
    def of(cls, scheduler: Scheduler) -> Snapshot:
        blocks = scheduler.kv.pool.blocks
        return cls(
            refs=[block.ref_count for block in blocks],
            hashes=[block.block_hash.hex()[:16] if block.block_hash else None for block in blocks],
            tables={r.request_id: [block.block_id for block in r.blocks] for r in scheduler.running},
            running=[r.request_id for r in scheduler.running],
            waiting=[r.request_id for r in scheduler.waiting],
            num_computed={r.request_id: r.num_computed_tokens for r in scheduler.requests.values()},
            num_tokens={r.request_id: r.num_tokens for r in scheduler.requests.values()},
            eviction_order=[block.block_id for block in scheduler.kv.pool.free],
        )


@dataclass
class Run:
    """The facts of the run, to compare with the trace."""

    path: Path
    snapshots: list[Snapshot] = field(default_factory=list)
    outputs: list[SchedulerOutput] = field(default_factory=list)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    num_preemptions: int = 0
    num_evictions: int = 0
    aborted: list[str] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    """In order of arrival, as the engine left them."""
    arrivals: list[int] = field(default_factory=list)
    """Step per request in which, or before which, it arrived."""
    prefix_cache: list[tuple[int, int]] = field(default_factory=list)
    """Per step: tokens that looked for a prefix, and those of them found."""


def make_scheduler(
    num_blocks: int = 40, block_size: int = 4, sliding_window: int | None = None, **settings: int | str | bool
) -> Scheduler:
    caching = bool(settings.pop("enable_prefix_caching", True))
    tiers = TierConfig()
    if settings.pop("tiers", False):
        tiers = TierConfig(num_host_blocks=12, swap=True, offload=caching, block_bytes=100)
    defaults = {"max_num_batched_tokens": 32, "max_num_seqs": 8, "max_model_len": 4096}
    return Scheduler(
        SchedulerConfig(**{**defaults, **settings}),
        CacheConfig(num_blocks, block_size, caching, sliding_window=sliding_window, tiers=tiers),
        clock=iter(range(10**9)).__next__,
    )


def header() -> dict[str, object]:
    return {"model": "random", "config": {}, "seed": 0, "code_rev": "test", "machine": "test"}


def sample(scheduler: Scheduler, out: SchedulerOutput, rng: random.Random) -> ModelRunnerOutput:
    """A worker without a model: random tokens, some drafts confirmed, some drafts proposed."""
    result = ModelRunnerOutput()
    for row in out.scheduled:
        request = scheduler.requests.get(row.request_id)
        if request is None or row.start + row.num_tokens < request.num_tokens:
            continue
        count = 1 + rng.randint(0, len(row.spec_token_ids))
        result.sampled_token_ids[row.request_id] = [rng.randrange(50) for _ in range(count)]
        if rng.random() < 0.2:
            drafts = [rng.randrange(50) for _ in range(rng.randint(1, 3))]
            result.draft_token_ids[row.request_id] = drafts
    return result


def random_scheduler(rng: random.Random, seed: int) -> Scheduler:
    """Return a small scheduler with random limits; the seed chooses the sliding window and the tiers."""
    block_size = rng.choice([2, 4, 8])
    num_blocks = rng.randint(12, 40)
    return make_scheduler(
        num_blocks,
        block_size,
        sliding_window=[None, None, 5, 12][seed % 4],
        max_num_batched_tokens=rng.choice([8, 16, 64]),
        max_num_seqs=rng.choice([1, 3, 8]),
        policy=rng.choice(["fcfs", "priority"]),
        long_prefill_token_threshold=rng.choice([0, 0, 4]),
        enable_prefix_caching=rng.random() < 0.85,
        tiers=seed % 4 == 1,
    )


def random_run(
    path: Path,
    seed: int,
    num_requests: int = 14,
    on_step: Callable[[int], None] | None = None,
    prefix: str = "r",
) -> Run:
    """Arrivals, prefix hits, preemptions, aborts at any moment, drafts, resets, reused ids; `prefix` begins each id."""
    rng = random.Random(seed)
    scheduler = random_scheduler(rng, seed)
    cache = scheduler.cache_config
    most = (cache.num_blocks - 1) * cache.block_size
    run = Run(path)
    tracer = TraceWriter(path, header(), scheduler)
    shared = [rng.randrange(50) for _ in range(60)]
    arrivals = sorted(rng.randint(0, 40) for _ in range(num_requests))

    def add(index: int) -> None:
        length = rng.randint(1, min(60, most // 2))
        same = rng.randint(0, length)
        prompt = shared[:same] + [rng.randrange(50) for _ in range(length - same)]
        limit = min(40, most - length)
        name = f"{prefix}{index}"
        if run.aborted and rng.random() < 0.3 and run.aborted[-1] not in scheduler.requests:
            name = run.aborted[-1]
        request = Request(
            name,
            prompt,
            SamplingParams(max_tokens=rng.randint(1, limit), temperature=rng.choice([0.0, 1.0])),
            arrival_time=index / 3,
            priority=rng.choice([0, 0, 1, 2]),
            eos_token_ids=frozenset(rng.choice([(), (7,)])),
            cache_salt=rng.choice([None, None, "salt"]),
        )
        scheduler.add(request)
        tracer.add(request)
        run.requests.append(request)
        run.arrivals.append(step)
        run.tokens[name] = []

    def abort() -> None:
        if scheduler.requests:
            name = rng.choice(list(scheduler.requests))
            tracer.abort([output.request_id for output in scheduler.abort([name, "r-none"])])
            run.aborted.append(name)

    index = step = 0
    while index < num_requests or scheduler.has_unfinished():
        while index < num_requests and arrivals[index] <= step:
            add(index)
            index += 1
        if rng.random() < 0.03:
            abort()
        if rng.random() < 0.05:
            scheduler.reset_prefix_cache()
        began = time.perf_counter()
        out = scheduler.schedule()
        run.num_preemptions += len(out.preempted_request_ids)
        result = sample(scheduler, out, rng)
        if rng.random() < 0.03:
            abort()  # while its step is in flight
            if index < num_requests and rng.random() < 0.5:
                add(index)
                index += 1
        outs = scheduler.update(out, result)
        run.num_evictions += scheduler.stats.num_evictions
        run.prefix_cache.append((scheduler.stats.prefix_cache_queries, scheduler.stats.prefix_cache_hits))
        tracer.step(out, result, outs, time.perf_counter() - began)
        for output in outs:
            run.tokens[output.request_id] += output.new_token_ids
        run.outputs.append(out)
        run.snapshots.append(Snapshot.of(scheduler))
        if on_step is not None:
            on_step(step)
        step += 1
        if step > 3000:
            raise AssertionError(f"seed {seed} does not end")
    tracer.close()
    return run
