"""Lab retry-budget: decide which failed requests are sent again, when, and how many in all.

The seam is the budget of the gateway (engine/gateway/limits.py, asked by `Gateway.send` after a failed attempt), and
the clients of the simulator (engine/sim/clients.py). Time is an argument, chance is a function that you are given.

    bucket of retries: starts full, holds at most `reserve`      attempt 1 -- fails -- wait -- attempt 2 -- fails ...
      + share   for each new request                                 window before attempt 2, 3, 4 ...:
      - 1       for each retry                                       base_s, 2 base_s, 4 base_s ..., at most cap_s

Sources: Google's Site Reliability Engineering, chapter 22 (retry budgets); Finagle's RetryBudget; Brooker, "Exponential
Backoff And Jitter" (full jitter: uniform over the whole window); RFC 9110, section 10.2.3 (Retry-After).
"""

from __future__ import annotations

from collections.abc import Callable
from email.utils import parsedate_to_datetime

RETRIED = (None, 429, 502, 503, 504)
"""Statuses after which a request may be sent again. None: the connection failed, or the attempt's time was over."""


class RetryPolicy:
    """Decides for all requests of one client or gateway."""

    def __init__(
        self,
        random: Callable[[], float],
        share: float = 0.1,
        reserve: float = 10.0,
        most: int = 2,
        base_s: float = 0.5,
        cap_s: float = 8.0,
    ) -> None:
        """random: returns a number from 0 up to 1, 1 excluded. share: retries that a new request earns.

        reserve: size of the bucket, in retries. most: retries of one request.

        Raises ValueError unless 0 <= share <= 1, reserve >= 0, most >= 0 and 0 < base_s <= cap_s.
        """
        if not (0 <= share <= 1 and reserve >= 0 and most >= 0 and 0 < base_s <= cap_s):
            raise ValueError("share is from 0 to 1, reserve and most at least 0, and 0 < base_s <= cap_s")
        self.random, self.share, self.reserve = random, share, reserve
        self.most, self.base_s, self.cap_s = most, base_s, cap_s
        self.level = float(reserve)

    def request(self) -> None:
        """A new request is sent for the first time: the bucket gains `share`, up to `reserve`. Retries earn nothing."""
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
        """Attempt number `attempt` (1 is the first) has failed: return the seconds to wait before the next, or None.

        now, deadline: Unix time in seconds. safe: the request may run twice. started: its client has got a byte of the
        answer. status, retry_after: status and header Retry-After of the failed attempt, None without one.

        The answer is None if the request is not safe or has started, if the status is not in RETRIED, if `most` retries
        were made, if the next attempt would start at the deadline or later, or if the bucket holds less than 1 retry. A
        level within 1e-9 of 1 counts as 1, so ten requests at a share of 0.1 earn a retry. None takes nothing from the
        bucket; a wait takes 1.

        wait = Retry-After in seconds (0 without one) + random() * window
        window = the smaller of cap_s and base_s * 2 ** (attempt - 1), for any number of attempts

        `random` is called once for a request that is safe and has not started, with a status in RETRIED and retries
        left, also if the deadline or the bucket then forbids the next attempt; otherwise it is not called.

        Retry-After is a number of ASCII digits ("7"), or a date ("Sun, 06 Nov 1994 08:49:37 GMT", the seconds from now
        until then, at least 0). Spaces around it do not matter. A header of any other form ("soon", "-1", "1.5") counts
        as none. `email.utils.parsedate_to_datetime` reads such dates and raises ValueError for others.
        """
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
