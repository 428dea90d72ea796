"""A user's place in the split of traffic between two versions, and whether the canary is worse than the others.

    requests of the canary   50      100      200      400 ...        looks at 50, then at each doubling
    alpha of the look        a/2     a/6      a/12     a/20           a/(k(k+1)): all looks together at most a

Looking again and again at data with one fixed level would alarm on a healthy canary sooner or later. Half of a look's
alpha is for the error rate (Newcombe's interval), half for a latency quantile (order statistics):
`prep_common.intervals`.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

from engine.gateway.config import WatchSettings
from prep_common.intervals import newcombe, quantile_interval, requests_needed

KEPT = 10_000
"""Latest latencies of a version in memory."""
LEAST_RATE = 0.001
"""Error rate assumed for the requests needed while the other versions have fewer."""


def share_of(user: str) -> float:
    """Return a user's place in [0, 1): the same in every gateway, uniform over users with similar names."""
    digest = hashlib.blake2b(user.encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


@dataclass
class Outcomes:
    """Ended requests of one side."""

    total: int = 0
    failed: int = 0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    """Seconds to the first chunk of a stream or to a whole answer, of the requests that did not fail."""

    def add(self, failed: bool, latency_s: float | None) -> None:
        self.total += 1
        self.failed += failed
        if not failed and latency_s is not None:
            self.latencies.append(latency_s)


@dataclass(frozen=True)
class Look:
    """Comparison of both sides at one moment."""

    number: int
    alpha: float
    base_failed: int
    base_total: int
    canary_failed: int
    canary_total: int
    more_errors_at_least: float
    """Lower bound of the difference of the error rates."""
    base_latency_at_most: float
    canary_latency_at_least: float
    """Bounds of the latency quantile in seconds; infinite without enough requests."""
    reason: str
    """Reason to call the canary worse; empty without one."""
    requests_needed: int
    """Requests of each side that find the difference worth finding with the power of the settings."""

    @property
    def is_worse(self) -> bool:
        return bool(self.reason)

    def sentence(self) -> str:
        """Return the look as one sentence."""
        counts = (
            f"canary {self.canary_failed} of {self.canary_total:,} failed, "
            f"others {self.base_failed} of {self.base_total:,}"
        )
        reason = self.reason or "nothing shows that the canary is worse"
        enough = min(self.canary_total, self.base_total) >= self.requests_needed
        needs = "enough" if enough else "not yet enough"
        return (
            f"look {self.number} at alpha {self.alpha:.4f}: {reason}; {counts}; {needs} "
            f"({self.requests_needed:,} of each needed for the difference worth finding)"
        )

    def as_json(self) -> dict[str, Any]:
        values = {name: _finite(value) for name, value in asdict(self).items()}
        return values | {"is_worse": self.is_worse, "sentence": self.sentence()}


class CanaryWatch:
    """Outcomes of a canary and of the other versions since the start or the last change of the share."""

    def __init__(self, settings: WatchSettings) -> None:
        self.settings = settings
        self.last: Look | None = None
        self.restart()

    def restart(self) -> None:
        """Forget the outcomes; the next look is the first one."""
        self.base, self.canary = Outcomes(), Outcomes()
        self._num_looks = 0

    def add(self, is_canary: bool, failed: bool, latency_s: float | None) -> Look | None:
        """Count an ended request; return a look if one is due now."""
        (self.canary if is_canary else self.base).add(failed, latency_s)
        due = self.settings.first_look * 2**self._num_looks
        if self.canary.total < due or self.base.total < due:
            return None
        self._num_looks += 1
        self.last = look(self._num_looks, self.base, self.canary, self.settings)
        return self.last


def look(number: int, base: Outcomes, canary: Outcomes, settings: WatchSettings) -> Look:
    """Compare both sides; number: of this look, from 1."""
    alpha = settings.alpha / (number * (number + 1))
    errors = newcombe((base.failed, base.total), (canary.failed, canary.total), 1 - alpha)[0]
    # Each side's bound is wrong with probability alpha/4 at most, so both together with alpha/2.
    base_high = quantile_interval(base.latencies, settings.quantile, 1 - alpha / 2)[1]
    canary_low = quantile_interval(canary.latencies, settings.quantile, 1 - alpha / 2)[0]
    reasons = []
    if errors > settings.more_errors:
        reasons.append(
            f"its error rate is higher by at least {errors:.2%} (allowed {settings.more_errors:.2%})"
        )
    if canary_low > base_high * (1 + settings.slower):
        name = f"p{settings.quantile * 100:g} latency"
        reasons.append(
            f"its {name} is at least {canary_low:.3f} s, of the others at most {base_high:.3f} s "
            f"(allowed {settings.slower:.0%} more)"
        )
    rate = max(LEAST_RATE, base.failed / max(1, base.total))
    allowed, detectable = (min(1.0, rate + more) for more in (settings.more_errors, settings.detect))
    needed = requests_needed(allowed, detectable, alpha / 2, settings.power) if allowed < detectable else 0
    return Look(
        number, alpha, base.failed, base.total, canary.failed, canary.total, errors, base_high, canary_low,
        " and ".join(reasons), needed,
    )  # fmt: skip


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
