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


class Drain:
    """The life of one replica."""

    def __init__(self, limit_s: float = 30.0, abort_s: float = 2.0, retry_after_s: int = 5) -> None:
        """limit_s: time for requests in flight after the first signal. abort_s: time for aborted ones to end.

        retry_after_s: what refused clients are told. Raises ValueError unless limit_s and abort_s are at least 0 and
        retry_after_s is at least 1.
        """
        raise NotImplementedError("write Drain")

    def state(self, now: float) -> str:
        """Return "serving", "draining", "aborting" (from the deadline on) or "stopped" (from abort_s later on)."""
        raise NotImplementedError("write state")

    def signal(self, now: float) -> None:
        """SIGTERM or SIGINT has come: go on to the next state of the table. No effect on a stopped replica."""
        raise NotImplementedError("write signal")

    def begin(self, now: float, request_id: str) -> tuple[int, dict[str, str]]:
        """A new request has come: return the status and the headers of the answer.

        A serving replica returns (200, {}) and has the request in flight; it raises ValueError if that id is in flight
        already. Any other returns 503 and two headers: Retry-After, with retry_after_s as text, and Connection with the
        value close, so that the client opens its next connection to another replica.
        """
        raise NotImplementedError("write begin")

    def end(self, now: float, request_id: str) -> None:
        """A request has ended by itself, or after its abort. No effect for an unknown id, and on a stopped replica."""
        raise NotImplementedError("write end")

    def tick(self, now: float) -> list[str]:
        """Return the requests that the server must abort now, in order of their beginning.

        That is each request in flight while the state is aborting, named once; it stays in flight until `end`. The
        server calls tick several times a second.
        """
        raise NotImplementedError("write tick")

    def health(self, now: float, probe: str) -> int:
        """Return the status of a probe, by the table. probe: "ready" or "live"; raises ValueError for others."""
        raise NotImplementedError("write health")

    def exit_code(self, now: float) -> int | None:
        """Return None until it is stopped; then 1 if tick has named a request or one is still in flight, else 0."""
        raise NotImplementedError("write exit_code")
