"""Run one workload twice: in the live engine, and in the simulator calibrated on it.

Both get the same arrivals, lengths and scheduler settings. Live rounds alternate with rounds of calibration, so that
both see the same load of the machine, and figures are medians over the rounds. The live clock skips idle time: when
nothing is left to do, it is set to the next arrival, as in the simulator. All else is real: the engine schedules,
computes and samples, and a request that arrives during a step waits for its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

from app.bench.calibrate import choose_timer, deployment_of, fit, live_core, probe
from app.bench.timing import Tell
from app.bench.workload import StepClock, TimedStep, Timer
from engine.core.request import Request
from engine.engine_core import EngineCore
from engine.sampling_params import SamplingParams
from engine.sim.calibration import Calibration
from engine.sim.cost import CostModel
from engine.sim.engine import SimEngine
from engine.sim.recorder import Recorder, RequestRecord
from engine.sim.report import RunReport, summarise
from engine.sim.workload import Lengths, SimRequest, Workload

PROMPT, OUTPUT = Lengths(32, 256), Lengths(16, 48)

BARS = {"mean step": 0.15, "TTFT p50": 0.20, "ITL p50": 0.20}
"""Figure -> largest allowed error; figures without one are only reported."""


@dataclass
class Figure:
    name: str
    live: float
    """Median over the rounds, seconds."""
    simulated: float
    spread: float
    """(largest - smallest) / median of the live rounds. An error smaller than this means little."""
    bar: float | None

    @property
    def error(self) -> float:
        return self.simulated / self.live - 1

    @property
    def is_within(self) -> bool:
        return self.bar is None or abs(self.error) <= self.bar


@dataclass
class CheckReport:
    model: str
    num_requests: int
    rate: float
    rounds: int
    calibration: Calibration
    figures: list[Figure] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(figure.is_within for figure in self.figures)

    @property
    def spread(self) -> float:
        """Largest spread of the live rounds among the figures with a bar."""
        return max((figure.spread for figure in self.figures if figure.bar is not None), default=0.0)

    @property
    def is_noisy(self) -> bool:
        """Whether live rounds differ by more than twice a bar, so that the machine decides the result."""
        return any(figure.bar is not None and figure.spread > 2 * figure.bar for figure in self.figures)


def check(
    tell: Tell,
    model: str,
    *,
    num_requests: int = 60,
    load: float = 0.6,
    rounds: int = 3,
    cpu_time: bool = False,
    prompt: Lengths = PROMPT,
    output: Lengths = OUTPUT,
    engine: dict[str, Any] | None = None,
    saved: Calibration | None = None,
) -> CheckReport:
    """Compare. `load`: arrival rate as a share of the engine's capacity. `saved`: a calibration to use instead."""
    timer = choose_timer(cpu_time)
    tell(f"loading {model}")
    timed: list[TimedStep] = []
    live: list[RunReport] = []
    with live_core(model, engine) as core:
        deployment = deployment_of(core, model)
        size = deployment.model.num_params
        tell("warming up")
        first = probe(core, size, -1, timer)
        rate = load * _capacity(core, saved or fit(model, deployment, first), prompt, output)
        work = list(Workload(num_requests, rate, prompt, output))
        for number in range(rounds):
            if saved is None:
                tell(f"round {number + 1} of {rounds}: calibrating")
                timed += probe(core, size, number, timer)
            tell(f"round {number + 1} of {rounds}: {num_requests} requests, live")
            live.append(serve_live(core, work, timer))
        calibration = saved or fit(model, deployment, timed)
        simulated = serve_simulated(core, calibration, work)
    report = CheckReport(model, num_requests, rate, rounds, calibration)
    for name, value in _figures(simulated).items():
        values = [_figures(run)[name] for run in live]
        spread = (max(values) - min(values)) / median(values)
        report.figures.append(Figure(name, median(values), value, spread, BARS.get(name)))
    return report


def _figures(report: RunReport) -> dict[str, float]:
    spreads = {"TTFT": report.ttft, "ITL": report.itl, "E2E": report.e2e}
    figures = {"mean step": report.mean_step_seconds}
    for name, spread in spreads.items():
        assert spread is not None  # every request finished and has several tokens
        figures |= {f"{name} p50": spread.p50, f"{name} p90": spread.p90, f"{name} mean": spread.mean}
    return figures


def _capacity(core: EngineCore, calibration: Calibration, prompt: Lengths, output: Lengths) -> float:
    """Return the simulated requests per second when all arrive at the start."""
    work = list(Workload(100, float("inf"), prompt, output))
    return serve_simulated(core, calibration, work).requests_per_s


def serve_simulated(core: EngineCore, calibration: Calibration, work: Sequence[SimRequest]) -> RunReport:
    """Simulate the work with the live engine's scheduler settings and cache."""
    cost = CostModel(deployment_of(core, calibration.model), calibration.rates)
    engine = SimEngine(core.config.scheduler, core.config.cache, cost)
    engine.run(work)
    return summarise([engine.recorder], engine.scheduler.kv.pool.num_usable, engine.rejected)


def serve_live(core: EngineCore, work: Sequence[SimRequest], timer: Timer = perf_counter) -> RunReport:
    """Run the work in the live engine; the clock advances by the time of its steps and skips idle time."""
    recorder, clock = Recorder(), StepClock(core, timer, loads=True)
    rng, vocabulary = Random("live"), core.config.model.vocab_size
    now, previous_end, index = 0.0, -2.0, 0
    try:
        while index < len(work) or core.has_unfinished():
            if not core.has_unfinished():
                now = max(now, work[index].arrival)
            while index < len(work) and work[index].arrival <= now:
                request = work[index]
                core.add_request(_live_request(request, rng, vocabulary))
                record = RequestRecord(request, arrival=request.arrival, scheduled=0.0)
                recorder.live[str(request.index)] = record
                index += 1
            step = clock.step()
            if not step.load.num_rows:
                continue
            now += step.total
            recorder.step(step.total, len(core.scheduler.running), len(core.scheduler.waiting), 0)
            recorder.outputs(step.outputs, now, previous_end)
            previous_end = now
    finally:
        clock.remove()
    return summarise([recorder], core.config.cache.num_blocks - 1, [])


def _live_request(request: SimRequest, rng: Random, vocabulary: int) -> Request:
    tokens = [rng.randrange(vocabulary) for _ in range(request.prompt_len)]
    params = SamplingParams(temperature=0, max_tokens=request.output_len, ignore_eos=True)
    return Request(str(request.index), tokens, params, arrival_time=request.arrival)
