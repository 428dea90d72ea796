"""Lab graceful-drain: what a replica does from SIGTERM to its exit.

The seam is the end of the server (engine/server/run.py, `DrainingServer`; engine/server/admission.py refuses new
requests). Time is an argument, in seconds on a clock that never goes back; your object decides, and the server acts.

    state       ready  live   new requests   requests in flight          left when
    serving     200    200    200            run                         a signal comes
    draining    503    200    503            run                         the deadline comes, or a signal
    aborting    503    200    503            are named by tick, once     abort_s have passed, or a signal
    stopped     503    503    503            are cut off                 -

A draining or aborting replica without requests in flight is stopped at once. The deadline is limit_s after the first
signal, or the moment of a signal in the state draining. Sources: Kubernetes, "Pod Lifecycle" (termination, probes);
vLLM config/vllm.py (shutdown_timeout).
"""

from __future__ import annotations

import math


class Drain:
    """The life of one replica."""

    def __init__(self, limit_s: float = 30.0, abort_s: float = 2.0, retry_after_s: int = 5) -> None:
        """limit_s: time for requests in flight after the first signal. abort_s: time for aborted ones to end.

        retry_after_s: what refused clients are told. Raises ValueError unless limit_s and abort_s are at least 0 and
        retry_after_s is at least 1.
        """
        if limit_s < 0 or abort_s < 0 or retry_after_s < 1:
            raise ValueError("limit_s and abort_s are at least 0, retry_after_s at least 1")
        self.limit_s, self.abort_s, self.retry_after_s = limit_s, abort_s, retry_after_s
        self.deadline = self.last = math.inf
        self.is_signalled = False
        self.in_flight: dict[str, bool] = {}
        """Requests in order of their beginning, and whether tick has named them."""
        self.num_aborted = 0

    def state(self, now: float) -> str:
        """Return "serving", "draining", "aborting" (from the deadline on) or "stopped" (from abort_s later on)."""
        if not self.is_signalled:
            return "serving"
        if not self.in_flight or now >= min(self.last, self.deadline + self.abort_s):
            return "stopped"
        return "aborting" if now >= self.deadline else "draining"

    def signal(self, now: float) -> None:
        """SIGTERM or SIGINT has come: go on to the next state of the table. No effect on a stopped replica."""
        state = self.state(now)
        if state == "serving":
            self.is_signalled, self.deadline = True, now + self.limit_s
        elif state == "draining":
            self.deadline = now
        elif state == "aborting":
            self.last = now

    def begin(self, now: float, request_id: str) -> tuple[int, dict[str, str]]:
        """A new request has come: return the status and the headers of the answer.

        A serving replica returns (200, {}) and has the request in flight; it raises ValueError if that id is in flight
        already. Any other returns 503 and two headers: Retry-After, with retry_after_s as text, and Connection with the
        value close, so that the client opens its next connection to another replica.
        """
        if self.state(now) != "serving":
            return 503, {"Retry-After": str(self.retry_after_s), "Connection": "close"}
        if request_id in self.in_flight:
            raise ValueError(f"request {request_id!r} is in flight")
        self.in_flight[request_id] = False
        return 200, {}

    def end(self, now: float, request_id: str) -> None:
        """A request has ended by itself, or after its abort. No effect for an unknown id, and on a stopped replica."""
        if self.state(now) != "stopped":
            self.in_flight.pop(request_id, None)

    def tick(self, now: float) -> list[str]:
        """Return the requests that the server must abort now, in order of their beginning.

        That is each request in flight while the state is aborting, named once; it stays in flight until `end`. The
        server calls tick several times a second.
        """
        if self.state(now) != "aborting":
            return []
        named = [name for name, was_named in self.in_flight.items() if not was_named]
        self.in_flight.update(dict.fromkeys(named, True))
        self.num_aborted += len(named)
        return named

    def health(self, now: float, probe: str) -> int:
        """Return the status of a probe, by the table. probe: "ready" or "live"; raises ValueError for others."""
        if probe not in ("ready", "live"):
            raise ValueError(f"probe must be ready or live, got {probe!r}")
        state = self.state(now)
        return 200 if state == "serving" or (probe == "live" and state != "stopped") else 503

    def exit_code(self, now: float) -> int | None:
        """Return None until it is stopped; then 1 if tick has named a request or one is still in flight, else 0."""
        if self.state(now) != "stopped":
            return None
        return 1 if self.num_aborted or self.in_flight else 0
