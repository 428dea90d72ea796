"""Solution of lab retry-budget. The docstrings of the stub state the contract."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import parsedate_to_datetime

RETRIED = (None, 429, 502, 503, 504)


class RetryPolicy:
    def __init__(
        self,
        random: Callable[[], float],
        share: float = 0.1,
        reserve: float = 10.0,
        most: int = 2,
        base_s: float = 0.5,
        cap_s: float = 8.0,
    ) -> None:
        if not (0 <= share <= 1 and reserve >= 0 and most >= 0 and 0 < base_s <= cap_s):
            raise ValueError("share is from 0 to 1, reserve and most at least 0, and 0 < base_s <= cap_s")
        self.random, self.share, self.reserve = random, share, reserve
        self.most, self.base_s, self.cap_s = most, base_s, cap_s
        self.level = float(reserve)

    def request(self) -> None:
        self.level = min(self.reserve, self.level + self.share)

    def retry(
        self,
        now: float,
        deadline: float,
        attempt: int,
        safe: bool,
        started: bool,
        status: int | None,
        retry_after: str | None = None,
    ) -> float | None:
        may_repeat = safe and not started and status in RETRIED
        if not may_repeat or attempt > self.most:
            return None
        window = min(self.cap_s, self.base_s * 2.0 ** min(attempt - 1, 1000))
        wait = seconds_of(retry_after, now) + self.random() * window
        if now + wait >= deadline or self.level < 1 - 1e-9:
            return None
        self.level -= 1
        return wait


def seconds_of(retry_after: str | None, now: float) -> float:
    """Return the seconds that a header Retry-After asks for; 0 for none and for one that cannot be read."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except ValueError:
        return 0.0
