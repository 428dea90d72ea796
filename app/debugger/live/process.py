"""The parent's side of a live engine's process: start it, read its messages, end it."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from app.debugger.live.client import LiveError
from app.debugger.live.settings import Arrival, LiveSettings
from prep_common.child_process import JsonChild, ProcessEnded

START_S = 120.0
NUM_THREADS = "1"
"""Threads of the model: its matrices are small, and the browser and this server need cores too."""


class EngineProcess:
    """The engine's process. It ends when its standard input closes, so it always ends with this process."""

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
        """Ended requests: finish reason and text."""
        self.refused: dict[str, str] = {}
        """Rejected requests and the reasons."""
        self.failure: str | None = None
        """Reason why the engine did not start, or why it died."""
        self._replayed: dict[str, Any] | None = None
        self._urls: deque[str] = deque()
        self._heard = threading.Condition()
        self._process = JsonChild(
            "app.debugger.live.engine_process",
            name="the engine's process",
            environment={"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", NUM_THREADS)},
        )
        threading.Thread(target=self._hear_events, daemon=True).start()
        arrivals = [list(arrival) for arrival in workload]
        options = {"paused": paused, "steps_per_s": steps_per_s}
        self._order({"settings": asdict(settings), "workload": arrivals, **options})

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.is_running

    def wait_for_url(self, timeout_s: float = START_S) -> str:
        """Wait for the next engine's port. Raises LiveError with the engine's message if it does not start."""
        with self._heard:
            self._heard.wait_for(lambda: self._urls or self.failure, timeout_s)
            if self._urls:
                return self._urls.popleft()
            if self.failure is None:
                self.failure = f"the engine's process started no engine within {timeout_s:g} s"
            raise LiveError(self.failure)

    def rewind(self, step: int) -> tuple[str, dict[str, Any]]:
        """Replay up to a step: returns the new engine's address and the result of the replay."""
        self.failure = None
        self._order({"rewind": step})
        url = self.wait_for_url()
        assert self._replayed is not None
        return url, self._replayed

    def stop(self) -> None:
        """End the process. A second call does nothing."""
        self._process.close()

    def _order(self, order: dict[str, Any]) -> None:
        try:
            self._process.write(order)
        except ProcessEnded:
            raise LiveError("the engine's process has ended: start a new one") from None

    def _hear_events(self) -> None:
        try:
            for event in self._process.records():
                with self._heard:
                    self._take(event.pop("event"), event)
                    self._heard.notify_all()
        except ProcessEnded as ended:
            with self._heard:
                self.failure = self.failure or str(ended)
                self._heard.notify_all()

    def _take(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "engine":
            self._urls.append(event["url"])
        elif kind == "refused":
            self.refused[event["request_id"]] = event["error"]
        elif kind == "answer":
            self.answers[event["request_id"]] = (event["reason"], event["text"])
        elif kind == "replayed":
            self._replayed = event
        else:  # died, failed
            self.failure = event["error"]
