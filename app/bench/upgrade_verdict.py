"""Verdict of an upgrade check: each property against its limit, pass, fail or inconclusive.

A time fails only if the whole confidence interval of its ratio lies above the limit, and passes only if the whole
interval lies below; in between, the rounds do not decide. The interval is that of the median of the rounds' ratios
(`prep_common.intervals`): both sides of a round run one after the other, so load on the machine affects both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from app.bench.golden import Divergence
from prep_common.intervals import quantile_interval
from prep_common.text import counted

Verdict = Literal["pass", "fail", "inconclusive", "not measured"]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Limits:
    """Tolerated deterioration of the new version."""

    near_tie: float = 0.01
    """Nats between the two most likely tokens up to which a difference counts as rounding."""
    drift: float = 0.01
    """Mean absolute difference of the logprobs of equal tokens, in nats."""
    slower: float = 0.10
    """Share by which the median TTFT and ITL may grow."""
    hit_drop: float = 0.01
    """Fall of the prefix hit rate, a share of the prompt tokens."""
    more_memory: float = 0.05
    """Share by which the peak memory may grow."""
    more_preemptions: int = 0


@dataclass
class SideFigures:
    """Figures of one side. `ttft` and `itl`: the median of each round, in seconds."""

    name: str
    hit_rate: float | None = None
    """Prefix hit rate of the requests one after another; None if the server has no such metric."""
    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    preemptions: float | None = None
    failed: int = 0
    """Requests without a whole answer."""


@dataclass(frozen=True)
class Check:
    """One property of both sides."""

    name: str
    base: float | None
    new: float | None
    verdict: Verdict
    why: str


def checks_of(
    base: SideFigures,
    new: SideFigures,
    divergences: Sequence[Divergence],
    unstable: Sequence[int],
    num_requests: int,
    limits: Limits,
    drift: float | None = None,
) -> list[Check]:
    """Return the checks of all properties.

    unstable: requests that the base answered differently when it was asked again; their divergences prove nothing.
    """
    return [
        _failures(base, new),
        _tokens(divergences, unstable, num_requests, limits),
        _drift(drift, limits),
        _hit_rate(base, new, limits),
        _time("TTFT", base.ttft, new.ttft, limits),
        _time("ITL", base.itl, new.itl, limits),
        _memory(base, new, limits),
        _preemptions(base, new, limits),
    ]


def overall(checks: Sequence[Check]) -> Verdict:
    """Return the worst verdict: one failure fails; without one, anything undecided is inconclusive."""
    verdicts = {check.verdict for check in checks}
    return "fail" if "fail" in verdicts else "inconclusive" if "inconclusive" in verdicts else "pass"


def _failures(base: SideFigures, new: SideFigures) -> Check:
    verdict: Verdict = "fail" if new.failed > base.failed else "inconclusive" if base.failed else "pass"
    why = f"{counted(new.failed, 'request')} without a whole answer, the base {base.failed}"
    return Check("failed requests", base.failed, new.failed, verdict, why)


def _tokens(
    divergences: Sequence[Divergence], unstable: Sequence[int], num_requests: int, limits: Limits
) -> Check:
    proven = [divergence for divergence in divergences if divergence.request not in unstable]
    broken = [divergence for divergence in proven if not divergence.is_near_tie(limits.near_tie)]
    same = num_requests - len(divergences)
    why = f"{same} of {counted(num_requests, 'request')} have equal tokens"
    if near := len(proven) - len(broken):
        why += f"; {near} differ at a near-tie of at most {limits.near_tie:g} nats"
    if unstable:
        why += f"; the base answered {counted(len(unstable), 'request')} differently when asked again"
    if broken:
        first = broken[0]
        margin = "unknown" if first.margin is None else f"{first.margin:.3f} nats"
        why += (
            f"; request {first.request} differs at token {first.position} "
            f"({first.base} became {first.new}, margin {margin})"
        )
    verdict: Verdict = "fail" if broken else "inconclusive" if unstable else "pass"
    return Check("equal answers", num_requests, same, verdict, why)


def _drift(drift: float | None, limits: Limits) -> Check:
    name = "drift of logprobs"
    if drift is None:
        return Check(name, None, None, "not measured", "a side gives no logprobs, or no tokens are equal")
    why = f"equal tokens differ by {drift:.2g} nats on average (limit {limits.drift:g})"
    return Check(name, 0.0, drift, "fail" if drift > limits.drift else "pass", why)


def _hit_rate(base: SideFigures, new: SideFigures, limits: Limits) -> Check:
    name = "prefix hit rate"
    if base.hit_rate is None or new.hit_rate is None:
        return Check(name, base.hit_rate, new.hit_rate, "not measured", "a side does not count hits")
    drop = base.hit_rate - new.hit_rate
    why = f"{new.hit_rate:.1%}, the base {base.hit_rate:.1%}; it may fall by {limits.hit_drop:.1%}"
    return Check(name, base.hit_rate, new.hit_rate, "fail" if drop > limits.hit_drop else "pass", why)


def _time(name: str, base: Sequence[float], new: Sequence[float], limits: Limits) -> Check:
    name = f"median {name} (s)"
    if not base or not new:
        return Check(name, None, None, "not measured", "there were no timed rounds on both sides")
    ratios = [two / one for one, two in zip(base, new, strict=False)]
    low, high = quantile_interval(ratios, 0.5, CONFIDENCE)
    figures = f"{median(ratios):.2f} x the base in {counted(len(ratios), 'round')}"
    limit = f"limit {1 + limits.slower:.2f}"
    if math.isinf(low):
        why = f"{figures}; {CONFIDENCE:.0%} confidence needs at least 6 rounds ({limit})"
        return Check(name, median(base), median(new), "inconclusive", why)
    verdict: Verdict = (
        "fail" if low > 1 + limits.slower else "pass" if high <= 1 + limits.slower else "inconclusive"
    )
    why = f"{figures}, {CONFIDENCE:.0%} interval {low:.2f} to {high:.2f} ({limit})"
    return Check(name, median(base), median(new), verdict, why)


def _memory(base: SideFigures, new: SideFigures, limits: Limits) -> Check:
    name = "peak memory (bytes)"
    if base.peak_bytes is None or new.peak_bytes is None:
        return Check(name, base.peak_bytes, new.peak_bytes, "not measured", "a side was not started here")
    ratio = new.peak_bytes / base.peak_bytes
    why = (
        f"{new.peak_bytes / 1e6:,.0f} MB, the base {base.peak_bytes / 1e6:,.0f} MB: {ratio:.2f} x "
        f"(limit {1 + limits.more_memory:.2f})"
    )
    verdict: Verdict = "fail" if ratio > 1 + limits.more_memory else "pass"
    return Check(name, base.peak_bytes, new.peak_bytes, verdict, why)


def _preemptions(base: SideFigures, new: SideFigures, limits: Limits) -> Check:
    name = "preemptions"
    if base.preemptions is None or new.preemptions is None:
        return Check(name, base.preemptions, new.preemptions, "not measured", "a side does not count them")
    more = new.preemptions - base.preemptions
    why = (
        f"{new.preemptions:.0f}, the base {base.preemptions:.0f}; {limits.more_preemptions} more are allowed"
    )
    verdict: Verdict = "fail" if more > limits.more_preemptions else "pass"
    return Check(name, base.preemptions, new.preemptions, verdict, why)
