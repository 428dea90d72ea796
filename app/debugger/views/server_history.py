"""Looks of a browser tab at a server's /metrics, one per second, and the figures of a window at each look."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.server.scrape import Activity, Scrape, ScrapeError, is_restart
from prep_common.text import duration

KEPT_S = 300.0
SLACK_S = 1.5
"""A window may be this much longer, because looks do not come at exact seconds."""
GAP_S = 3.0
"""Looks that are further apart leave a gap in the charts."""
LEAST_SPAN_S = 60.0
COLUMN_S = 1.0
"""A look shows the second before it."""


@dataclass
class Look:
    """A scrape, or None if the server did not answer."""

    when: float
    scrape: Scrape | None
    life: int
    """Increases when the server was restarted."""
    activity: Activity | None = None
    """The figures of the window that ends here; None at the first look of a window."""


class Mark(NamedTuple):
    when: float
    kind: str
    text: str


class History:
    """The looks of the last minutes. A window never spans a restart."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self.looks: deque[Look] = deque()
        self.marks: list[Mark] = []
        self.error: ScrapeError | None = None
        """Reason why the last look failed."""
        self.last: Scrape | None = None
        self.now = 0.0

    def add(self, scrape: Scrape) -> None:
        """Keep a scrape, and mark whether the server came back or was restarted."""
        life = self.looks[-1].life if self.looks else 0
        restarted = self.last is not None and is_restart(self.last, scrape)
        if restarted or (self.error is not None and self.last is not None):
            self.marks.append(Mark(scrape.when, "finish", "restarted" if restarted else "answers again"))
        self.last, self.error = scrape, None
        self._keep(Look(scrape.when, scrape, life + restarted))

    def fail(self, error: ScrapeError, when: float) -> None:
        """Keep a failed look."""
        if self.error is None and self.last is not None:
            self.marks.append(Mark(when, "abort", "went away"))
        self.error = error
        self._keep(Look(when, None, self.looks[-1].life if self.looks else 0))

    def set_window(self, window_s: float) -> None:
        """Compute the figures of all looks over another window."""
        if window_s != self.window_s:
            self.window_s = window_s
            for index in range(len(self.looks)):
                self._compute(index)

    @property
    def activity(self) -> Activity | None:
        """The newest figures; None if the last look failed or was the first."""
        return self.looks[-1].activity if self.looks else None

    def _keep(self, look: Look) -> None:
        self.now = look.when
        self.looks.append(look)
        self._compute(len(self.looks) - 1)
        while self.looks[0].when < self.now - KEPT_S:
            self.looks.popleft()
        self.marks = [mark for mark in self.marks if mark.when >= self.now - KEPT_S]

    def _compute(self, index: int) -> None:
        end = self.looks[index]
        end.activity = None
        if end.scrape is None:
            return
        first = None
        for at in range(index - 1, -1, -1):
            look = self.looks[at]
            if look.life != end.life or look.when < end.when - self.window_s - SLACK_S:
                break
            first = look.scrape or first
        if first is not None:
            end.activity = Activity.between(first, end.scrape)


class Line(NamedTuple):
    """A chart: figures over time, from `low` to `high`; nan without one."""

    title: str
    unit: str
    low: list[float]
    high: list[float]
    limit: float | None
    now: str


def times_of(history: History) -> tuple[list[float], list[Activity | None]]:
    """Return the columns of all charts: seconds before the last look (negative), and the figures from there on."""
    looks = history.looks
    span = LEAST_SPAN_S if not looks else max(LEAST_SPAN_S, history.now - looks[0].when)
    times: list[float] = [-span]
    activities: list[Activity | None] = [None]
    for look in looks:
        at = look.when - history.now - COLUMN_S
        if len(times) > 1 and at - times[-1] > GAP_S:
            times.append(times[-1] + COLUMN_S)
            activities.append(None)
        if at >= times[-1]:
            times.append(at)
            activities.append(look.activity)
    return times, activities


def lines_of(history: History, activities: Sequence[Activity | None]) -> list[Line]:
    """Return the charts over these figures."""
    now = history.activity

    def line(
        title: str, unit: str, of: Callable[[Activity], float | None], limit: float | None = None
    ) -> Line:
        values = [_number(None if activity is None else of(activity)) for activity in activities]
        current = None if now is None else of(now)
        return Line(
            title,
            unit,
            values,
            values,
            limit,
            "–" if current is None else f"{current:,.0f}" if current >= 100 else f"{current:.3g}",
        )

    def times(title: str, name: str) -> Line:
        def of(activity: Activity | None, percent: int) -> float | None:
            return None if activity is None else getattr(activity, f"{name}_p{percent}")

        p50, p99 = (of(now, percent) for percent in (50, 99))
        text = "–" if p50 is None or p99 is None else f"{duration(p50)} to {duration(p99)}"
        low, high = (
            [_number(of(activity, percent)) * 1000 for activity in activities] for percent in (50, 99)
        )
        return Line(title, "median to p99; axis: ms", low, high, None, text)

    return [
        line("Running", "requests", lambda a: a.running),
        line("Waiting", "requests", lambda a: a.waiting),
        line("KV cache", "% used", lambda a: a.kv_cache_usage * 100, 100.0),
        line(
            "Prefix hits", "% of prompt tokens",
            lambda a: None if a.prefix_hit_rate is None else a.prefix_hit_rate * 100, 100.0,
        ),
        line("Output", "tokens/s", lambda a: a.output_tokens_per_s),
        line("Prompts", "tokens/s", lambda a: a.prompt_tokens_per_s),
        times("First token (TTFT)", "ttft"),
        times("Next token (ITL)", "itl"),
        times("Whole request (E2E)", "e2e"),
        line("Ended", "requests/s", lambda a: a.requests_per_s),
        line("Preempted", "per second", lambda a: a.preemptions_per_s),
        line("Failed or rejected", "per second", lambda a: a.errors_per_s + a.rejections_per_s),
    ]  # fmt: skip


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
