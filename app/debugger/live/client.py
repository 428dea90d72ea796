"""The client of a debug port: follow its trace in a thread, and send commands.

    engine  --/debug/trace-->  LiveRun.lines, shared by all tabs
                                  |             |
                               LiveView      LiveView       one per tab: a separate reader, updated by its tab

A view is a run like a recorded one. It grows only in `catch_up`, so it does not change while a page is drawn.
"""

from __future__ import annotations

import gzip
import http.client
import json
import threading
import time
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from app.debugger.trace_index import TraceIndex
from engine.debug.feed import TraceFeed
from engine.trace.format import TraceError
from engine.trace.protocol import Trace
from engine.trace.reader import TraceReader

GOES_ON = "Saved while the engine ran: its later steps are not in this file."
POLL_S = 10.0
TIMEOUT_S = 20.0
RETRY_S = 0.1
NUM_RETRIES = 5
"""Consecutive failures after which a port counts as gone."""


class LiveError(TraceError):
    """An action on a live engine failed; the message says what, why, and what to do."""


class Port:
    """The address of a debug port."""

    def __init__(self, url: str) -> None:
        """url: as the engine printed it, http://127.0.0.1:PORT/?token=..."""
        parts = urlsplit(url.strip())
        self.token = parse_qs(parts.query).get("token", [""])[0]
        try:
            self.host, self.number = parts.hostname, parts.port
        except ValueError:
            self.host, self.number = None, None
        if parts.scheme != "http" or self.host not in ("127.0.0.1", "localhost") or self.number is None:
            raise LiveError(
                f"{url.strip() or 'nothing'} is not the address of a debug port: an engine started with --debug-port 0 "
                "prints one like http://127.0.0.1:PORT/?token=..., on this machine"
            )

    def __str__(self) -> str:
        return f"{self.host}:{self.number}"

    def call(
        self,
        path: str,
        body: dict[str, Any] | None = None,
        connection: http.client.HTTPConnection | None = None,
    ) -> tuple[bytes, http.client.HTTPMessage]:
        """GET without a body, POST with one. Raises LiveError with the port's error, or if it does not answer."""
        own = connection is None
        connection = connection or http.client.HTTPConnection("127.0.0.1", self.number, timeout=TIMEOUT_S)
        headers = {"Authorization": f"Bearer {self.token}"}
        data = None if body is None else json.dumps(body)
        try:
            connection.request("GET" if body is None else "POST", path, data, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Unreachable(
                f"no answer from {self} ({error or type(error).__name__}): the engine has ended, or the address is "
                "outdated. Start the engine and use the address that it prints"
            ) from error
        finally:
            if own:
                connection.close()
        if answer.status == 200:
            return content, answer.headers
        try:
            message = str(json.loads(content)["error"])
        except (ValueError, KeyError, TypeError):
            message = (
                f"{self} is not a debug port (HTTP {answer.status}): use the address that the engine printed"
            )
        raise LiveError(message)

    def info(self) -> dict[str, Any]:
        info: dict[str, Any] = json.loads(self.call("/debug/info")[0])
        return info


class Unreachable(LiveError):
    """The port does not answer."""


class LiveRun:
    """A followed engine, from its first line until it ends. The lines are kept."""

    def __init__(self, run_id: str, title: str, port: Port) -> None:
        """Raises LiveError if the port cannot be reached or does not take the token."""
        self.run_id = run_id
        self.title = title
        self.port = port
        self.lines = TraceFeed()
        self.end: str | None = None
        """Reason why the trace ended; None while the engine runs."""
        self.num_steps = 0
        """Number of steps received."""
        self.continued_as: str | None = None
        """The run that continues this one after a rewind."""
        self._is_left = False
        self._info = port.info()
        header = port.call("/debug/trace")[0].partition(b"\n")[0]
        try:
            if json.loads(header)["t"] != "hdr":
                raise ValueError
        except (ValueError, KeyError, TypeError):
            raise LiveError(f"{port} does not send a trace: is it a debug port of prep?") from None
        self._thread = threading.Thread(target=self._follow, name=f"follow-{run_id}", daemon=True)
        self._thread.start()

    def tell(self, action: str, **what: Any) -> dict[str, Any]:
        """Send pause, resume, step, breakpoints, inject or abort. Raises LiveError with the engine's error."""
        if self.end is not None:
            raise LiveError(f"this engine has ended ({self.end}); the run so far is kept and can be saved")
        answer: dict[str, Any] = json.loads(self.port.call(f"/debug/{action}", what)[0])
        if "paused" in answer:
            self._info = answer
        return answer

    def info(self) -> dict[str, Any]:
        """The engine's state; the last known one if it has ended."""
        if self.end is None:
            try:
                self._info = self.port.info()
            except LiveError:
                pass  # the follower thread reports the reason
        if self.end is not None:
            return {**self._info, "step": self.num_steps - 1, "has_work": False}
        return self._info

    def leave(self, why: str) -> None:
        """Stop following. An attached engine continues."""
        self._is_left = True
        self._ended(why)

    def wait(self, timeout_s: float) -> None:
        """Wait for the end of the follower thread."""
        self._thread.join(timeout_s)

    def save(self, path: Path) -> None:
        """Write all lines so far as a trace file. While the engine lives, an end record says that it went on."""
        is_alive = self.end is None
        partial, last, crc = path.with_suffix(".part"), b"", 0
        with gzip.open(partial, "wb", compresslevel=6) as file:
            part, since = self.lines.read(0)
            while part:
                file.write(part)
                last, crc = part.rstrip(b"\n").rpartition(b"\n")[2] or last, zlib.crc32(part, crc)
                part, since = self.lines.read(since)
            record = json.loads(last) if last else {}
            if is_alive and record.get("t") not in ("error", "end"):
                step = record.get("i", 0) + (record.get("t") == "step")
                end = {
                    "t": "end",
                    "i": step,
                    "ts": record.get("ts", 0.0),
                    "log": f"{crc:08x}",
                    "ev": [],
                    "notes": [GOES_ON],
                }
                file.write(json.dumps(end, separators=(",", ":")).encode() + b"\n")
        partial.replace(path)

    def _follow(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port.number, timeout=TIMEOUT_S)
        failures = 0
        while not self._is_left:
            try:
                path = f"/debug/trace?since={self.lines.num_lines}&wait={POLL_S:g}"
                content, headers = self.port.call(path, connection=connection)
            except LiveError as error:
                failures += 1
                if not isinstance(error, Unreachable):
                    self._ended(str(error))
                elif failures > NUM_RETRIES:
                    self._ended("the engine has ended without a message; it may have been killed")
                if self.end is not None:
                    break
                time.sleep(RETRY_S)
                continue
            failures = 0
            for line in content.splitlines(keepends=True):
                self.num_steps += line.startswith(b'{"t":"step"')
                self.lines.append(line)
            if self.lines.end is not None:
                self._ended(self.lines.end)
            if end := headers.get("X-Prep-End"):
                self._ended(json.loads(end))
                break
        connection.close()

    def _ended(self, why: str) -> None:
        self.end = self.end or why
        self.lines.close(why)


class LiveView:
    """A tab's view of a live run: a `runs.Run` that grows with `catch_up`."""

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self.run_id = live.run_id
        self._num_lines = 0
        self._trouble: str | None = None
        self._reader: TraceReader | None = None

    @property
    def title(self) -> str:
        return self.live.title

    @property
    def is_live(self) -> bool:
        """Whether more may follow: the engine runs, or there are unread lines."""
        if self._trouble is not None:
            return False
        return self.live.end is None or self._num_lines < self.live.lines.num_lines

    def catch_up(self) -> LiveView:
        """Read the lines since the last call."""
        while self._trouble is None:
            wait_s = 0.0 if self._reader else 2.0
            part, following = self.live.lines.read(self._num_lines, wait_s)
            if not part:
                break
            self._take(part.splitlines())
            self._num_lines = following
        return self

    def _take(self, lines: list[bytes]) -> None:
        if self._reader is None:
            self._reader = TraceReader.growing(self.live.run_id, lines.pop(0))
            self._index = TraceIndex(self._reader)
        try:
            for line in lines:
                self._reader.feed(line)
        except TraceError as error:
            self._trouble = str(error)

    @property
    def index(self) -> TraceIndex:
        self.reader(0)
        return self._index

    def reader(self, step: int) -> Trace:
        if self._reader is None:
            raise LiveError(f"{self.run_id} has sent no data yet: {self.live.end or 'try again'}")
        return self._reader

    @property
    def warnings(self) -> list[str]:
        warnings = [] if self._reader is None else list(self._reader.warnings)
        return [*warnings, *filter(None, [self._trouble])]
