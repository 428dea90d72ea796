"""A simulated GPU for lesson 10: the engine's scheduler, with a roofline as its clock.

serve_beside(512)               one long prompt beside requests that decode: rows and seconds of each step
serve_traffic(512, seed=0)      mixed traffic: mean TTFT, and all gaps between tokens
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from engine.config import CacheConfig, SchedulerConfig
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput
from engine.core.scheduler import Scheduler
from engine.sampling_params import SamplingParams
from engine.sim.cost import CostModel, StepLoad, load_of, pairs_of
from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment, plan_memory
from engine.sim.models import get_model
from engine.sim.run import make_engine
from engine.sim.workload import Lengths, Workload
from lessons.given.scheduling import Plan, Seq

MODEL, HARDWARE = "llama-3.1-8b", "h100"
LONG = "long"
"""Id of the long prompt's request."""
_LONGEST = 65_536


class Step(NamedTuple):
    """One step: what was computed, and how long it took."""

    start: float
    """Virtual seconds since the long prompt arrived."""
    seconds: float
    tokens: dict[str, int]
    """Request id -> tokens computed."""


class Served(NamedTuple):
    """Latencies of the decoding requests and of the long prompt."""

    steps: list[Step]
    """From the arrival of the long prompt on."""
    ttft: float
    """Seconds until the long prompt's first token."""
    quiet: float
    """Seconds of the step before its arrival."""
    short_ttft: float
    """TTFT of a short prompt that arrived right behind it; 0 without one."""

    @property
    def chunks(self) -> list[int]:
        """Tokens of the long prompt, step by step."""
        return [step.tokens[LONG] for step in self.steps if step.start < self.ttft]

    @property
    def worst_gap(self) -> float:
        """Longest gap between two tokens of a request that decodes: the longest step, as each has a row in all."""
        return max(step.seconds for step in self.steps)


def cost_model() -> CostModel:
    """Return the roofline of the model on the GPU."""
    return CostModel(_deployment(8192))


def step_seconds(decodes: int, context: int, chunk: int = 0, start: int = 0) -> float:
    """Return the time of a step: `decodes` tokens at `context`, and `chunk` prompt tokens from `start` on."""
    rows, pairs = decodes + (chunk > 0), pairs_of(start, chunk, None)
    load = StepLoad(rows, decodes + chunk, rows, decodes * context, pairs, start + chunk if chunk else 0)
    return cost_model().seconds(load)


def serve_beside(
    budget: int,
    *,
    prompt: int = 4096,
    decodes: int = 16,
    short: int = 0,
    threshold: int = 0,
    more_steps: int = 12,
) -> Served:
    """Serve one long prompt that arrives while `decodes` requests generate, each with a context of 1,000 tokens.

    short: tokens of a prompt that arrives right behind the long one. threshold: long_prefill_token_threshold.
    Ends `more_steps` steps after the long prompt's first token.
    """
    config = SchedulerConfig(budget, decodes + 2, _LONGEST, long_prefill_token_threshold=threshold)
    cost, scheduler = (
        cost_model(),
        Scheduler(config, CacheConfig(plan_memory(_deployment(budget)).num_blocks, 16)),
    )
    steps: list[Step] = []

    def step(now: float) -> float:
        out = scheduler.schedule()
        seconds = cost.seconds(load_of(out, scheduler.requests))
        complete = (
            row.request_id
            for row in out.scheduled
            if row.start + row.num_tokens == scheduler.requests[row.request_id].num_tokens
        )
        scheduler.update(out, ModelRunnerOutput({request_id: [-1] for request_id in complete}))
        steps.append(Step(now, seconds, {row.request_id: row.num_tokens for row in out.scheduled}))
        return now + seconds

    for index in range(decodes):
        scheduler.add(_request(f"d{index}", index, 1000))
    while any(request.num_output_tokens < 4 for request in scheduler.requests.values()):
        step(0.0)
    quiet = steps[-1].seconds if steps else 0.0
    steps.clear()
    arriving = [_request(LONG, decodes, prompt)] + [_request("short", decodes + 1, short)] * (short > 0)
    for request in arriving:
        scheduler.add(request)
    first = dict.fromkeys((LONG, "short"), 0.0)
    now = 0.0
    while arriving[0].num_output_tokens < 1 + more_steps:
        now = step(now)
        for request in arriving:
            if request.num_output_tokens and not first[request.request_id]:
                first[request.request_id] = now
    return Served(steps, first[LONG], quiet, first["short"])


class SchedulerLike(Protocol):
    """The schedulers of lessons 9 and 10."""

    def schedule(self, running: list[Seq], waiting: list[Seq], num_free_blocks: int) -> Plan: ...


def drive(scheduler: SchedulerLike, *, decodes: int = 16, prompt: int = 4096) -> tuple[list[int], float]:
    """Serve one long prompt beside requests that decode; return its chunks and the longest gap of a stream, seconds.

    Every stream has a context of 1,000 tokens. A gap ends with the step in which the stream has a row.
    """
    running = [Seq(f"d{index}", 1001, 1000, 63) for index in range(decodes)]
    waiting = [Seq(LONG, prompt, 0, 0)]
    gap_of = {seq.id: 0.0 for seq in running}
    chunks: list[int] = []
    worst = 0.0
    while sum(chunks) < prompt:
        rows = dict(scheduler.schedule(running, waiting, 10_000).rows)
        chunk = rows.get(LONG, 0)
        seconds = step_seconds(sum(name in rows for name in gap_of), 1000, chunk, sum(chunks))
        chunks.append(chunk)
        worst = max(worst, *(gap + seconds for gap in gap_of.values()))
        gap_of = {name: 0.0 if name in rows else gap + seconds for name, gap in gap_of.items()}
        running += [seq for seq in waiting if seq.id in rows]
        waiting = [seq for seq in waiting if seq.id not in rows]
        running = [_moved(seq, rows.get(seq.id, 0)) for seq in running]
    return chunks, worst


def _moved(seq: Seq, tokens: int) -> Seq:
    """Return a request after a step that computed `tokens` of its tokens."""
    computed = seq.computed + tokens
    known = seq.known + (tokens > 0 and computed == seq.known)
    return Seq(seq.id, known, computed, max(seq.blocks, -(-known // 16)))


def serve_traffic(
    budget: int, seed: int, *, num_requests: int = 60, rate: float = 6.0
) -> tuple[float, list[float]]:
    """Serve random traffic; return the mean TTFT and all gaps between tokens, in seconds.

    Prompts have 2,000 tokens on average and answers 60, log-normal; arrivals are Poisson.
    """
    lengths = Lengths.parse("lognormal:2000:1.0"), Lengths.parse("lognormal:60:0.5")
    workload = Workload(num_requests, rate, *lengths, max_model_len=16_384, seed=seed)
    engine = make_engine(_deployment(budget), enable_prefix_caching=False)
    engine.run(workload)
    recorder = engine.recorder
    gaps = [gap for gap, count in zip(recorder.gaps, recorder.gap_counts, strict=True) for _ in range(count)]
    return sum(record.ttft for record in recorder.finished) / len(recorder.finished), gaps


def _deployment(budget: int) -> Deployment:
    return Deployment(
        get_model(MODEL), get_hardware(HARDWARE), max_num_batched_tokens=budget, max_num_seqs=64,
        max_model_len=_LONGEST,
    )  # fmt: skip


def _request(name: str, number: int, length: int) -> Request:
    """Return a request with tokens of its own, so that nothing is shared."""
    first = number << 24
    return Request(
        name, list(range(first, first + length)), SamplingParams(max_tokens=20_000, ignore_eos=True)
    )
