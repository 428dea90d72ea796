"""Drills that are held in this server's tabs: the session, its runs, and what the learner has typed so far.

A reloaded tab takes its drill back, and another tab may take it over. After a tab was closed, a run under way goes on
to its end, and the drill waits an hour. The file of the session stays, as after Ctrl-C in a terminal.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from app.debugger.drill.stage_process import StageProcess
from app.debugger.tabs import Job, Keeper
from interview.drills.drill import Drill
from interview.drills.running import START_S
from interview.drills.session import Result, Session

AFTER_S = 2.0
"""Usual time from the last arrival to the end of a run."""
STOP_S = 8.0
WAITS_S = 3600.0
"""Time for which a drill stays after its tab was closed."""


@dataclass
class Progress:
    """A run of a stage: its name, what it does now, and the times that it takes."""

    name: str
    usual_s: float
    text: str = "starts"
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None

    @property
    def seconds(self) -> float:
        return (time.monotonic() if self.ended is None else self.ended) - self.began

    @property
    def share(self) -> float:
        """Return how far it is, from the usual time; 1 only at its end."""
        return 1.0 if self.ended is not None else min(0.97, self.seconds / self.usual_s)


@dataclass
class Held:
    """A drill in a tab."""

    session: Session
    owner: str
    runs: StageProcess
    job: Job | None = None
    progress: list[Progress] = field(default_factory=list)
    """The runs so far: yesterday, today, and each fix."""
    fixes: list[tuple[str, Result]] = field(default_factory=list)
    """Applied fixes, in words, with their results."""
    shown: str = ""
    """The look on the page."""
    draft: dict[str, Any] = field(default_factory=dict)
    """Values of the forms, by widget."""
    changes: bool = False
    """Whether a stated hypothesis is being changed."""
    problem: str = ""
    """Reason for which the last fix could not run."""
    left_at: float | None = None

    @property
    def usual_s(self) -> float:
        """Return the usual duration of a run: that of the last one, else an estimate."""
        ended = [run.seconds for run in self.progress if run.ended is not None]
        return ended[-1] if ended else START_S + self.session.drill.load.seconds + AFTER_S

    def begin(self) -> None:
        """Start both runs, yesterday's and today's, in the background."""
        self.job = Job("runs", self._runs, self.runs.stop)

    def apply(self, wanted: int | str) -> None:
        """Start a fix in the background."""
        self.problem = ""
        self.job = Job("fix", lambda: self._fix(wanted), self.runs.stop)

    def settle(self) -> None:
        """Take note of work that has ended."""
        job = self.job
        if job is None or not job.is_done:
            return
        self.job = None
        if job.error is not None:
            self.problem = str(job.error) or type(job.error).__name__

    def _runs(self) -> None:
        for name, run in (("yesterday", self.session.run_healthy), ("today", self.session.run_faulty)):
            progress = self._next(name)
            run(lambda text, progress=progress: setattr(progress, "text", text))  # type: ignore[misc]
            progress.ended = time.monotonic()

    def _fix(self, wanted: int | str) -> None:
        words = self.session.words_of(wanted)
        progress = self._next("fix")
        try:
            result = self.session.fix(wanted, lambda text: setattr(progress, "text", text))
        except BaseException:
            self.progress.remove(progress)
            raise
        progress.ended = time.monotonic()
        self.fixes.append((words, result))

    def _next(self, name: str) -> Progress:
        self.progress.append(Progress(name, self.usual_s))
        return self.progress[-1]


HELD: Keeper[Held] = Keeper(lambda held: release(held), WAITS_S)


def begin(drill: Drill, minutes: float, tab: str) -> Held:
    """Begin a drill in a tab. Raises OSError if its file cannot be written."""
    runs = StageProcess()
    held = Held(Session.start(drill, minutes, runs.run), tab, runs)
    held.begin()
    return HELD.hold(held.session.id, held)


def release(held: Held) -> None:
    """Let go of a drill and end its run."""
    HELD.drop(held.session.id, held)
    held.runs.stop()
    if held.job is not None:
        held.job.stop(STOP_S)
    held.session.close()
