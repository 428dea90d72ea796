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


class SloAdmission:
    """Forecasts the time to the first token from measured rates."""

    def __init__(self, seats: int, window: float = 2.0) -> None:
        """seats: requests that can run at once. window: seconds of steps after which a measurement counts 1/e.

        Raises ValueError unless seats >= 1 and window > 0.
        """
        raise NotImplementedError("write SloAdmission")

    def step(self, seconds: float, prompt_tokens: int, first: list[str], done: list[str]) -> None:
        """Learn from a step of the engine that has ended. The time between steps does not count.

        first: ids that got their first token in it; done: ids that ended, a subset of `first` perhaps. Ids that are not
        known are no error. Each rate is a faded sum of events over a faded sum of seconds; a step that counts first
        multiplies both sums by exp(-seconds / window), then adds its own. Every step counts for the rate of ends,
        with len(done) events; only a step with prompt tokens counts for the prompt rate. Both start at 0.
        """
        raise NotImplementedError("write step")

    def forecast(self, tokens: int) -> float:
        """Return the seconds until the first token of a prompt of so many tokens that would be admitted now.

        (a) (queued + tokens) / prompt rate; queued: all prompt tokens of the admitted requests without a first token.
        (b) excess / rate of ends + tokens / prompt rate, with excess = admitted requests that have not ended + 1 -
            seats; only if excess > 0.
        Return the larger. A quotient whose rate had no event yet counts as 0. The call changes nothing.
        """
        raise NotImplementedError("write forecast")

    def arrive(self, request_id: str, tokens: int, limit: float) -> bool:
        """Admit a request and return True if the forecast is at most `limit`, or refuse it and return False.

        If no admitted request is left, admit in any case: a wrong rate is corrected only by serving. A refused request
        leaves no trace. Raises ValueError for tokens < 1, and if a request of this id is admitted and has not ended.
        """
        raise NotImplementedError("write arrive")

    def leave(self, request_id: str) -> None:
        """Forget a request whose client has left. It is no event of the rate of ends. An unknown id is no error."""
        raise NotImplementedError("write leave")
