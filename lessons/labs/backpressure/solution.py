"""Solution of lab backpressure. The docstrings of the stub state the contract."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

LONGEST_S = 60


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
    def __init__(self, capacity: int, patience_s: float, window_s: float = 10.0) -> None:
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
        return self.num_promised

    def open(self, now: float, request_id: str, max_tokens: int) -> tuple[int, dict[str, str]]:
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
        stream = self.streams.pop(request_id, None)
        if stream is None:
            return False
        self._shrink(now, stream, 0)
        return stream.reason is None and not stream.is_cut_off

    def late(self, now: float) -> list[str]:
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
