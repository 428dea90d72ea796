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
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import torch

from app.bench.models import bench_model
from app.bench.timing import Tell
from app.bench.workload import StepClock, TimedStep, Timer
from engine.config import ConfigError, EngineArgs
from engine.core.request import Request
from engine.engine_core import EngineCore
from engine.sampling_params import SamplingParams
from engine.sim.calibration import Calibration
from engine.sim.cost import CostModel, Rates
from engine.sim.hardware import this_cpu
from engine.sim.memory import Deployment
from engine.sim.models import MODELS, get_model

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
    names = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
    sizes = {name: getattr(core.config.scheduler, name) for name in names}
    dtype, block_size = core.config.model.dtype, core.config.cache.block_size
    return Deployment(get_model(model), this_cpu(), dtype=dtype, block_size=block_size, **sizes)


def probe(core: EngineCore, num_params: int, seed: int, timer: Timer = perf_counter) -> list[TimedStep]:
    """Time one round over all kinds of steps, in random order."""
    rng = Random(seed)
    cases = list(LARGE_MODEL if num_params > LARGE_PARAMS else SMALL_MODEL)
    rng.shuffle(cases)
    clock = StepClock(core, timer, loads=True)
    timed: list[TimedStep] = []
    try:
        for number, (rows, context, prompt) in enumerate(cases):
            timed += _run_case(core, clock, f"probe-{seed}-{number}", rows, context, prompt, rng)
    finally:
        clock.remove()
    return timed


def _run_case(
    core: EngineCore, clock: StepClock, label: str, rows: int, context: int, prompt: int, rng: Random
) -> list[TimedStep]:
    """Advance `rows` requests until they decode, then time their decodes, or a prompt added to them."""
    for index in range(rows):
        _add(core, f"{label}-{index}", context, 2 * rows + STEPS_EACH + 2, rng)
    while any(request.num_output_tokens < 1 for request in core.scheduler.requests.values()):
        clock.step()
    timed: list[TimedStep] = []
    for repeat in range(STEPS_EACH if rows or prompt else 0):
        if prompt:
            _add(core, f"{label}-prompt-{repeat}", prompt, 1, rng)
        timed.append(clock.step())
    core.abort(list(core.scheduler.requests))
    return [step for step in timed if step.load.num_rows]


def _add(core: EngineCore, request_id: str, prompt: int, max_tokens: int, rng: Random) -> None:
    tokens = [rng.randrange(core.config.model.vocab_size) for _ in range(prompt)]
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    core.add_request(Request(request_id, tokens, params))


def fit(model: str, deployment: Deployment, timed: list[TimedStep]) -> Calibration:
    """Fit the rates to the medians of all kinds of steps, minimising the relative error."""
    kinds: dict[tuple[int, ...], list[TimedStep]] = defaultdict(list)
    for step in timed:
        load = step.load
        context = load.decode_context // (64 * max(1, load.num_rows))
        kinds[load.num_rows, load.num_tokens, context].append(step)
    loads = [steps[len(steps) // 2].load for steps in kinds.values()]
    planning = [median(step.planning for step in steps) for steps in kinds.values()]
    execute = [median(step.execute for step in steps) for steps in kinds.values()]
    totals = [a + b for a, b in zip(planning, execute, strict=True)]
    per_step, per_row = _nonnegative([[1.0, load.num_rows] for load in loads], planning, planning)
    cost = CostModel(deployment, Rates(1, 1, 1, 1, 0, 0, 0, overlaps=False))
    layers = deployment.model.num_layers
    columns = []
    for load in loads:
        eager_layers = 0.0 if load.is_decode else layers
        columns.append([*cost.bytes_and_flops(load), *cost.attention_work(load), eager_layers, load.num_rows])
    moved, computed, kv, pairs, eager, row = _nonnegative(columns, execute, totals)
    rates = Rates(
        *(_inverse(moved), _inverse(computed), _inverse(kv), _inverse(pairs)),
        *(per_step, eager, per_row + row),
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
    tell: Tell, model: str, *, rounds: int = 5, cpu_time: bool = False, engine: dict[str, Any] | None = None
) -> Calibration:
    """Measure the live engine in `rounds` rounds and fit."""
    timer = choose_timer(cpu_time)
    tell(f"loading {model}")
    timed: list[TimedStep] = []
    with live_core(model, engine) as core:
        deployment = deployment_of(core, model)
        probe(core, deployment.model.num_params, seed=-1)  # the first calls record graphs and allocate
        for number in range(rounds):
            tell(f"{model}: round {number + 1} of {rounds}")
            timed += probe(core, deployment.model.num_params, number, timer)
    return fit(model, deployment, timed)
