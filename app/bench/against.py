"""The same work through two engines, in turn: `prep bench ... --against`.

Each engine runs in a process of its own, with the same number of threads, the same settings and the same requests;
while one computes, the other sleeps. Rounds alternate, so that whatever else the machine does falls on both, and
every round has new random prompts, so that neither finds anything cached.

    round      1               2               3
    ours       ####            ####            ####
    the other      #########       #########       #########

The result is the ratio of the medians. Output lengths are fixed (ignore_eos), and both must return exactly them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import psutil

from app.bench.side import Answer, Side, SideSpec
from app.bench.timing import Tell
from app.bench.workload import Lengths, Work, draw_work


@dataclass
class SideReport:
    """One engine's rounds. A figure is one number per round."""

    name: str
    engine: str = ""
    torch: str = ""
    threads: int = 0
    load_seconds: float = 0.0
    figures: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    """Of all threads: near threads * seconds if the engine had the machine to itself and used all of it."""
    idle_cpu_share: float = 0.0
    """Cores used while the other side computed; an idle engine should use none."""
    peak_rss_bytes: int = 0

    @property
    def median(self) -> float:
        return median(self.figures)


@dataclass
class Memory:
    """Of our side, in bytes, over the whole run."""

    weights_bytes: int
    kv_bytes: int
    peak_rss_bytes: int

    @property
    def overhead_bytes(self) -> int:
        return self.peak_rss_bytes - self.weights_bytes - self.kv_bytes


@dataclass
class Comparison:
    """Two engines on one workload. `ratio` says how many times better ours is."""

    what: str
    model: str
    workload: str
    higher_is_better: bool
    threads: int
    ours: SideReport
    theirs: SideReport
    output_tokens: list[int] = field(default_factory=list)
    """Of each round, the same on both sides."""
    ratio: float = 0.0
    """Of the medians."""
    round_ratios: list[float] = field(default_factory=list)
    memory: Memory | None = None
    step_shares: dict[str, float] = field(default_factory=dict)
    """Of our steps, from one more round with clocks inside; see `step_profile`."""
    profile_slowdown: float = 0.0
    """Step time and all else of the profiled round over the median of the timed ones."""
    interrupted: bool = False

    def finish(self) -> None:
        """Ratios, from the rounds that both sides have."""
        rounds = min(len(self.ours.figures), len(self.theirs.figures))
        if not rounds:
            return
        del self.ours.figures[rounds:], self.theirs.figures[rounds:]
        self.ratio = self._times_better(self.ours.median, self.theirs.median)
        self.round_ratios = [
            self._times_better(a, b) for a, b in zip(self.ours.figures, self.theirs.figures, strict=True)
        ]

    def _times_better(self, ours: float, theirs: float) -> float:
        return ours / theirs if self.higher_is_better else theirs / ours


def default_threads() -> int:
    """OMP_NUM_THREADS if set, or the cores this process may use: what torch takes by itself."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked):
        return int(asked)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, psutil.cpu_count(logical=False) or allowed)


def compare_throughput(
    tell: Tell,
    model: str,
    ours: SideSpec,
    theirs: SideSpec,
    *,
    name: str,
    vocab_size: int,
    num_prompts: int,
    input_len: Lengths,
    output_len: Lengths,
    rounds: int,
    threads: int,
) -> Comparison:
    """Output tokens per second of a full batch, then where our steps spend their time and what memory we took."""
    report = Comparison(
        what="output tokens/s",
        model=name,
        workload=f"{num_prompts} requests, {input_len} tokens in, {output_len} out",
        higher_is_better=True,
        threads=threads,
        ours=SideReport(ours.name),
        theirs=SideReport(theirs.name),
    )

    def requests(round_name: str) -> Work:
        return draw_work(num_prompts, input_len, output_len, vocab_size, f"throughput/{round_name}")

    def one_round(side: Side, round_name: str) -> tuple[float, list[Answer]]:
        work = requests(round_name)
        answer = _generate(side, work)
        return sum(work.max_tokens) / answer.seconds, [answer]

    def afterwards(side: Side) -> None:
        tell("one more round of ours, with clocks inside the step")
        work = requests("profile")
        answer = side.ask("profile", work.prompts, work.max_tokens)
        parts: dict[str, float] = answer.result["seconds"]
        report.step_shares = {part: seconds / sum(parts.values()) for part, seconds in parts.items()}
        usual = median(report.ours.seconds) / median(report.output_tokens)
        report.profile_slowdown = answer.seconds / sum(work.max_tokens) / usual
        must_have = side.ask("memory", [], []).result
        report.memory = Memory(**must_have, peak_rss_bytes=report.ours.peak_rss_bytes)

    report.output_tokens = [sum(requests(str(number)).max_tokens) for number in range(rounds)]
    _alternate(tell, report, model, ours, theirs, rounds, one_round, afterwards)
    return report


def compare_single(
    tell: Tell,
    model: str,
    ours: SideSpec,
    theirs: SideSpec,
    *,
    name: str,
    vocab_size: int,
    input_len: int,
    output_len: int,
    rounds: int,
    threads: int,
) -> Comparison:
    """Tokens per second of one request while it decodes.

    A round is two requests: one that ends with its first token, and one of full length. The difference of their
    times is that of the tokens after the first.
    """
    report = Comparison(
        what="tokens/s of one request after its first token",
        model=name,
        workload=f"1 request at a time, {input_len} tokens in, {output_len} out",
        higher_is_better=True,
        threads=threads,
        ours=SideReport(ours.name),
        theirs=SideReport(theirs.name),
    )
    lengths = Lengths(input_len, input_len)

    def one_round(side: Side, round_name: str) -> tuple[float, list[Answer]]:
        answers = [
            _generate(side, draw_work(1, lengths, Lengths(count, count), vocab_size, f"{count}/{round_name}"))
            for count in (1, output_len)
        ]
        first, whole = answers
        return (output_len - 1) / (whole.seconds - first.seconds), answers

    report.output_tokens = [1 + output_len] * rounds
    _alternate(tell, report, model, ours, theirs, rounds, one_round)
    return report


def compare_startup(
    tell: Tell, model: str, ours: SideSpec, theirs: SideSpec, *, name: str, runs: int, threads: int
) -> Comparison:
    """Seconds from starting a process to its first token, tokenizer included. One run of each is not counted."""
    report = Comparison(
        what="seconds from a new process to the first token",
        model=name,
        workload="one text prompt, one token out",
        higher_is_better=False,
        threads=threads,
        ours=SideReport(ours.name),
        theirs=SideReport(theirs.name),
    )
    try:
        for number in range(runs + 1):
            for spec, side_report in ((ours, report.ours), (theirs, report.theirs)):
                tell(f"{spec.name}, process {number + 1} of {runs + 1}")
                with Side(spec, model, threads=threads) as side:
                    _describe(side_report, side.wait_ready())
                    answer = _generate(side, Work(["Hello"], [1]))
                    seconds = side.age()
                side_report.peak_rss_bytes = max(side_report.peak_rss_bytes, answer.peak_rss_bytes)
                if number > 0:
                    side_report.figures.append(seconds)
                    side_report.seconds.append(seconds)
                    report.output_tokens.append(1)
    except KeyboardInterrupt:
        report.interrupted = True
    report.finish()
    return report


def _alternate(
    tell: Tell,
    report: Comparison,
    model: str,
    ours: SideSpec,
    theirs: SideSpec,
    rounds: int,
    one_round: Callable[[Side, str], tuple[float, Sequence[Answer]]],
    afterwards: Callable[[Side], None] | None = None,
) -> None:
    """Load both sides one after the other, warm both up, then give them their rounds in turn."""
    try:
        with ExitStack() as stack:
            sides: list[tuple[Side, SideReport]] = []
            for spec, side_report in ((ours, report.ours), (theirs, report.theirs)):
                tell(f"starting {spec.name}")
                side = stack.enter_context(Side(spec, model, threads=report.threads))
                _describe(side_report, side.wait_ready())
                sides.append((side, side_report))
            for side, _ in sides:
                tell(f"warming up {side.spec.name}")
                one_round(side, "warm-up")
            for number in range(rounds):
                for side, side_report in sides:
                    tell(f"round {number + 1} of {rounds}: {side.spec.name}{_so_far(report)}")
                    figure, answers = one_round(side, str(number))
                    _record(side_report, figure, answers)
            if afterwards is not None:
                afterwards(sides[0][0])
    except KeyboardInterrupt:
        report.interrupted = True
    report.finish()


def _generate(side: Side, work: Work) -> Answer:
    """Run one round's requests and insist on the lengths that were asked for."""
    answer = side.ask("generate", work.prompts, work.max_tokens)
    if answer.result != work.max_tokens:
        raise RuntimeError(
            f"{side.spec.name} returned {sum(answer.result)} tokens where {sum(work.max_tokens)} were asked for: "
            "the comparison would be void"
        )
    return answer


def _describe(report: SideReport, said: dict[str, Any]) -> None:
    report.engine, report.torch, report.threads = said["engine"], said["torch"], said["threads"]
    report.load_seconds = said["load_seconds"]


def _record(report: SideReport, figure: float, answers: Sequence[Answer]) -> None:
    report.figures.append(figure)
    report.seconds.append(sum(answer.seconds for answer in answers))
    report.cpu_seconds.append(sum(answer.cpu_seconds for answer in answers))
    waited = answers[0]
    if waited.idle_seconds > 0:
        report.idle_cpu_share = max(report.idle_cpu_share, waited.idle_cpu_seconds / waited.idle_seconds)
    report.peak_rss_bytes = max(report.peak_rss_bytes, *(answer.peak_rss_bytes for answer in answers))


def _so_far(report: Comparison) -> str:
    if not report.theirs.figures:
        return ""
    return f" (so far {report.ours.median:,.0f} and {report.theirs.median:,.0f} {report.what})"
