"""The parent's side of a live engine's process: start it, hear what it says, end it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from app.debugger.live.client import LiveError
from app.debugger.live.settings import Arrival, LiveSettings

ROOT = Path(__file__).resolve().parents[3]
START_S = 120.0
STOP_S = 5.0
NUM_THREADS = "1"
"""For the model: its matrices are small, and the browser and this server want their cores too."""
KEPT_LINES = 30
"""Of what the process writes to its standard error."""


class EngineProcess:
    """Its standard input is what keeps it alive: when this process ends in any way, it ends too."""

    def __init__(
        self,
        settings: LiveSettings,
        workload: Sequence[Arrival],
        *,
        paused: bool = False,
        steps_per_s: float | None = None,
    ) -> None:
        self.settings = settings
        self.answers: dict[str, tuple[str, str]] = {}
        """Of requests that have ended: why, and what was said."""
        self.refused: dict[str, str] = {}
        """Requests that were refused at the door, with the reason."""
        self.failure: str | None = None
        """Why there is no engine, or what it died of."""
        self._replayed: dict[str, Any] | None = None
        self._urls: deque[str] = deque()
        self._heard = threading.Condition()
        self._errors: deque[str] = deque(maxlen=KEPT_LINES)
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "app.debugger.live.engine_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"OMP_NUM_THREADS": NUM_THREADS, **os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        for listen in (self._hear_events, self._hear_errors):
            threading.Thread(target=listen, daemon=True).start()
        self._order(
            {
                "settings": settings.to_dict(),
                "workload": [[arrival.step, arrival.request_id, arrival.wish] for arrival in workload],
                "paused": paused,
                "steps_per_s": steps_per_s,
            }
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_for_url(self, timeout_s: float = START_S) -> str:
        """The address of the next engine's port. Raises LiveError with the engine's own message if there is none."""
        deadline = time.monotonic() + timeout_s
        with self._heard:
            self._heard.wait_for(
                lambda: self._urls or self.failure or not self.is_running, deadline - time.monotonic()
            )
            if self._urls:
                return self._urls.popleft()
        if self.failure is None:
            time.sleep(0.1)  # its last words may be on their way
            said = " ".join(list(self._errors)[-3:])
            self.failure = f"the engine's process ended without an engine. It said: {said or 'nothing'}"
        raise LiveError(self.failure)

    def rewind(self, step: int) -> tuple[str, dict[str, Any]]:
        """Replay up to a step: the new engine's address, and how the replay went."""
        self.failure = None
        self._order({"rewind": step})
        url = self.wait_for_url()
        assert self._replayed is not None
        return url, self._replayed

    def stop(self) -> None:
        """End it. A second call does nothing."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            try:
                self._process.stdin.close()
            except OSError:
                pass  # it is gone already
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _order(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise LiveError("the engine's process has ended: start a new one") from None

    def _hear_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            with self._heard:
                _HEARERS[event.pop("event")](self, event)
                self._heard.notify_all()
        self._process.wait()
        with self._heard:
            self._heard.notify_all()

    def _hear_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors.append(line.rstrip())

    def _hear_engine(self, event: dict[str, Any]) -> None:
        self._urls.append(event["url"])

    def _hear_refused(self, event: dict[str, Any]) -> None:
        self.refused[event["request_id"]] = event["error"]

    def _hear_answer(self, event: dict[str, Any]) -> None:
        self.answers[event["request_id"]] = (event["reason"], event["text"])

    def _hear_failure(self, event: dict[str, Any]) -> None:
        self.failure = event["error"]

    def _hear_replayed(self, event: dict[str, Any]) -> None:
        self._replayed = event


_HEARERS: dict[str, Callable[[EngineProcess, dict[str, Any]], None]] = {
    "engine": EngineProcess._hear_engine,
    "refused": EngineProcess._hear_refused,
    "answer": EngineProcess._hear_answer,
    "died": EngineProcess._hear_failure,
    "failed": EngineProcess._hear_failure,
    "replayed": EngineProcess._hear_replayed,
}
