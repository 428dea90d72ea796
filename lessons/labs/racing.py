"""The result of a lab's race: rows of figures, and one ratio of the learner's part to ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from textwrap import shorten

from engine.sim.recorder import RequestRecord
from engine.sim.report import RunReport
from engine.sim.workload import SimRequest
from lessons.course.checking import MEGABYTES, Failed
from lessons.labs.recording import record_both
from prep_common.sandbox import Guest
from quizzes.autopsies.programs import LIMITS

SAME_TOKENS = "every contestant gave each finished request all the tokens that it asked for"
LONGEST = 160
"""Characters of a decision in a sentence about the first difference."""
CALL_SECONDS = 10.0
"""Limit of one call in a race: one call may serve a whole workload."""
_FIGURE = re.compile(r"[\d,]+(?:\.\d+)?")


@dataclass(frozen=True)
class Race:
    columns: tuple[str, ...]
    """The workload, the contestant, then figures."""
    rows: Sequence[tuple[str, ...]]
    ratio: float
    """The learner's figure over ours, from one run."""
    says: str
    """Meaning of the ratio, and whether more or less is better."""
    differs: str = ""
    """The first decision that differs from ours, one sentence; empty if none does."""
    chart: int = 2
    """Column that the chart draws."""
    traces: tuple[Path, Path, int] | None = None
    """The learner's run and ours of the workload with the first decision that differs, and the step to look at."""
    more_is_better: bool = False
    """Whether a larger ratio is better."""
    tokens: str = ""
    """Sentence about the comparison of the tokens of all contestants."""

    def charts(self) -> list[tuple[str, list[tuple[str, float, str]]]]:
        """Return for each workload its contestants: name, figure, and the figure as text."""
        found: dict[str, list[tuple[str, float, str]]] = {}
        for row in self.rows:
            figure = _FIGURE.match(row[self.chart])
            value = float(figure[0].replace(",", "")) if figure else 0.0
            found.setdefault(row[0], []).append((row[1], value, row[self.chart]))
        return list(found.items())


def first_difference(track: str, what: str, yours: Sequence[str], ours: Sequence[str]) -> str:
    """Return a sentence about the first place where two lists of decisions differ, or an empty string.

    what: name of a decision, such as "admission". Later ones differ because the states do.
    """
    for place, (your, our) in enumerate(zip_longest(yours, ours, fillvalue="none"), 1):
        if your != our:
            mine, right = (shorten(each, LONGEST, placeholder=" ...") for each in (your, our))
            if mine == right:
                mine, right = (f"... {each[_common(your, our) :][:LONGEST]}" for each in (your, our))
            return f"{track}, {what} {place}: yours {mine}, ours {right}"
    return ""


def _common(one: str, other: str) -> int:
    """Return the number of characters that both texts begin with."""
    return next(at for at, pair in enumerate(zip_longest(one, other)) if pair[0] != pair[1])


class Differences:
    """The first decision that differs over all workloads of a race, and a recording of both runs."""

    def __init__(self, lab: str, what: str) -> None:
        """what: name of a decision, such as "admission"."""
        self.lab, self.what = lab, what
        self.first = ""
        self.traces: tuple[Path, Path, int] | None = None

    def look(
        self,
        track: str,
        told: Mapping[str, Sequence[str]],
        guests: tuple[Guest, Guest],
        record: Callable[[Guest, Path], object] | None = None,
    ) -> None:
        """Compare the decisions of a workload; at the first that differs, record both runs once more.

        told: decisions of "yours" and "ours". guests: the two files. record: serves the workload with the part in a
        guest, and records the engine.
        """
        if self.first:
            return
        self.first = first_difference(track, self.what, told["yours"], told["ours"])
        if self.first and record is not None:
            mine, right = (partial(record, guest) for guest in guests)
            self.traces = record_both(self.lab, mine, right)

    def race(
        self,
        columns: tuple[str, ...],
        rows: Sequence[tuple[str, ...]],
        ratio: float,
        says: str,
        chart: str,
        more_is_better: bool = False,
        tokens: str = "",
    ) -> Race:
        """Return the result. chart: name of the column that the chart draws. tokens: what was compared, if not all."""
        return Race(
            columns,
            rows,
            ratio,
            says,
            self.first,
            columns.index(chart),
            self.traces,
            more_is_better,
            tokens or SAME_TOKENS,
        )


def all_served(who: str, finished: Iterable[RequestRecord]) -> None:
    """Raise Failed unless each request has as many tokens as it asked for: in virtual time, a token has no content."""
    for record in finished:
        if record.num_tokens != record.request.output_len:
            said = f"{record.num_tokens} of its {record.request.output_len} tokens"
            raise Failed(f"{who}: request {record.request.index} got {said}")


def all_generated(who: str, report: RunReport, requests: Iterable[SimRequest]) -> None:
    """Raise Failed unless a fleet generated all tokens that the requests ask for."""
    wanted = sum(each.output_len for each in requests)
    if report.output_tokens != wanted:
        raise Failed(
            f"{who}: {report.output_tokens:,} tokens were generated; the requests ask for {wanted:,}"
        )


def racer(source: str, seconds: float = 60.0) -> Guest:
    """Return a process that holds one contestant's file, for a whole race."""
    limits = replace(LIMITS, seconds=seconds, call_seconds=CALL_SECONDS, megabytes=MEGABYTES)
    return Guest({"learner.py": source}, limits=limits)
