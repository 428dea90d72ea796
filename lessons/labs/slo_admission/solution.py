"""Lab slo-admission: refuse a request at arrival if its first token would come too late.

The seam lies before `Scheduler.add` of engine/core/scheduler.py: each request comes with a limit, the seconds that its
client waits for the first token. A late answer is worth nothing, but costs as much as one in time, and delays those
behind it. So forecast the first token at arrival, and refuse requests that would be late. Goodput is the number of
requests per second that are answered within their limit.

    arrival     admitted, no first token yet             seats: requests that can run at once
       |        [ 900 ][ 300 ][ 2000 ]   then [ own ]    [ r ][ r ][ r ][ r ]
       v         <- prompt tokens before it ->                    ends at some rate
    forecast = the longer of  (a) all these prompt tokens / prompt rate
                              (b) requests too many / rate of ends + own tokens / prompt rate

vLLM 0.32 admits all by default; --max-num-queued-reqs and --max-num-queued-tokens set fixed limits, and a refused
request gets status 503 (v1/engine/async_llm.py). Goodput: DistServe (Zhong et al. 2024, 2401.09670).
"""

from __future__ import annotations

import math


class Rate:
    """Events per second, where old steps fade."""

    def __init__(self, window: float) -> None:
        self.window = window
        self.events = self.seconds = 0.0

    def add(self, events: int, seconds: float) -> None:
        fade = math.exp(-seconds / self.window)
        self.events = self.events * fade + events
        self.seconds = self.seconds * fade + seconds

    def seconds_for(self, events: int) -> float:
        """Return the time of so many events at this rate; 0 if there was none yet."""
        return events * self.seconds / self.events if self.events else 0.0


class SloAdmission:
    """Forecasts the time to the first token from measured rates."""

    def __init__(self, seats: int, window: float = 2.0) -> None:
        """seats: requests that can run at once. window: seconds of steps after which a measurement counts 1/e.

        Raises ValueError unless seats >= 1 and window > 0.
        """
        if seats < 1 or not window > 0:
            raise ValueError(f"seats >= 1 and window > 0, got {seats} and {window}")
        self.seats = seats
        self.prompts, self.ends = Rate(window), Rate(window)
        self.admitted: dict[str, int] = {}
        """Prompt tokens of requests that have not ended."""
        self.started: set[str] = set()
        """Ids of those that have their first token."""
        self.queued = 0
        """Prompt tokens of the others."""

    def step(self, seconds: float, prompt_tokens: int, first: list[str], done: list[str]) -> None:
        """Learn from a step of the engine that has ended. The time between steps does not count.

        first: ids that got their first token in it; done: ids that ended, a subset of `first` perhaps. Ids that are not
        known are no error. Each rate is a faded sum of events over a faded sum of seconds; a step that counts first
        multiplies both sums by exp(-seconds / window), then adds its own. Every step counts for the rate of ends,
        with len(done) events; only a step with prompt tokens counts for the prompt rate. Both start at 0.
        """
        if prompt_tokens:
            self.prompts.add(prompt_tokens, seconds)
        self.ends.add(len(done), seconds)
        for request_id in first:
            if request_id in self.admitted and request_id not in self.started:
                self.started.add(request_id)
                self.queued -= self.admitted[request_id]
        for request_id in done:
            self.leave(request_id)

    def forecast(self, tokens: int) -> float:
        """Return the seconds until the first token of a prompt of so many tokens that would be admitted now.

        (a) (queued + tokens) / prompt rate; queued: all prompt tokens of the admitted requests without a first token.
        (b) excess / rate of ends + tokens / prompt rate, with excess = admitted requests that have not ended + 1 -
            seats; only if excess > 0.
        Return the larger. A quotient whose rate had no event yet counts as 0. The call changes nothing.
        """
        own = self.prompts.seconds_for(tokens)
        compute = self.prompts.seconds_for(self.queued + tokens)
        excess = len(self.admitted) + 1 - self.seats
        return max(compute, self.ends.seconds_for(excess) + own) if excess > 0 else compute

    def arrive(self, request_id: str, tokens: int, limit: float) -> bool:
        """Admit a request and return True if the forecast is at most `limit`, or refuse it and return False.

        If no admitted request is left, admit in any case: a wrong rate is corrected only by serving. A refused request
        leaves no trace. Raises ValueError for tokens < 1, and if a request of this id is admitted and has not ended.
        """
        if tokens < 1:
            raise ValueError(f"a prompt has at least one token, got {tokens}")
        if request_id in self.admitted:
            raise ValueError(f"request {request_id!r} has not ended")
        if self.admitted and self.forecast(tokens) > limit:
            return False
        self.admitted[request_id] = tokens
        self.queued += tokens
        return True

    def leave(self, request_id: str) -> None:
        """Forget a request whose client has left. It is no event of the rate of ends. An unknown id is no error."""
        tokens = self.admitted.pop(request_id, 0)
        if request_id not in self.started:
            self.queued -= tokens
        self.started.discard(request_id)
