"""Solution of lab streaming-text. The docstrings of the stub state the contract."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class StreamText:
    def __init__(self, stop: Sequence[str] = (), include_stop: bool = False) -> None:
        if not all(stop):
            raise ValueError("a stop string must not be empty")
        self._stop = list(stop)
        self._include_stop = include_stop
        self._stopped: str | None = None
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    @property
    def stopped(self) -> str | None:
        return self._stopped

    def push(self, piece: bytes) -> str:
        return "".join(map(self._take, self._utf8.decode(piece)))

    def _take(self, character: str) -> str:
        """Add a character; return what is safe now."""
        if self._stopped is not None:
            return ""
        self._held += character
        ended = [stop for stop in self._stop if self._held.endswith(stop)]
        if ended:
            self._stopped = max(ended, key=len)
            before = self._held[: len(self._held) - len(self._stopped)]
            return before + self._stopped if self._include_stop else before
        num_safe = len(self._held) - self._num_hopeful()
        safe, self._held = self._held[:num_safe], self._held[num_safe:]
        return safe

    def _num_hopeful(self) -> int:
        """Return how many of the last held characters are the beginning of a stop string."""
        lengths = (
            size for stop in self._stop for size in range(1, len(stop)) if self._held.endswith(stop[:size])
        )
        return max(lengths, default=0)

    def finish(self) -> str:
        if self._stopped is not None:
            return ""
        rest = "".join(map(self._take, self._utf8.decode(b"", final=True))) + self._held
        self._held = ""
        return rest
