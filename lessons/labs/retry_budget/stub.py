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
        raise NotImplementedError("write RetryPolicy")

    def request(self) -> None:
        """A new request is sent for the first time: the bucket gains `share`, up to `reserve`. Retries earn nothing."""
        raise NotImplementedError("write request")

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
        raise NotImplementedError("write retry")
