"""Run the stages of a drill in child processes, and end them when asked to."""

from __future__ import annotations

import signal
import time
from threading import Lock

from engine.config import ConfigError
from interview.drills.drill import Load, Stage
from interview.drills.running import Record, Tell
from prep_common.child_process import PipeChild, ProcessEnded

GRACE_S = 4.0
"""Seconds for a worker to end its servers before it is killed; they then end by themselves."""


class StageProcess:
    """The runs of one drill, one after the other."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._child: PipeChild | None = None
        self._stopped_at: float | None = None

    def run(self, stage: Stage, load: Load, tell: Tell) -> Record:
        """Run a stage under its load, as `interview.drills.running.run` does. Raises ConfigError."""
        with self._lock:
            if self._stopped_at is not None:
                raise ConfigError("the drill was stopped")
            child = self._child = PipeChild(
                "app.debugger.drill.stage_worker", name="the run", keep_stderr=True
            )
        try:
            child.write((stage, load))
            while True:
                kind, content = child.read()
                if kind == "record":
                    record: Record = content
                    return record
                if kind == "error":
                    raise ConfigError(content)
                tell(content)
        except ProcessEnded as ended:
            raise ConfigError(
                "the drill was stopped" if self._stopped_at is not None else str(ended)
            ) from None
        finally:
            child.close()

    def stop(self) -> None:
        """End the present run and allow no further one. A second call kills a run that does not end."""
        with self._lock:
            child, since = self._child, self._stopped_at
            self._stopped_at = since or time.monotonic()
        if child is None or not child.is_running:
            return
        if since is None:
            child.send_signal(signal.SIGTERM)
        elif time.monotonic() - since > GRACE_S:
            child.kill()
