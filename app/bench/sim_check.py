"""Run workloads twice: in the live engine, and in the simulator calibrated on it.

Both get the same arrivals, lengths and scheduler settings. Figures are medians over the live rounds. The live clock
skips idle time: when nothing is left to do, it is set to the next arrival, as in the simulator. All else is real: the
engine schedules, computes and samples, and a request that arrives during a step waits for its end.

Near capacity a small error of the steps becomes a large one of the waiting times: with a load of 0.95, steps that are
3 % longer leave 2 % of the time idle instead of 5 %, and queues are more than twice as long.

A busy machine is slower at one time than at another. Before and after every live round some kinds of steps are timed;
by how much they take longer than in the calibration is the pace of the machine, and the simulator's steps take it too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

from app.bench.calibrate import Case, calibrate, choose_timer, deployment_of, live_core, probe
from app.bench.comparison import Figure
from app.bench.comparison import as_json as figure_json
from app.bench.sim_workloads import ALL_AT_ONCE, APART, CheckWorkload
from app.bench.timing import Tell
from app.bench.workload import StepClock, TimedStep, Timer
from engine.config import ConfigError
from engine.core.request import Request
from engine.core.stats import StepStats
from engine.engine_core import EngineCore
from engine.sim.calibration import Calibration, calibration_from
from engine.sim.cost import CostModel
from engine.sim.engine import SimEngine
from engine.sim.hardware import this_cpu
from engine.sim.memory import Deployment
from engine.sim.models import get_model
from engine.sim.recorder import Recorder, RequestRecord
from engine.sim.report import RunReport, summarise
from engine.sim.run import make_engine
from engine.sim.speculation import Speculation
from engine.sim.workload import SimRequest, make_request
from prep_common.paths import cache_dir, write_atomically
from prep_common.text import duration

PACE = [Case(1, 24), Case(8, 24), Case(24, 100), Case(0, 0, 96), Case(0, 0, 240), Case(8, 60, 200)]
"""Kinds of steps around the live rounds."""
MEDIAN_BAR, SHARE_BAR = 0.10, 0.75
"""Largest median error of all figures, and smallest share of figures within their bar, of a check that passes."""


@dataclass(frozen=True)
class Drafting:
    """Measured success of a drafter, which no cost model knows: it depends on the text."""

    length: int
    """Drafts of a row that got some; n-grams often end with the text, before `num_speculative_tokens`."""
    coverage: float
    """Share of decoding rows that got drafts."""
    acceptance: float
    """Probability that a draft is accepted if those before it were."""

    @classmethod
    def measured(cls, steps: Sequence[StepStats]) -> Drafting:
        """Count drafts and their success over the steps of a run."""
        num_tokens = sum(step.num_draft_tokens for step in steps)
        rows = sum(step.num_decode_tokens for step in steps) - num_tokens
        drafted = sum(step.num_drafts for step in steps)
        length = max(1, round(num_tokens / max(1, drafted)))
        accepted = sum(sum(step.num_accepted_tokens_per_pos[:length]) for step in steps)
        whole = sum(sum(step.num_accepted_tokens_per_pos[length - 1 : length]) for step in steps)
        return cls(length, drafted / max(1, rows), accepted / max(1, accepted + drafted - whole))


@dataclass
class Outcome:
    """Figures of one workload."""

    workload: str
    num_requests: int
    rate: float
    """Requests per second; infinite: all at once."""
    figures: list[Figure]
    drafting: Drafting | None = None
    pace: float = 1.0
    """Time of a step around the live rounds, relative to the calibration."""


@dataclass
class CheckReport:
    """Figures of all workloads of one model."""

    model: str
    dtype: str
    rounds: int
    calibration: Calibration
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def figures(self) -> list[Figure]:
        return [figure for outcome in self.outcomes for figure in outcome.figures]

    @property
    def median_error(self) -> float:
        return median(abs(figure.error) for figure in self.figures)

    @property
    def num_within(self) -> int:
        return sum(figure.is_within for figure in self.figures)

    @property
    def passed(self) -> bool:
        return self.median_error <= MEDIAN_BAR and self.num_within >= SHARE_BAR * len(self.figures)

    @property
    def is_noisy(self) -> bool:
        """Whether so many live figures are noisy that the machine decides the result."""
        return sum(figure.is_noisy for figure in self.figures) > (1 - SHARE_BAR) * len(self.figures)


class Interrupted(KeyboardInterrupt):
    """A check was interrupted, and what it has measured is stored."""


def check(
    tell: Tell,
    model: str,
    dtype: str,
    workloads: Sequence[CheckWorkload],
    *,
    rounds: int = 3,
    cpu_time: bool = False,
    saved: Calibration | None = None,
    resume: bool = False,
) -> CheckReport:
    """Compare. `saved`: a calibration to use instead of measuring. `resume`: go on with an interrupted check.

    Raises Interrupted if it can go on later, and ConfigError if there is no interrupted check of the same settings.
    """
    timer = choose_timer(cpu_time)
    settings = {
        "workloads": [workload.name for workload in workloads],
        "cpu_time": cpu_time,
        "saved": asdict(saved) if saved else None,
    }
    if resume:
        report = _interrupted(model, dtype, rounds, settings)
    else:
        calibration = saved or calibrate(tell, model, dtype, cpu_time=cpu_time)
        report = CheckReport(model, dtype, rounds, calibration)
        _save(report, settings)
    try:
        _finish(tell, report, workloads, settings, timer)
    except KeyboardInterrupt as error:
        raise Interrupted from error
    _unfinished().unlink(missing_ok=True)
    return report


def _finish(
    tell: Tell,
    report: CheckReport,
    workloads: Sequence[CheckWorkload],
    settings: dict[str, Any],
    timer: Timer,
) -> None:
    """Compare the workloads that are left, and store the report after each."""
    done = {outcome.workload for outcome in report.outcomes}
    left = [workload for workload in workloads if workload.name not in done]
    seconds = [_expected_seconds(workload, report) for workload in left]
    for number, workload in enumerate(left):
        where = f"{number + 1} of {len(left)}, {workload.name}"
        rest = f"about {duration(sum(seconds[number:]))} to go"
        report.outcomes.append(
            _compare(lambda text, a=where, b=rest: tell(f"{a}: {text}, {b}"), workload, report, timer)  # type: ignore[misc]
        )
        _save(report, settings)


def _compare(tell: Tell, workload: CheckWorkload, report: CheckReport, timer: Timer) -> Outcome:
    """Run a workload once to warm up and to measure its drafter, then in rounds, then simulate it."""
    tell("loading")
    with live_core(report.model, report.dtype, dict(workload.engine)) as core:
        rate = _rate(core, workload, report.calibration)
        work = workload.requests(workload.sized(report.model), rate)
        tell("warming up")
        steps: list[StepStats] = []
        serve_live(core, work, timer, steps)
        drafting = Drafting.measured(steps) if core.config.speculative else None
        live, timed = [], probe(core, PACE, 0, timer)
        for number in range(report.rounds):
            tell(f"round {number + 1} of {report.rounds}")
            live.append(figures_of(serve_live(core, work, timer)))
            timed += probe(core, PACE, 1 + number, timer)
        pace = _pace(core, report.calibration, timed)
        work = [replace(request, arrival=request.arrival / pace) for request in work]
        simulated = figures_of(serve_simulated(core, report.calibration, work, drafting))
    for name in simulated:
        simulated[name] *= 1 / pace if name.endswith("/s") else pace
    figures = [
        Figure(name, [measured[name] for measured in live], [value]) for name, value in simulated.items()
    ]
    return Outcome(workload.name, len(work), rate, figures, drafting, pace)


def _pace(core: EngineCore, calibration: Calibration, timed: Sequence[TimedStep]) -> float:
    """Return the median of measured over fitted seconds."""
    cost = CostModel(deployment_of(core, calibration.model, calibration.dtype), calibration.rates)
    lookup_s = calibration.rates.lookup_overhead if core.config.speculative else 0.0
    return median(step.total / (cost.seconds(step.load) + lookup_s * step.load.num_rows) for step in timed)


def figures_of(report: RunReport) -> dict[str, float]:
    """Return the figures that are compared: times in seconds, and output tokens per second of work."""
    assert report.ttft is not None and report.tpot is not None and report.e2e is not None
    return {
        "output tokens/s": report.output_tokens / (report.num_steps * report.mean_step_seconds),
        "mean step": report.mean_step_seconds,
        "TTFT p50": report.ttft.p50,
        "TPOT p50": report.tpot.p50,
        "E2E p90": report.e2e.p90,
    }


def _rate(core: EngineCore, workload: CheckWorkload, calibration: Calibration) -> float:
    """Return the requests per second: the load times the simulated rate when all arrive at the start."""
    if workload.load == APART:
        return 0.001
    work = workload.requests(64, ALL_AT_ONCE)
    return workload.load * serve_simulated(core, calibration, work).requests_per_s


def _expected_seconds(workload: CheckWorkload, report: CheckReport) -> float:
    """Estimate the duration of a workload's rounds by simulating it on a plain engine."""
    deployment = Deployment(
        get_model(report.model), this_cpu(), dtype=report.calibration.dtype, max_num_seqs=32
    )
    engine = make_engine(deployment, rates=report.calibration.rates, num_blocks=4096)
    engine.run(workload.requests(workload.sized(report.model), ALL_AT_ONCE))
    return 1.0 + 1.2 * (1 + report.rounds) * engine.recorder.step_seconds


def serve_simulated(
    core: EngineCore, calibration: Calibration, work: Sequence[SimRequest], drafting: Drafting | None = None
) -> RunReport:
    """Simulate the work with the live engine's scheduler settings and cache."""
    cost = CostModel(deployment_of(core, calibration.model, calibration.dtype), calibration.rates)
    speculation = None
    if drafting is not None:
        speculation = Speculation(
            drafting.length,
            drafting.acceptance,
            coverage=drafting.coverage,
            lookup_s=calibration.rates.lookup_overhead,
        )
    engine = SimEngine(core.config.scheduler, core.config.cache, cost, speculation=speculation)
    engine.run(work)
    return summarise([engine.recorder], engine.scheduler.kv.pool.num_usable, engine.rejected)


def serve_live(
    core: EngineCore,
    work: Sequence[SimRequest],
    timer: Timer = perf_counter,
    steps: list[StepStats] | None = None,
) -> RunReport:
    """Run the work in the live engine, with an empty prefix cache; the clock advances by the time of its steps.

    steps: receives the statistics of every step.
    """
    core.reset_prefix_cache()
    recorder, clock = Recorder(), StepClock(core, timer, loads=True)
    vocabulary = core.config.model.vocab_size
    now, previous_end, index = 0.0, -2.0, 0
    try:
        while index < len(work) or core.has_unfinished():
            if not core.has_unfinished():
                now = max(now, work[index].arrival)
            while index < len(work) and work[index].arrival <= now:
                request = work[index]
                core.add_request(_live_request(request, vocabulary))
                record = RequestRecord(request, arrival=request.arrival, scheduled=0.0)
                recorder.live[str(request.index)] = record
                index += 1
            step = clock.step()
            if steps is not None:
                steps.append(core.scheduler.stats)
            if not step.load.num_rows:
                continue
            now += step.total
            recorder.step(step.total, len(core.scheduler.running), len(core.scheduler.waiting), 0)
            recorder.outputs(step.outputs, now, previous_end)
            previous_end = now
    finally:
        clock.remove()
    return summarise([recorder], core.config.cache.num_blocks - 1, [])


def _live_request(request: SimRequest, vocabulary: int) -> Request:
    """Return a request of random tokens that shares its prefix with others as the simulated one does."""
    shared = min(request.prefix_len, request.prompt_len) if request.prefix_id >= 0 else 0
    parts = ((f"prefix {request.prefix_id}", shared), (f"own {request.index}", request.prompt_len - shared))
    tokens: list[int] = []
    for seed, count in parts:
        rng = Random(seed)
        tokens += [rng.randrange(vocabulary) for _ in range(count)]
    return make_request(request, tokens)


# -- interrupted checks


def _unfinished() -> Path:
    return cache_dir() / "simulator-check.json"


def _save(report: CheckReport, settings: dict[str, Any]) -> None:
    write_atomically(_unfinished(), json.dumps(asdict(report) | {"settings": settings}))


def _interrupted(model: str, dtype: str, rounds: int, settings: dict[str, Any]) -> CheckReport:
    """Return the stored part of an interrupted check. Raises ConfigError if there is none of these settings."""
    nothing = f"nothing to resume in {_unfinished()}"
    try:
        stored = json.loads(_unfinished().read_text())
        asked = (model, dtype, rounds, settings)
        if tuple(stored[name] for name in ("model", "dtype", "rounds", "settings")) != asked:
            raise ConfigError(f"{nothing}: its check has other settings; run without --resume")
        outcomes = [
            Outcome(
                **outcome
                | {
                    "figures": [Figure(**figure) for figure in outcome["figures"]],
                    "drafting": outcome["drafting"] and Drafting(**outcome["drafting"]),
                }
            )
            for outcome in stored["outcomes"]
        ]
        return CheckReport(model, dtype, rounds, calibration_from(stored["calibration"]), outcomes)
    except ConfigError:
        raise
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{nothing}; run without --resume") from error


def as_json(report: CheckReport) -> dict[str, Any]:
    """Return the report with its errors and verdict."""
    outcomes = [
        asdict(outcome) | {"figures": [figure_json(figure) for figure in outcome.figures]}
        for outcome in report.outcomes
    ]
    verdict = {"median_error": report.median_error, "num_within": report.num_within}
    verdict |= {"passed": report.passed, "is_noisy": report.is_noisy}
    return {**asdict(report), "outcomes": outcomes, **verdict}
