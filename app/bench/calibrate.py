"""Fit the simulator's cost of a step to the live engine on this machine.

Run and time steps of known kinds: n decodes with short and long contexts, prompts of several lengths, both
together, with and without adapters. Each kind runs once per round and counts with its median, so that a burst of other
work on the machine affects few of them. The fit has a handful of unknowns, none of them negative:

    schedule + update = step_overhead + row_overhead * rows
    execute           = bytes / bandwidth + flops / rate + KV bytes / rate + attention flops / rate
                        + eager * layers + eager_row * rows (steps with a prompt) + row * rows
                        + adapter bytes / rate + adapter flops / rate + adapter_overhead * layers (with an adapter)

A second engine looks up n-grams: its steps give the cost of a lookup, what they take beyond the fitted time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import numpy as np
import torch

from app.bench.lora import random_adapter
from app.bench.models import bench_model
from app.bench.timing import Tell
from app.bench.workload import StepClock, TimedStep, Timer
from engine.config import ConfigError, EngineArgs
from engine.core.request import Request
from engine.engine_core import EngineCore
from engine.exec.uniproc import worker_of
from engine.sampling_params import SamplingParams
from engine.sim.calibration import Calibration
from engine.sim.cost import CostModel, Rates, StepLoad
from engine.sim.hardware import this_cpu
from engine.sim.memory import Deployment
from engine.sim.models import MODELS, get_model
from engine.sim.precision import SHORT_NAMES, get_precision

ENGINE_DTYPES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "rtn"},
}
"""Engine arguments of the simulator's dtypes that a CPU runs."""
HERE = [name for name, shape in MODELS.items() if shape.repository.startswith(("engine/", "app/"))]
"""Models that are part of this repository."""
MAX_LORAS = 4
LORA: dict[str, Any] = {
    "enable_lora": True,
    "max_loras": MAX_LORAS,
    "max_lora_rank": Deployment.max_lora_rank,
}
LOOKUP: dict[str, Any] = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}}


class Case(NamedTuple):
    """A kind of step."""

    rows: int  # decoding requests
    context: int = 0  # tokens of each
    prompt: int = 0  # tokens of an additional prompt; 0: none
    adapters: int = 0  # different adapters of the requests


PROMPTS = [Case(0, 0, tokens) for tokens in (6, 24, 96, 240, 480)]
ADAPTERS = [Case(1, 24, 0, 1), Case(8, 24, 0, 1), Case(8, 24, 0, 4), Case(24, 24, 0, 4), Case(0, 0, 96, 1)]
SMALL_MODEL = [Case(rows, context) for rows in (1, 2, 4, 8, 16, 32) for context in (24, 400)]
SMALL_MODEL += [*PROMPTS, Case(4, 200, 60), Case(16, 100, 120), Case(24, 60, 200)]
LARGE_MODEL = [Case(1, 24), Case(1, 300), Case(2, 24), Case(4, 100), Case(8, 24), Case(16, 24)]
LARGE_MODEL += [*PROMPTS, Case(4, 64, 60), Case(12, 24, 120)]
LOOKUPS = [Case(1, 24), Case(4, 24), Case(16, 24)]
LARGE_PARAMS = 100_000_000
"""Parameters from which filling contexts takes so long that a round has fewer of them."""
PROMPTS_EACH, DECODES_EACH = 4, 9
"""Timed steps of a case. The first decode is left out: caches still hold what the prompts used."""
TURNS = 6
"""Fits with overlap: each decides by the one before which products are limited by bytes."""
ROUNDS = 5


def engine_dtype(dtype: str) -> dict[str, Any]:
    """Return the engine arguments of a dtype of the simulator. Raises ConfigError if a CPU does not run it."""
    name = SHORT_NAMES.get(dtype, dtype).lower()
    if name not in ENGINE_DTYPES:
        raise ConfigError(
            f"steps in {name} are not measured on a CPU; choose one of {', '.join(ENGINE_DTYPES)} as --dtype"
        )
    return ENGINE_DTYPES[name]


def require_measured(model: str) -> None:
    """Raise ConfigError if the model is not among those measured on a CPU."""
    if model not in HERE:
        raise ConfigError(
            f"{model!r} is not among the models measured on a CPU; use one of {', '.join(HERE)}"
        )


@contextmanager
def live_core(
    model: str, dtype: str = "float32", engine: dict[str, Any] | None = None
) -> Iterator[EngineCore]:
    """Open the live engine on the CPU with the settings that both sides of a comparison use.

    With `enable_lora` it holds `max_loras` random adapters; their keys are "0", "1", ...
    """
    require_measured(model)
    settings = {"device": "cpu", "max_num_seqs": 32, "max_num_batched_tokens": 256, "max_model_len": 1024}
    settings |= {**engine_dtype(dtype), **(engine or {})}
    with bench_model(model, settings) as (folder, arguments):
        core = EngineCore.from_args(EngineArgs.create(model=folder, **arguments))
    try:
        if (manager := worker_of(core).lora) is not None:
            with TemporaryDirectory() as scratch:
                for key in map(str, range(manager.config.max_loras)):
                    rank = manager.config.max_lora_rank
                    core.load_lora(key, str(random_adapter(manager, Path(scratch, key), rank, int(key))))
        yield core
    finally:
        core.shutdown()


def deployment_of(core: EngineCore, model: str, dtype: str = "float32") -> Deployment:
    """Return a live engine's deployment as the simulator describes it."""
    names = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
    sizes = {name: getattr(core.config.scheduler, name) for name in names}
    name, block_size = get_precision(dtype).name, core.config.cache.block_size
    return Deployment(get_model(model), this_cpu(), dtype=name, block_size=block_size, **sizes)


def cases_of(model: str) -> list[Case]:
    """Return the kinds of steps that determine the rates of a model, without adapters."""
    return LARGE_MODEL if get_model(model).num_params > LARGE_PARAMS else SMALL_MODEL


def probe(core: EngineCore, cases: Sequence[Case], seed: int, timer: Timer = perf_counter) -> list[TimedStep]:
    """Time one round over kinds of steps, in random order."""
    rng = Random(seed)
    order = rng.sample(cases, len(cases))
    clock = StepClock(core, timer, loads=True)
    timed: list[TimedStep] = []
    try:
        for number, case in enumerate(order):
            timed += _run_case(core, clock, f"probe-{seed}-{number}", case, rng)
    finally:
        clock.remove()
    return timed


def _run_case(core: EngineCore, clock: StepClock, label: str, case: Case, rng: Random) -> list[TimedStep]:
    """Advance the requests until they decode, then time their decodes, or a prompt added to them."""
    for index in range(case.rows):
        _add(core, f"{label}-{index}", case, case.context, 2 * case.rows + DECODES_EACH + 2, rng)
    while any(request.num_output_tokens < 1 for request in core.scheduler.requests.values()):
        clock.step()
    timed: list[TimedStep] = []
    for repeat in range(PROMPTS_EACH if case.prompt else DECODES_EACH):
        if case.prompt:
            _add(core, f"{label}-prompt-{repeat}", case, case.prompt, 1, rng)
        timed.append(clock.step())
    core.abort(list(core.scheduler.requests))
    return [step for step in timed[0 if case.prompt else 1 :] if step.load.num_rows]


def _add(core: EngineCore, request_id: str, case: Case, prompt: int, max_tokens: int, rng: Random) -> None:
    tokens = [rng.randrange(core.config.model.vocab_size) for _ in range(prompt)]
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    adapter = str(len(core.scheduler.requests) % case.adapters) if case.adapters else None
    core.add_request(Request(request_id, tokens, params, lora_key=adapter))


@dataclass(frozen=True)
class Kind:
    """A kind of step, with the medians of its times in seconds."""

    load: StepLoad
    planning: float
    execute: float

    @property
    def total(self) -> float:
        return self.planning + self.execute


def fit(deployment: Deployment, timed: list[TimedStep]) -> Calibration:
    """Fit the rates to the medians of all kinds of steps, minimising the relative error.

    Whether reading weights overlaps with products depends on the processor and its kernels: the better fit decides.
    """
    steps: dict[tuple[int, ...], list[TimedStep]] = defaultdict(list)
    for step in timed:
        load = step.load
        contexts = load.decode_context // (64 * max(1, load.num_rows)), load.prefill_pairs.bit_length()
        steps[load.num_rows, load.num_tokens, load.num_adapters, *contexts].append(step)
    kinds = [
        Kind(group[len(group) // 2].load, median(s.planning for s in group), median(s.execute for s in group))
        for group in steps.values()
    ]
    candidates = [_solve(deployment, kinds)]
    for _ in range(TURNS):
        candidates.append(_solve(deployment, kinds, candidates[-1]))
    rates = min(candidates, key=lambda candidate: sum(_errors(deployment, kinds, candidate)))
    error = median(_errors(deployment, kinds, rates))
    model, dtype = deployment.model.name, deployment.dtype
    return Calibration(model, dtype, rates, torch.get_num_threads(), len(timed), error)


def _errors(deployment: Deployment, kinds: list[Kind], rates: Rates) -> list[float]:
    fitted = CostModel(deployment, rates)
    return [abs(fitted.seconds(kind.load) - kind.total) / kind.total for kind in kinds]


def _solve(deployment: Deployment, kinds: list[Kind], earlier: Rates | None = None) -> Rates:
    """Return the rates that fit best. With earlier rates, a product counts only what takes longer by them."""
    cost = CostModel(deployment, Rates(1, 1, 1, 1, 0, 0, 0, overlaps=False))
    layers = deployment.model.num_layers
    columns = []
    for load in (kind.load for kind in kinds):
        num_bytes = flops = 0.0
        for moved, computed in cost.products(load):
            is_moving = earlier is None or moved / earlier.bytes_per_s >= computed / earlier.flops
            num_bytes += moved if is_moving else 0.0
            flops += computed if earlier is None or not is_moving else 0.0
        eager = (0.0, 0.0) if load.is_replayed else (layers, load.num_rows)
        adapted = layers if load.num_adapters else 0.0
        work = (*cost.attention_work(load), *cost.adapter_work(load))
        columns.append([num_bytes, flops, *work, adapted, *eager, load.num_rows])
    totals = [kind.total for kind in kinds]
    solution = _nonnegative(columns, [kind.execute for kind in kinds], totals)
    *rates, adapted, eager_layer, eager_row, row = solution
    moved, computed, kv, pairs, adapter_moved, adapter_computed = map(_inverse, rates)
    planning = [kind.planning for kind in kinds]
    per_step, per_row = _nonnegative([[1.0, kind.load.num_rows] for kind in kinds], planning, planning)
    return Rates(
        *(moved, computed, kv, pairs, per_step, eager_layer, per_row + row),
        overlaps=earlier is not None,
        adapter_bytes_per_s=adapter_moved,
        adapter_flops=adapter_computed,
        adapter_overhead=adapted,
        eager_row_overhead=eager_row,
    )


def with_lookups(calibration: Calibration, deployment: Deployment, timed: list[TimedStep]) -> Calibration:
    """Add the cost of looking up n-grams: what the steps of such an engine take beyond the fitted time, per row."""
    cost = CostModel(deployment, calibration.rates)
    beyond = median((step.total - cost.seconds(step.load)) / step.load.num_rows for step in timed)
    return replace(calibration, rates=replace(calibration.rates, lookup_overhead=max(0.0, beyond)))


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
    tell: Tell, model: str, dtype: str = "float32", *, rounds: int = ROUNDS, cpu_time: bool = False
) -> Calibration:
    """Measure the live engine in `rounds` rounds and fit."""
    timer = choose_timer(cpu_time)
    name = f"{model} in {get_precision(dtype).name}"
    calibration: Calibration | None = None
    for engine, cases in ((LORA, [*cases_of(model), *ADAPTERS]), (LOOKUP, LOOKUPS)):
        tell(f"{name}: loading")
        timed: list[TimedStep] = []
        with live_core(model, dtype, engine) as core:
            deployment = deployment_of(core, model, dtype)
            probe(core, cases, seed=-1)  # the first calls record graphs and allocate
            for number in range(rounds):
                tell(f"{name}: round {number + 1} of {rounds}")
                timed += probe(core, cases, number, timer)
        calibration = (
            fit(deployment, timed) if calibration is None else with_lookups(calibration, deployment, timed)
        )
    assert calibration is not None
    return calibration
