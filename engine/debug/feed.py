"""All lines of a run's trace, kept for readers that attach later.

Block tables and queues follow from the whole history, so a reader that attaches at step 5,000 needs step 0 too. Lines
are kept from the first on, compressed 256 at a time to about a sixth: 5,000 steps over 10,000 blocks take 1.1 MB.
"""

from __future__ import annotations

import threading
import time
import zlib

CHUNK_LINES = 256
MAX_BYTES = 256 << 20
"""Maximum bytes of compressed lines. A longer run is followed up to this size."""
ANSWER_LINES = 16 * CHUNK_LINES
"""Maximum lines of an answer."""
LINGER_S = 0.02
"""Time for which an answer to a waiting reader collects further lines: an engine with 2,000 steps per second would
otherwise send 2,000 answers per second, each of which holds the interpreter lock."""


class TraceFeed:
    """The engine's thread appends; readers read from any line on and may wait for more."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._chunks: list[bytes] = []
        """Compressed, `CHUNK_LINES` lines each."""
        self._tail: list[bytes] = []
        self._num_bytes = 0
        self._grew = threading.Condition()
        self.end: str | None = None
        """Reason why no line will follow; None while the run goes on."""
        self._num_read = 0

    @property
    def num_lines(self) -> int:
        return len(self._chunks) * CHUNK_LINES + len(self._tail)

    def append(self, line: bytes) -> None:
        """Append a line with its line feed; after the end it is dropped."""
        with self._grew:
            if self.end is not None:
                return
            self._tail.append(line)
            if len(self._tail) == CHUNK_LINES:
                self._chunks.append(zlib.compress(b"".join(self._tail), 1))
                self._num_bytes += len(self._chunks[-1])
                self._tail = []
            if self._num_bytes > self._max_bytes:
                self.end = (
                    f"the run's history takes more than {self._max_bytes >> 20} MiB: the debug port has stopped "
                    "following it, and the engine goes on. Record with --trace FILE for longer runs"
                )
            self._grew.notify_all()

    def close(self, why: str) -> None:
        """End the feed. The first reason stands."""
        with self._grew:
            self.end = self.end or why
            self._grew.notify_all()

    def read(self, since: int, wait_s: float = 0.0) -> tuple[bytes, int]:
        """Return whole lines from number `since` on (0 is the header), and the number of the next line to ask for.

        Waits up to `wait_s` seconds if there are none yet; returns empty bytes if none came.
        """
        with self._grew:
            if since >= self.num_lines and wait_s > 0:
                if self._grew.wait_for(lambda: since < self.num_lines or self.end is not None, wait_s):
                    self._grew.wait_for(lambda: self.end is not None, LINGER_S)
            if since >= self.num_lines:
                return b"", since
            first, skip = divmod(since, CHUNK_LINES)
            chunks, tail = self._chunks[first : first + ANSWER_LINES // CHUNK_LINES], list(self._tail)
            reaches_tail = first + len(chunks) == len(self._chunks)
        lines = [line for chunk in chunks for line in zlib.decompress(chunk).splitlines(keepends=True)]
        lines = (lines + tail if reaches_tail else lines)[skip:]
        self._num_read = max(self._num_read, since + len(lines))
        return b"".join(lines), since + len(lines)

    def wait_until_read(self, timeout_s: float) -> None:
        """Wait until a reader has fetched the last lines. Returns at once if there is no reader."""
        deadline = time.monotonic() + timeout_s
        while 0 < self._num_read < self.num_lines and time.monotonic() < deadline:
            time.sleep(0.01)
