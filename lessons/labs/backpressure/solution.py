"""Lab backpressure: buffers between the engine and the readers of its streams.

The seam is the path from a step of the engine to the clients: `OutputStream` of engine/async_llm.py, and the
server's admission (engine/server/admission.py). One step makes tokens for all requests, so the engine cannot wait for a
slow reader, and no token may be lost. So the room for a stream's tokens is promised before its request starts, and a
request without room is refused on arrival:

    Streams(capacity=100, patience_s=30)                        promised
    open(0.0, "a", 60)            -> 200, {}                    60      all that "a" may ever leave unread
    open(0.0, "b", 50)            -> 429, {"Retry-After": "60"} 60
    put(0.1, "a", [5, 6])         -> True                       60      wake the reader
    read(0.2, "a")                -> [5, 6], None               58      58 tokens may follow
    put(0.3, "a", [7], "stop")    -> True                       1       1 token is unread, none will follow
    read(0.4, "a")                -> [7], "stop"                0       closed

A stream's promise is max_tokens less the tokens that were read. When the stream has ended it is the number of unread
tokens, and 0 once it is closed or cut off. The promises of all streams never exceed the capacity. Time is an argument,
in seconds on a clock that never goes back. Sources: vLLM v1/engine/output_processor.py, RequestOutputCollector (merges
what was not read); RFC 6585 (429) and RFC 9110, 10.2.3 (Retry-After).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

LONGEST_S = 60
"""Largest Retry-After."""


class Stream:
    """Tokens on their way to one reader."""

    def __init__(self, promise: int) -> None:
        self.promise = promise
        """Room that is promised: tokens unread, and those that may follow."""
        self.unread: list[int] = []
        self.num_put, self.max_tokens = 0, promise
        self.reason: str | None = None
        self.since = math.inf
        """Time since when something is unread; inf: nothing is."""
        self.is_cut_off = False


class Streams:
    """The open streams of a server, in order of opening."""

    def __init__(self, capacity: int, patience_s: float, window_s: float = 10.0) -> None:
        """capacity: tokens that all buffers together may hold. patience_s: how long tokens may stay unread.

        window_s: how far back Retry-After looks. Raises ValueError unless all are above 0.
        """
        if min(capacity, patience_s, window_s) <= 0:
            raise ValueError("capacity, patience_s and window_s must be above 0")
        self.capacity, self.patience_s, self.window_s = capacity, patience_s, window_s
        self.streams: dict[str, Stream] = {}
        self.num_promised = 0
        self.released: deque[tuple[float, int]] = deque()
        """Times at which promises became smaller, within the window, and by how much."""
        self.num_released = 0

    @property
    def promised(self) -> int:
        """Sum of the promises of all streams, in tokens. O(1)."""
        return self.num_promised

    def open(self, now: float, request_id: str, max_tokens: int) -> tuple[int, dict[str, str]]:
        """Ask for a stream of at most max_tokens tokens: return the status and the headers of the answer.

        (200, {}) if its promise fits: the stream is open. (400, {}) if it exceeds the capacity: no retry helps. Else
        429 and the header Retry-After: whole seconds, as text, until enough is free if promises go on to shrink as they
        did in the last window_s seconds. That is lack * window_s / released, rounded up, at least 1 and at most 60.
        lack: the room that is missing. released: the sum of what promises shrank by, for whatever reason, at times
        above now - window_s; if it is 0, the answer is 60. Raises ValueError for an id that is open and for max_tokens
        below 1.
        """
        if request_id in self.streams or max_tokens < 1:
            raise ValueError(f"stream {request_id!r} with {max_tokens} tokens: it is open, or has no token")
        if max_tokens > self.capacity:
            return 400, {}
        if (lack := self.num_promised + max_tokens - self.capacity) > 0:
            return 429, {"Retry-After": str(self._retry_after(now, lack))}
        self.streams[request_id] = Stream(max_tokens)
        self.num_promised += max_tokens
        return 200, {}

    def put(self, now: float, request_id: str, tokens: Sequence[int], reason: str | None = None) -> bool:
        """Add a step's tokens, with a reason if the stream ends with them. Never wait.

        Returns True if the reader must be woken: nothing was unread before (neither tokens nor the end), and something
        is now. Returns False and changes nothing if the stream is cut off or not open: its request has not been aborted
        yet. Raises ValueError, and changes nothing, after the end and for more than max_tokens tokens in all.
        """
        stream = self.streams.get(request_id)
        if stream is None or stream.is_cut_off:
            return False
        if stream.reason is not None or stream.num_put + len(tokens) > stream.max_tokens:
            raise ValueError(f"stream {request_id!r} has ended, or would have too many tokens")
        stream.unread += tokens
        stream.num_put += len(tokens)
        if reason is not None:
            stream.reason = reason
            self._shrink(now, stream, len(stream.unread))
        if stream.since < math.inf or not (tokens or reason is not None):
            return False
        stream.since = now
        return True

    def read(self, now: float, request_id: str) -> tuple[list[int], str | None]:
        """Return all unread tokens in order, and the reason if the stream has ended: it is closed then.

        Returns ([], None) if nothing is unread. A stream that was cut off returns ([], "slow") and is closed. Raises
        ValueError for an id that is not open.
        """
        stream = self.streams.get(request_id)
        if stream is None:
            raise ValueError(f"stream {request_id!r} is not open")
        tokens, stream.unread, stream.since = stream.unread, [], math.inf
        self._shrink(now, stream, stream.promise - len(tokens))
        reason = "slow" if stream.is_cut_off else stream.reason
        if reason is not None:
            del self.streams[request_id]
        return tokens, reason

    def close(self, now: float, request_id: str) -> bool:
        """Drop the stream of a client that has left. Return whether the engine must abort the request.

        That is so if the stream was open and neither ended nor cut off. False for an id that is not open.
        """
        stream = self.streams.pop(request_id, None)
        if stream is None:
            return False
        self._shrink(now, stream, 0)
        return stream.reason is None and not stream.is_cut_off

    def late(self, now: float) -> list[str]:
        """Cut off each stream of which something has been unread for more than patience_s; return their ids.

        Ids come in order of opening, each once; the server aborts the requests that still run. The unread tokens are
        dropped and the promise is 0. The stream stays open until the reader learns of it from `read`, or closes it.
        """
        found = []
        for request_id, stream in self.streams.items():
            if now - stream.since > self.patience_s:
                stream.is_cut_off, stream.unread, stream.since = True, [], math.inf
                self._shrink(now, stream, 0)
                found.append(request_id)
        return found

    def _shrink(self, now: float, stream: Stream, promise: int) -> None:
        count, stream.promise = stream.promise - promise, promise
        if count:
            self.num_promised -= count
            self.released.append((now, count))
            self.num_released += count
            self._forget(now)

    def _forget(self, now: float) -> None:
        while self.released and self.released[0][0] <= now - self.window_s:
            self.num_released -= self.released.popleft()[1]

    def _retry_after(self, now: float, lack: int) -> int:
        self._forget(now)
        if not self.num_released:
            return LONGEST_S
        return min(LONGEST_S, max(1, math.ceil(lack * self.window_s / self.num_released)))
