"""Run the same work through two engines in turn: `prep bench ... --against`.

Both have the same number of threads, the same settings and the same requests (`turns.py`). The result is the ratio of
the medians.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

import psutil

from app.bench.side import Side, SideSpec
from app.bench.timing import Tell, machine_busy_seconds, partial_results
from app.bench.turns import SideReport, Turns, generate
from app.bench.workload import Lengths, Work, draw_work
from prep_common.processors import num_processors
from prep_common.text import counted

WARM_UPS = 2
"""Uncounted rounds at the start: vLLM compiles again when it first runs another kind of batch."""


@dataclass(frozen=True)
class Pair:
    """Both sides and the model that they load, ready to start."""

    name: str
    """Name of the model, as typed by the user."""
    model: str
    """Folder that both sides load."""
    vocab_size: int
    threads: int
    """Threads of each side."""
    ours: SideSpec
    theirs: SideSpec


@dataclass
class Memory:
    """Memory of our side over the whole run, in bytes."""

    weights_bytes: int
    kv_bytes: int
    peak_rss_bytes: int

    @property
    def overhead_bytes(self) -> int:
        return self.peak_rss_bytes - self.weights_bytes - self.kv_bytes


@dataclass
class Comparison:
    """Two engines on one workload. `ratio`: how many times better ours is."""

    what: str
    model: str
    workload: str
    higher_is_better: bool
    threads: int
    ours: SideReport
    theirs: SideReport
    output_tokens: list[int] = field(default_factory=list)
    """Tokens of each round, the same on both sides."""
    ratio: float = 0.0
    """Ratio of the medians."""
    round_ratios: list[float] = field(default_factory=list)
    cpu_ratio: float = 0.0
    """Ratio of the medians of processor time, summed over threads. Other programs hardly affect it."""
    other_cores: float = 0.0
    """Cores that other programs used during the rounds: the more, the less the times mean."""
    memory: Memory | None = None
    step_shares: dict[str, float] = field(default_factory=dict)
    """Part of our steps -> share of their time, from one extra round with clocks inside; see `step_profile`."""
    profile_slowdown: float = 0.0
    """Time per token of the profiled round over that of the timed ones: the cost of the clocks, and noise."""
    interrupted: bool = False

    def finish(self) -> None:
        """Compute the ratios from the rounds that both sides finished."""
        rounds = min(len(self.ours.figures), len(self.theirs.figures))
        if not rounds:
            return
        for side in (self.ours, self.theirs):
            del side.figures[rounds:], side.seconds[rounds:], side.cpu_seconds[rounds:]
            del side.itl_p99_seconds[rounds:]
        del self.output_tokens[rounds:]
        self.ratio = self._times_better(self.ours.median, self.theirs.median)
        if self.ours.cpu_seconds and self.theirs.cpu_seconds:
            self.cpu_ratio = median(self.theirs.cpu_seconds) / median(self.ours.cpu_seconds)
        self.round_ratios = [
            self._times_better(a, b) for a, b in zip(self.ours.figures, self.theirs.figures, strict=True)
        ]

    def _times_better(self, ours: float, theirs: float) -> float:
        return ours / theirs if self.higher_is_better else theirs / ours


def default_threads() -> int:
    """Return OMP_NUM_THREADS if set, else the number of cores this process may use (torch's own default)."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked):
        return int(asked)
    allowed = num_processors()
    return min(allowed, psutil.cpu_count(logical=False) or allowed)


def compare_throughput(
    tell: Tell, pair: Pair, *, num_prompts: int, input_len: Lengths, output_len: Lengths, rounds: int
) -> Comparison:
    """Measure output tokens per second of a full batch, then the time by part and the memory of our side."""

    def afterwards(side: Side, report: Comparison) -> None:
        if side.spec.is_server:
            return
        report.memory = Memory(**side.ask("memory", [], []).result, peak_rss_bytes=report.ours.peak_rss_bytes)
        if report.ours.device != "cpu":
            return
        tell("one more round of ours, with clocks inside the step")
        work = draw_work(num_prompts, input_len, output_len, pair.vocab_size, "throughput/profile")
        answer = side.ask("profile", work.prompts, work.max_tokens)
        parts: dict[str, float] = answer.result["seconds"]
        report.step_shares = {part: seconds / sum(parts.values()) for part, seconds in parts.items()}
        usual = median(report.ours.seconds) / median(report.output_tokens)
        report.profile_slowdown = answer.seconds / sum(work.max_tokens) / usual

    sizes = (num_prompts, input_len, output_len)
    return _alternate(tell, pair, counted(num_prompts, "request"), "throughput", sizes, rounds, afterwards)


def compare_single(tell: Tell, pair: Pair, *, input_len: int, output_len: int, rounds: int) -> Comparison:
    """Measure tokens per second of a single request, its prompt's step included."""
    sizes = (1, Lengths(input_len, input_len), Lengths(output_len, output_len))
    return _alternate(tell, pair, "1 request", "single", sizes, rounds)


def compare_startup(tell: Tell, pair: Pair, *, runs: int) -> Comparison:
    """Measure seconds from starting a process to its first token. One run of each side is not counted.

    The prompt is text, so loading the tokenizer is part of it, unless the model has none.
    """
    has_tokenizer = not pair.ours.engine.get("skip_tokenizer_init")
    report = _new_report(
        pair,
        "seconds from a new process to the first token",
        f"a prompt of {'text' if has_tokenizer else 'token ids'}, one token out",
        higher_is_better=False,
    )
    with partial_results(report):
        for number in range(runs + 1):
            for spec, side_report in ((pair.ours, report.ours), (pair.theirs, report.theirs)):
                tell(f"{spec.name}, process {number + 1} of {runs + 1}")
                with Side(spec, pair.model, threads=pair.threads) as side:
                    side_report.describe(side.wait_ready())
                    answer = generate(side, Work(["Hello" if has_tokenizer else [5, 6, 7]], [1]))
                    seconds = side.age()
                side_report.peak_rss_bytes = max(side_report.peak_rss_bytes, answer.peak_rss_bytes)
                if number > 0:
                    side_report.figures.append(seconds)
                    side_report.seconds.append(seconds)
    report.finish()
    return report


def _new_report(pair: Pair, what: str, workload: str, *, higher_is_better: bool) -> Comparison:
    ours, theirs = SideReport(pair.ours.name), SideReport(pair.theirs.name)
    return Comparison(what, pair.name, workload, higher_is_better, pair.threads, ours, theirs)


def _alternate(
    tell: Tell,
    pair: Pair,
    requests: str,
    label: str,
    sizes: tuple[int, Lengths, Lengths],
    rounds: int,
    afterwards: Callable[[Side, Comparison], None] | None = None,
) -> Comparison:
    """Load both sides one after the other, warm both up, then run their rounds in turn.

    sizes: requests of a round, their prompts' lengths, their outputs' lengths.
    """
    workload = f"{requests}, {sizes[1]} tokens in, {sizes[2]} out"
    report = _new_report(pair, "output tokens/s", workload, higher_is_better=True)
    works = [draw_work(*sizes, pair.vocab_size, f"{label}/{number}") for number in range(rounds)]
    report.output_tokens = [sum(work.max_tokens) for work in works]
    with partial_results(report), ExitStack() as stack:
        turns = Turns(stack)
        sides: list[tuple[Side, SideReport]] = []
        for spec, side_report in ((pair.ours, report.ours), (pair.theirs, report.theirs)):
            tell(f"starting {spec.name}")
            sides.append((turns.start(spec, pair.model, side_report, threads=pair.threads), side_report))
        for number in range(WARM_UPS):
            for side, _ in sides:
                tell(f"warming up {side.spec.name}")
                turns.warm_up(side, draw_work(*sizes, pair.vocab_size, f"{label}/warm-up {number}"))
        began, busy_before = perf_counter(), machine_busy_seconds()
        for number, work in enumerate(works):
            for side, side_report in sides:
                tell(f"round {number + 1} of {rounds}: {side.spec.name}{_so_far(report)}")
                turns.round(side, side_report, work)
        own = sum(sum(side_report.cpu_seconds) for _, side_report in sides)
        others = machine_busy_seconds() - busy_before - own
        report.other_cores = max(0.0, others) / (perf_counter() - began)
        if afterwards is not None:
            ours = sides[0][0]
            with turns.only(ours):
                afterwards(ours, report)
    report.finish()
    return report


def _so_far(report: Comparison) -> str:
    if not report.theirs.figures:
        return ""
    return f" (so far {report.ours.median:,.0f} and {report.theirs.median:,.0f} {report.what})"
