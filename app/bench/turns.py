"""Engines that take turns on the same work, each in a process of its own.

    round      1               2               3
    prep       ####            ####            ####
    another        #########       #########       #########

While one computes, the others are stopped, and rounds alternate, so that other load on the machine affects all of them.
Every round has new random prompts, so that no engine finds anything cached. Output lengths are fixed (ignore_eos), and
every engine must return exactly them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from app.bench.side import Answer, Side, SideSpec
from app.bench.workload import Work
from prep_common.text import counted


@dataclass
class SideReport:
    """One engine's rounds. A figure is one number per round."""

    name: str
    engine: str = ""
    torch: str = ""
    device: str = ""
    threads: int = 0
    load_seconds: float = 0.0
    figures: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    """Processor time of all threads: near threads * seconds if the engine used the whole machine alone."""
    itl_p99_seconds: list[float] = field(default_factory=list)
    """99th percentile of the times between two chunks of a stream; servers only."""
    idle_seconds: float = 0.0
    idle_cpu_seconds: float = 0.0
    """Processor time used while the other side computed; an idle engine should use none."""
    peak_rss_bytes: int = 0

    @property
    def median(self) -> float:
        return median(self.figures)

    def describe(self, said: dict[str, Any]) -> None:
        """Take over what a side says of itself once it is loaded."""
        for name in ("engine", "torch", "device", "threads", "load_seconds"):
            setattr(self, name, said[name])

    def add(self, figure: float, answer: Answer) -> None:
        """Add a round."""
        self.figures.append(figure)
        self.seconds.append(answer.seconds)
        self.cpu_seconds.append(answer.cpu_seconds)
        self.idle_seconds += answer.idle_seconds
        self.idle_cpu_seconds += answer.idle_cpu_seconds
        self.peak_rss_bytes = max(self.peak_rss_bytes, answer.peak_rss_bytes)


class Turns:
    """Running sides, of which one computes at a time. Closing it ends them all."""

    def __init__(self, stack: ExitStack) -> None:
        """stack: ends the sides that are left."""
        self._stack = stack
        self._sides: list[Side] = []

    def start(self, spec: SideSpec, model: str, report: SideReport, *, threads: int) -> Side:
        """Start an engine on a model's folder and wait until it is loaded. Raises SideDied."""
        with self.only(None):
            side: Side = self._stack.enter_context(Side(spec, model, threads=threads))
            report.describe(side.wait_ready())
        self._sides.append(side)
        return side

    def remove(self, side: Side) -> None:
        """End a side that takes no more turns."""
        self._sides.remove(side)
        side.kill()

    @contextmanager
    def only(self, side: Side | None) -> Iterator[None]:
        """Stop all other sides inside the block."""
        with ExitStack() as stopped:
            for other in self._sides:
                if other is not side:
                    stopped.enter_context(other.stopped())
            yield

    def warm_up(self, side: Side, work: Work) -> None:
        """Run work that does not count."""
        with self.only(side):
            generate(side, work)

    def round(self, side: Side, report: SideReport, work: Work) -> None:
        """Run one counted round of one side; its figure is output tokens per second."""
        with self.only(side):
            answer = generate(side, work)
            if side.spec.is_server:
                report.itl_p99_seconds.append(side.ask("itl_p99", [], []).result["seconds"])
        report.add(sum(work.max_tokens) / answer.seconds, answer)


def generate(side: Side, work: Work) -> Answer:
    """Run one round's requests. Raises RuntimeError unless the outputs have the requested lengths."""
    answer = side.ask("generate", work.prompts, work.max_tokens)
    if answer.result != work.max_tokens:
        raise RuntimeError(
            f"{side.spec.name} returned {counted(sum(answer.result), 'token')} where {sum(work.max_tokens)} "
            "were asked for: the comparison would be void"
        )
    return answer
