"""Fit the simulator's cost of a step to the live engine on this machine.

Run and time steps of known kinds: n decodes with short and long contexts, prompts of several lengths, both
together. Each kind runs once per round and counts with its median, so that a burst of other work on the machine
affects few of them. The fit has a handful of unknowns, none of them negative:

    schedule + update = step_overhead + row_overhead * rows
    execute           = bytes / bandwidth + flops / rate + KV bytes / rate + attention flops / rate
                        + eager * layers (steps with a prompt) + row * rows
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import torch

from app.bench.models import bench_model
from app.bench.timing import Tell
from engine.config import ConfigError, EngineArgs
from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from engine.engine_core import EngineCore
from engine.sampling_params import SamplingParams
from engine.sim.calibration import Calibration
from engine.sim.cost import CostModel, Rates, StepLoad, load_of
from engine.sim.hardware import this_cpu
from engine.sim.memory import Deployment
from engine.sim.models import MODELS, get_model

Timer = Callable[[], float]
"""Clock in seconds: `perf_counter`, or `thread_time` for one thread on a busy machine."""

Case = tuple[int, int, int]
"""Decoding requests, context tokens of each, tokens of an additional prompt (0: none)."""

PROMPTS: list[Case] = [(0, 0, 6), (0, 0, 24), (0, 0, 96), (0, 0, 240)]
SMALL_MODEL: list[Case] = [(rows, context, 0) for rows in (1, 2, 4, 8, 16, 32) for context in (24, 400)]
SMALL_MODEL += [*PROMPTS, (4, 200, 60), (16, 100, 120), (24, 60, 200)]
LARGE_MODEL: list[Case] = [(1, 24, 0), (1, 300, 0), (2, 24, 0), (4, 100, 0), (8, 24, 0), (16, 24, 0)]
LARGE_MODEL += [*PROMPTS, (4, 64, 60), (12, 24, 120)]
LARGE_PARAMS = 100_000_000
"""Parameters from which filling contexts takes so long that a round has fewer of them."""
STEPS_EACH = 4


@dataclass(slots=True)
class TimedLoad:
    """Load and time of one step of the live engine, in seconds. `planning` is schedule and update."""

    load: StepLoad
    planning: float
    execute: float

    @property
    def total(self) -> float:
        return self.planning + self.execute


@dataclass
class StepLog:
    """Wrap an engine's scheduler and record every step's load and times."""

    core: EngineCore
    timer: Timer = perf_counter
    steps: list[TimedLoad] = field(default_factory=list)
    _load: StepLoad = field(default_factory=StepLoad)
    _planning: float = 0.0
    _aside: float = 0.0
    """Time spent in the log itself within the step."""

    def step(self) -> list[EngineCoreOutput]:
        """Run `core.step()` and record it unless it computed nothing."""
        start = self.timer()
        outputs = self.core.step()
        total = self.timer() - start - self._aside
        if self._load.num_rows:
            self.steps.append(TimedLoad(self._load, self._planning, total - self._planning))
        return outputs

    def schedule(self) -> SchedulerOutput:
        start = self.timer()
        out = self._schedule()
        planned = self.timer()
        self._planning = planned - start
        self._load = load_of(out, self.core.scheduler.requests)
        self._aside = self.timer() - planned
        return out

    def update(self, out: SchedulerOutput, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        start = self.timer()
        outputs = self._update(out, result)
        self._planning += self.timer() - start
        return outputs

    def __post_init__(self) -> None:
        scheduler = self.core.scheduler
        self._schedule, self._update = scheduler.schedule, scheduler.update
        scheduler.schedule = self.schedule  # type: ignore[method-assign]
        scheduler.update = self.update  # type: ignore[method-assign]

    def remove(self) -> None:
        del self.core.scheduler.schedule, self.core.scheduler.update


@contextmanager
def live_core(model: str, engine: dict[str, Any] | None = None) -> Iterator[EngineCore]:
    """Open the live engine on the CPU with the settings that both sides of a comparison use."""
    if model not in MODELS:
        raise ConfigError(
            f"the simulator has no shape for {model!r}; use one of shop, shop-draft, dummy-386m"
        )
    settings = {"dtype": "float32", "device": "cpu", "max_num_seqs": 32, "max_num_batched_tokens": 256}
    settings |= {"max_model_len": 1024, "enable_prefix_caching": False, **(engine or {})}
    with bench_model(model, settings) as (folder, arguments):
        core = EngineCore.from_args(EngineArgs.create(model=folder, **arguments))
    try:
        yield core
    finally:
        core.shutdown()


def deployment_of(core: EngineCore, model: str) -> Deployment:
    """Return a live engine's deployment as the simulator describes it."""
    scheduler = core.config.scheduler
    return Deployment(
        get_model(model),
        this_cpu(),
        dtype=core.config.model.dtype,
        block_size=core.config.cache.block_size,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        max_model_len=scheduler.max_model_len,
    )


def probe(core: EngineCore, num_params: int, seed: int, timer: Timer = perf_counter) -> list[TimedLoad]:
    """Time one round over all kinds of steps, in random order."""
    rng = Random(seed)
    cases = list(LARGE_MODEL if num_params > LARGE_PARAMS else SMALL_MODEL)
    rng.shuffle(cases)
    log = StepLog(core, timer)
    timed: list[TimedLoad] = []
    try:
        for number, (rows, context, prompt) in enumerate(cases):
            timed += _run_case(core, log, f"probe-{seed}-{number}", rows, context, prompt, rng)
    finally:
        log.remove()
    return timed


def _run_case(
    core: EngineCore, log: StepLog, label: str, rows: int, context: int, prompt: int, rng: Random
) -> list[TimedLoad]:
    """Advance `rows` requests until they decode, then time their decodes, or a prompt added to them."""
    for index in range(rows):
        _add(core, f"{label}-{index}", context, 2 * rows + STEPS_EACH + 2, rng)
    while any(request.num_output_tokens < 1 for request in core.scheduler.requests.values()):
        log.step()
    timed: list[TimedLoad] = []
    for repeat in range(STEPS_EACH if rows or prompt else 0):
        if prompt:
            _add(core, f"{label}-prompt-{repeat}", prompt, 1, rng)
        log.steps.clear()
        log.step()
        timed += log.steps
    core.abort(list(core.scheduler.requests))
    return timed


def _add(core: EngineCore, request_id: str, prompt: int, max_tokens: int, rng: Random) -> None:
    tokens = [rng.randrange(core.config.model.vocab_size) for _ in range(prompt)]
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    core.add_request(Request(request_id, tokens, params))


def fit(model: str, deployment: Deployment, timed: list[TimedLoad]) -> Calibration:
    """Fit the rates to the medians of all kinds of steps, minimising the relative error."""
    kinds: dict[tuple[int, ...], list[TimedLoad]] = defaultdict(list)
    for step in timed:
        load = step.load
        kinds[(load.num_rows, load.num_tokens, load.decode_context // (64 * max(1, load.num_rows)))].append(
            step
        )
    loads = [steps[len(steps) // 2].load for steps in kinds.values()]
    planning = [median(step.planning for step in steps) for steps in kinds.values()]
    execute = [median(step.execute for step in steps) for steps in kinds.values()]
    totals = [a + b for a, b in zip(planning, execute, strict=True)]
    per_step, per_row = _nonnegative([[1.0, load.num_rows] for load in loads], planning, planning)
    neutral = Rates(1, 1, 1, 1, 0, 0, 0, overlaps=False)
    cost = CostModel(deployment, neutral)
    layers = deployment.model.num_layers
    columns = [
        [
            *cost.bytes_and_flops(load),
            *cost.attention_work(load),
            0.0 if load.is_decode else layers,
            load.num_rows,
        ]
        for load in loads
    ]
    moved, computed, kv, pairs, eager, row = _nonnegative(columns, execute, totals)
    rates = Rates(
        bytes_per_s=_inverse(moved),
        flops=_inverse(computed),
        attention_bytes_per_s=_inverse(kv),
        attention_flops=_inverse(pairs),
        step_overhead=per_step,
        eager_overhead=eager,
        row_overhead=per_row + row,
        overlaps=False,
    )
    fitted = CostModel(deployment, rates)
    errors = [abs(fitted.seconds(load) - total) / total for load, total in zip(loads, totals, strict=True)]
    return Calibration(model, rates, torch.get_num_threads(), len(timed), median(errors))


def _inverse(seconds_per_unit: float) -> float:
    """Return a rate; work without measurable time gets one so high that it costs nothing."""
    return 1 / seconds_per_unit if seconds_per_unit > 0 else 1e30


def _nonnegative(columns: list[list[float]], seconds: list[float], scale: list[float]) -> list[float]:
    """Return x >= 0 that minimises the squares of (columns x - seconds) / scale, by coordinate descent."""
    matrix = np.array(columns) / np.array(scale)[:, None]
    target = np.array(seconds) / np.array(scale)
    norms = np.linalg.norm(matrix, axis=0)
    norms[norms == 0] = 1.0
    matrix = matrix / norms
    x = np.zeros(matrix.shape[1])
    residual = target.copy()
    for _ in range(20_000):
        largest = 0.0
        for j in range(len(x)):
            column = matrix[:, j]
            length = column @ column
            if length:
                better = max(0.0, x[j] + column @ residual / length)
                residual -= column * (better - x[j])
                largest = max(largest, abs(better - x[j]))
                x[j] = better
        if largest < 1e-9:
            break
    return [float(value) for value in x / norms]


def choose_timer(cpu_time: bool) -> Timer:
    """Return the clock. Processor time excludes other programs, and is meaningful only with one thread."""
    if cpu_time and torch.get_num_threads() > 1:
        raise ConfigError(
            f"--cpu-time needs an engine with one thread, this one has {torch.get_num_threads()}: set OMP_NUM_THREADS=1"
        )
    return thread_time if cpu_time else perf_counter


def calibrate(
    tell: Tell,
    model: str,
    *,
    rounds: int = 5,
    cpu_time: bool = False,
    engine: dict[str, Any] | None = None,
) -> Calibration:
    """Measure the live engine in `rounds` rounds and fit."""
    timer = choose_timer(cpu_time)
    tell(f"loading {model}")
    timed: list[TimedLoad] = []
    with live_core(model, engine) as core:
        deployment = deployment_of(core, model)
        probe(core, deployment.model.num_params, seed=-1)  # the first calls record graphs and allocate
        for number in range(rounds):
            tell(f"{model}: round {number + 1} of {rounds}")
            timed += probe(core, deployment.model.num_params, number, timer)
    return fit(model, deployment, timed)
