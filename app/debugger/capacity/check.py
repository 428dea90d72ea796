"""Check by simulation: run the scenario through the real scheduler in virtual time and compare with the formulas.

Only kernels are modelled (`engine/sim/cost.py`), with the same rates as in the formulas; batching, chunking, the prefix
cache, queueing and preemption are the engine's. So a difference between the columns is not about hardware but about
what the formulas' means leave out.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from app.debugger.capacity.figure import Capacity, ms
from app.debugger.capacity.scenario import Scenario
from engine.sim.report import Percentiles, RunReport, summarise
from engine.sim.run import make_engine
from engine.sim.steady_state import SteadyState
from prep_common.text import counted

FEWEST, MOST = 200, 3000
"""Requests of a run."""
RESIDENCES = 25
"""A run lasts this many times as long as a request, within bounds, so that its start and end have little effect."""
LIMIT_S = 30.0
"""Wall-clock seconds after which a run stops; requests finished until then count."""
CLOSE = 1.05


def sensible_count(capacity: Capacity) -> int:
    """The number of requests for a run long enough to compare with the steady state."""
    state = capacity.state
    assert state is not None
    first = state.ttft if math.isfinite(state.ttft) else 0.0
    residence = first + capacity.scenario.output * state.step
    return round(min(MOST, max(FEWEST, state.rate * RESIDENCES * residence)))


class Check:
    """One run in a separate thread. Its fields may be read at any time; `cancel` ends it within a request."""

    def __init__(
        self,
        scenario: Scenario,
        rate: float,
        num_requests: int,
        *,
        limit_s: float = LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """rate: requests per second on the one replica that is simulated."""
        self.scenario, self.rate, self.num_requests = scenario, rate, num_requests
        self.num_sent = 0
        self.report: RunReport | None = None
        self.error = ""
        self.stopped_because = ""
        """Reason why the run stopped early; empty if it did not."""
        self._limit_s, self._clock = limit_s, clock
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="capacity-check", daemon=True)

    def start(self) -> Check:
        self._thread.start()
        return self

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def cancel(self) -> None:
        self._cancelled.set()

    def wait(self) -> Check:
        self._thread.join()
        return self

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # shown on the page; a thread's traceback would be lost
            self.error = f"{type(error).__name__}: {error}"

    def _serve(self) -> None:
        """`SimEngine.run`, checking the clock and `cancel` before each request."""
        engine = make_engine(self.scenario.deployment)
        end = self._clock() + self._limit_s
        for request in self.scenario.workload(self.num_requests, self.rate):
            if self._cancelled.is_set():
                self.stopped_because = "it was cancelled"
                break
            if self._clock() > end:
                self.stopped_because = f"it took longer than {self._limit_s:g} s"
                break
            engine.run_until(request.arrival)
            engine.add(request, request.arrival)
            self.num_sent += 1
        if not self._cancelled.is_set():
            engine.run_until(math.inf)
        self.report = summarise([engine.recorder], engine.scheduler.kv.pool.num_usable, engine.rejected)


@dataclass(frozen=True)
class Gap:
    """One number by formula and by simulation."""

    title: str
    unit: str
    formula: float
    run: float
    why: str

    @property
    def ratio(self) -> float:
        """run / formula."""
        return self.run / self.formula if self.formula and math.isfinite(self.formula) else math.nan


def compare(capacity: Capacity, report: RunReport, replicas: int = 1) -> list[Gap]:
    """The numbers of formula and run of `replicas` replicas, each with a sentence about the difference."""
    state, scenario = capacity.state, capacity.scenario
    assert state is not None
    if report.ttft is None or report.tpot is None or report.queue is None:
        return []
    made = min(state.rate, capacity.value("most")) * scenario.output
    hits = scenario.hit_tokens / scenario.prompt
    cost = scenario.price * scenario.deployment.num_devices / 3600e-6
    speed = report.output_tokens_per_s / replicas
    running, busy = report.mean_running * report.busy_share, report.busy_share
    kv = report.mean_kv_cache_usage * busy
    throughput = _why_throughput(state, report, scenario)
    rows = [
        ("Time to first token (TTFT), mean", "seconds", state.ttft, report.ttft.mean,
         _why_ttft(state, report, scenario, report.ttft, report.queue)),
        ("Time per output token (TPOT), mean", "seconds", state.step, report.tpot.mean,
         _why_tpot(state, report, scenario, report.tpot)),
        ("Requests running at once", "requests", state.running, running, _why_running(state, report, scenario)),
        ("Busy", "share", state.busy, busy,
         f"With {report.num_requests:,} requests, a few long pauses between them dominate. The formula is the steady "
         "state with a Poisson number of running requests."),
        ("KV cache in use by running requests", "share", capacity.value("kv_use"), kv,
         "The number of running requests differs (above), and every request holds a whole last block of "
         f"{scenario.deployment.block_size} tokens, however full; the peak was "
         f"{100 * report.peak_kv_cache_usage:.0f} %."),
        ("Output tokens per second, one replica", "tokens/s", made, speed, throughput),
        ("Cost per million output tokens", scenario.currency, cost / made, cost / speed, throughput),
        ("Prompt tokens found in the prefix cache", "share", hits, report.prefix_cache_hit_rate,
         f"The first request with each of {scenario.num_prefixes} prefixes computes it, as do requests that arrive "
         "before that is finished; and only whole blocks of a prefix can be hit."),
        ("Preemptions", "preemptions", 0.0, float(report.num_preemptions),
         f"At the peak {100 * report.peak_kv_cache_usage:.0f} % of the blocks were used: running requests needed more, "
         "so the newest were preempted. The formula always counts half of an output per request."),
    ]  # fmt: skip
    return [
        Gap(title, unit, formula, run, _agree(formula, run) or why) for title, unit, formula, run, why in rows
    ]


def _agree(formula: float, run: float) -> str:
    if formula == run:
        return "They agree."
    if formula and math.isfinite(formula) and 1 / CLOSE < run / formula < CLOSE:
        return f"They agree to {100 * abs(run / formula - 1):.1f} %."
    return ""


def _ends(state: SteadyState, report: RunReport, scenario: Scenario) -> str:
    """The share of the run that is its start and end, as a sentence."""
    residence = scenario.output * state.step
    share = min(1.0, residence / report.seconds) if report.seconds else 1.0
    return f"For about {100 * share:.0f} % of its time the run fills up from empty or drains"


def _why_ttft(
    state: SteadyState, report: RunReport, scenario: Scenario, ttft: Percentiles, queue: Percentiles
) -> str:
    if not state.is_stable:
        return (
            f"Requests arrive faster than they are served, so the queue grows without bound. The mean wait of "
            f"{ms(queue.mean)} depends only on the length of the run ({counted(report.num_requests, 'request')})."
        )
    if report.num_preemptions or report.peak_waiting > 2 * scenario.deployment.max_num_seqs:
        return (
            f"Requests waited {ms(queue.mean)} on average: at times more arrived than memory could hold, which "
            f"the mean load of {state.running:,.0f} does not show."
        )
    if ttft.mean > state.ttft:
        return (
            f"Arrivals cluster: p99 is {ms(ttft.p99)}, p50 is {ms(ttft.p50)}. Prompts that arrive "
            "together share longer steps than in the formula, which covers only short variations of the batch."
        )
    return f"{_ends(state, report, scenario)}, when requests wait less."


def _why_tpot(state: SteadyState, report: RunReport, scenario: Scenario, tpot: Percentiles) -> str:
    if not state.is_stable:
        return "The formula assumes the largest batch all the time; in the run the batch varies as blocks become free."
    if tpot.mean > state.step:
        return (
            f"Steps are longer when many requests run, and then more requests experience them: the batch was "
            f"{report.mean_running:,.0f} on average and {report.peak_running:,} at most."
        )
    return f"{_ends(state, report, scenario)}, with smaller batches and shorter steps."


def _why_running(state: SteadyState, report: RunReport, scenario: Scenario) -> str:
    if not state.is_stable:
        return (
            "The formula assumes the largest batch all the time. In the run it varies: preempted requests wait, and at "
            "the start and end fewer requests run."
        )
    if report.mean_running * report.busy_share < state.running:
        return f"{_ends(state, report, scenario)}; Little's law holds for the time in between."
    return "Requests took longer than by the formula (see TPOT), so more of them ran at once."


def _why_throughput(state: SteadyState, report: RunReport, scenario: Scenario) -> str:
    if not state.is_stable:
        return "The replica is full; preempted requests recompute tokens, and at the end it is not full."
    return (
        f"{_ends(state, report, scenario)}, and the output is divided by all of it. With random arrivals "
        "the rate of a short run also differs from the requested one."
    )
