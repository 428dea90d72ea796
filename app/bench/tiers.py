"""Time a prefix from every tier (computed, device, host memory, disk), and swap against recompute.

One request at a time runs the same prompt repeatedly. Between two runs its blocks move to the tier from which the
next run reads them:

    computed    skip_reading_prefix_cache      device    right after another run
    host        others' blocks filled the cache      disk    after reset_prefix_cache

The rounds are interleaved, so that a busy machine slows all of them alike. A run that did not find its prefix where
it should is not counted, and is reported.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import linear_regression, median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from app.bench.timing import Tell, partial_results
from engine.config import ConfigError, EngineArgs
from engine.core.request import Request
from engine.core.sched_output import SchedulerOutput
from engine.engine_core import EngineCore
from engine.exec.uniproc import worker_of
from engine.sampling_params import SamplingParams
from prep_common.text import GIB, counted

SOURCES = ("computed", "device", "host", "disk")


@dataclass(frozen=True)
class TierTimes:
    """Medians over the rounds, in milliseconds, for prompts of one length."""

    prompt_len: int
    num_blocks: int
    first_token: dict[str, float]
    """Tier of the prompt's full blocks -> milliseconds to the first token."""
    copy_out: float
    """Copy of its blocks from the device to the host."""
    copy_in: float
    """Copy back to the device. Both copies are the extra cost of a preemption by swap."""
    recompute: float
    """Extra cost of a preemption by recomputation: `computed` less `device`."""

    @property
    def swap(self) -> float:
        return self.copy_out + self.copy_in


@dataclass
class TierReport:
    model: str
    block_bytes: int = 0
    rows: list[TierTimes] = field(default_factory=list)
    swap_ms_per_1k: float = 0.0
    """Slope over prompt length, least squares."""
    recompute_ms_per_1k: float = 0.0
    break_even: int | None = None
    """Shortest measured prompt from which swap is cheaper; None if it never is."""
    misses: int = 0
    """Runs whose prefix was in another tier than expected."""
    interrupted: bool = False


def measure(
    tell: Tell,
    model: str,
    engine: dict[str, Any],
    *,
    lengths: Sequence[int] = (64, 128, 256, 512, 1000),
    rounds: int = 5,
) -> TierReport:
    """Run the benchmark; Ctrl-C ends it early with the lengths that are done."""
    tell(f"loading {model}")
    report = TierReport(model)
    if len(set(lengths)) < 2 or min(lengths) < 33:
        raise ConfigError("a slope needs two or more prompt lengths, of 33 tokens or more each")
    with TemporaryDirectory(prefix="prep-tiers-") as folder:
        core = EngineCore.from_args(_engine_args(model, engine, max(lengths), folder))
        with partial_results(report):
            bench = _Bench(core, report)
            report.block_bytes = core.config.cache.tiers.block_bytes
            for length in sorted(lengths):
                report.rows.append(bench.times(tell, length, rounds))
        core.shutdown()
    _conclude(report)
    return report


def _engine_args(model: str, engine: dict[str, Any], longest: int, folder: str) -> EngineArgs:
    """Return arguments for a device cache of one longest prompt, evicted by the next, and large lower tiers."""
    block_size = engine.get("block_size") or 16
    settings = {
        "num_gpu_blocks_override": -(-(longest + 1) // block_size) + 1,
        "kv_offloading_size": 0.5,
        "kv_transfer_config": {
            "kv_connector": "DiskConnector",
            "kv_connector_extra_config": {"path": folder, "capacity_bytes": 2 * GIB},
        },
        "skip_tokenizer_init": True,
        "max_num_batched_tokens": longest + 256,
    }
    return EngineArgs.create(model=model, **{**engine, **settings})


class _Bench:
    def __init__(self, core: EngineCore, report: TierReport) -> None:
        self.core = core
        self.report = report
        self._names = count()
        self._vocab_size = core.config.model.vocab_size

    def times(self, tell: Tell, length: int, rounds: int) -> TierTimes:
        prompt = self._prompt(length, seed=length)
        num_blocks = (length - 1) // self.core.scheduler.kv.block_size
        seconds: dict[str, list[float]] = {source: [] for source in SOURCES}
        for number in range(-1, rounds):  # the first round warms up and fills the tiers
            for source in SOURCES:
                tell(f"{counted(length, 'token')}, round {number + 1} of {rounds}: {source}")
                self._push_to(source, prompt)
                taken = self._run(prompt, source, num_blocks)
                if number >= 0 and taken is not None:
                    seconds[source].append(taken)
        first_token = {source: 1000 * median(taken or [float("nan")]) for source, taken in seconds.items()}
        copy_out, copy_in = self._copies(num_blocks, rounds)
        recompute = first_token["computed"] - first_token["device"]
        return TierTimes(length, num_blocks, first_token, copy_out, copy_in, recompute)

    def _push_to(self, source: str, prompt: list[int]) -> None:
        if source == "host":
            usable = self.core.scheduler.kv.pool.num_usable
            room = usable * self.core.scheduler.kv.block_size
            longest = min(room, self.core.config.scheduler.max_model_len)
            self._run(self._prompt(longest - 2, seed=-1), None, 0)
        elif source == "disk":
            self.core.reset_prefix_cache()

    def _run(self, prompt: list[int], source: str | None, num_blocks: int) -> float | None:
        """Return the seconds to the only token; None if the prefix was in another tier."""
        fresh = source in (None, "computed")
        params = SamplingParams(
            max_tokens=1, temperature=0.0, ignore_eos=True, skip_reading_prefix_cache=fresh
        )
        request = Request(f"tiers-{next(self._names)}", prompt, params)
        start = perf_counter()
        self.core.add_request(request)
        taken = None
        while self.core.has_unfinished():  # runs until its blocks are on the disk
            if self.core.step() and taken is None:
                taken = perf_counter() - start
        cached = request.cached_tokens_by_source
        expected = {} if fresh else {source: num_blocks * self.core.scheduler.kv.block_size}
        if source is not None and cached != expected:
            self.report.misses += 1
            return None
        return taken

    def _copies(self, num_blocks: int, rounds: int) -> tuple[float, float]:
        """Return milliseconds to copy the blocks out and in. The copies corrupt the host tier, so it is emptied."""
        pool = worker_of(self.core).host_pool
        assert pool is not None
        pairs = [(index + 1, index + 1) for index in range(num_blocks)]
        out, back = SchedulerOutput(0, copy_out=pairs), SchedulerOutput(0, copy_in=pairs)
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds + 1):
            for step, taken in zip((out, back), seconds, strict=True):
                start = perf_counter()
                pool.copy(step)
                taken.append(perf_counter() - start)
        self.core.reset_prefix_cache()
        return 1000 * median(seconds[0][1:]), 1000 * median(seconds[1][1:])

    def _prompt(self, length: int, seed: int) -> list[int]:
        rng = random.Random(seed)
        return [rng.randrange(3, self._vocab_size) for _ in range(length)]


def _conclude(report: TierReport) -> None:
    rows = [row for row in report.rows if row.recompute == row.recompute]  # without NaN
    report.swap_ms_per_1k = _slope([(row.prompt_len, row.swap) for row in rows])
    report.recompute_ms_per_1k = _slope([(row.prompt_len, row.recompute) for row in rows])
    for row in reversed(rows):
        if row.swap >= row.recompute:
            break
        report.break_even = row.prompt_len


def _slope(points: list[tuple[int, float]]) -> float:
    """Return milliseconds per 1,000 tokens."""
    return 1000 * linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else float("nan")
