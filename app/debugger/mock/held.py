"""Interviews that are open in this server's tabs: one tab each, with its clock, its runs and its drawing.

A reloaded tab takes its interview back at the same turn. A few seconds after a tab was closed, its interview is
released, so that a terminal or another tab can continue it.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from app.debugger.tabs import Job, Keeper, OpenElsewhere
from interview.mock.scenario_list import Scenarios, load_scenarios
from interview.mock.session import Session, SessionError
from interview.mock.talk import Asked, Spec
from interview.mock.turns import Continue, Mark, Rate, RunExperiment, Turn
from quizzes.experiments.runner import Runner


class Clock:
    """Measure the time from the moment when a turn is shown, without pauses."""

    def __init__(self) -> None:
        self.turn = ""
        self._spent = 0.0
        self._since: float | None = None
        self._paused_at: float | None = None

    @property
    def seconds(self) -> float:
        return self._spent + (0.0 if self._since is None else time.monotonic() - self._since)

    @property
    def is_paused(self) -> bool:
        return self._paused_at is not None

    def show(self, turn: str, spent: float = 0.0) -> None:
        """Start for a turn; showing it again changes nothing."""
        if turn != self.turn:
            self.turn, self._spent, self._since, self._paused_at = turn, spent, time.monotonic(), None

    def pause(self) -> None:
        if self._paused_at is None:
            self._spent, self._since, self._paused_at = self.seconds, None, time.monotonic()

    def go_on(self) -> float:
        """Continue. Return the seconds of the pause."""
        if self._paused_at is None:
            return 0.0
        paused = time.monotonic() - self._paused_at
        self._since, self._paused_at = time.monotonic(), None
        return paused


@dataclass
class Held:
    """An interview in a tab."""

    session: Session
    owner: str
    clock: Clock = field(default_factory=Clock)
    runner: Runner = field(default_factory=Runner)
    job: Job | None = None
    tries: dict[str, int] = field(default_factory=dict)
    """Turn -> checks of its program."""
    checked: dict[str, tuple[str, Any]] = field(default_factory=dict)
    """Turn -> the program that was checked last, and its checks."""
    drawing: list[Any] = field(default_factory=list)
    """Strokes on the whiteboard."""
    is_drawing_new: bool = False
    left_at: float | None = None
    """When its tab was first seen closed."""
    _warmed: set[str] = field(default_factory=set)

    @property
    def turn(self) -> Turn:
        assert self.session.turn is not None
        return self.session.turn

    @property
    def asked(self) -> Asked:
        """Return the step that the present turn belongs to; key points are marked after their probes."""
        key = self.turn.id.partition("#")[0]
        return next(step for step in reversed(self.session.talk.asked) if step.key == key)

    @property
    def is_timed(self) -> bool:
        """Return whether the present turn is the candidate's time: runs, marks and the own rating are not."""
        return self.session.turn is not None and not isinstance(
            self.turn.want, Continue | RunExperiment | Mark | Rate
        )

    def reply(self, reply: dict[str, Any]) -> None:
        """Keep the reply with the time it took. Raises ParseError for one that cannot be used, OSError."""
        self.turn.want.check(reply)
        seconds = self.clock.seconds if self.is_timed else 0.0
        self.keep_drawing()
        self.session.reply(reply, seconds)
        self.job = None
        if self.session.turn is None:
            release(self)
        else:
            self.clock.show(self.turn.id)

    def keep_drawing(self) -> None:
        """Keep the whiteboard in the log, if it has changed."""
        if self.is_drawing_new and self.session.turn is not None:
            self.session.note("drawing", turn=self.session.turn.id, strokes=self.drawing)
            self.is_drawing_new = False

    def pause(self) -> None:
        self.clock.pause()

    def go_on(self) -> None:
        paused = self.clock.go_on()
        self.session.note("pause", turn=self.turn.id, seconds=round(paused, 1))

    def warm(self, experiment: str) -> None:
        """Begin to import what a run needs, while the candidate thinks."""
        if experiment not in self._warmed:
            self._warmed.add(experiment)
            self.runner.warm(experiment)


HELD: Keeper[Held] = Keeper(lambda held: release(held))
_spent: dict[str, tuple[str, float]] = {}
"""Interview -> turn and seconds spent on it when its tab was closed."""


def scenarios() -> Scenarios:
    """Return the scenarios that interviews are chosen from."""
    return load_scenarios()


def begin(spec: Spec, tab: str) -> Held:
    """Begin an interview in a tab. Raises SessionError."""
    return _hold(Session.start(spec, scenarios()), tab)


def take(session_id: str, tab: str, patience_s: float | None = None) -> Held:
    """Return the interview for a tab, opened if necessary. Raises SessionError, also if another tab has it."""
    try:
        held = HELD.take(session_id, tab, patience_s)
    except OpenElsewhere:
        raise SessionError(
            "this session is open in another terminal or tab", "go on there, or close it first"
        ) from None
    return _hold(Session.open(session_id, scenarios()), tab) if held is None else held


def _hold(session: Session, tab: str) -> Held:
    held = Held(session, tab)
    drawings = [note for note in session.notes if note["note"] == "drawing" and note.get("strokes")]
    held.drawing = list(drawings[-1]["strokes"]) if drawings else []
    if session.turn is not None:
        turn, spent = _spent.pop(session.spec.id, ("", 0.0))
        held.clock.show(session.turn.id, spent if turn == session.turn.id else 0.0)
    return HELD.hold(session.spec.id, held)


def release(held: Held) -> None:
    """Close an interview's file and end its runs. It can be continued anywhere."""
    HELD.drop(held.session.spec.id, held)
    if held.session.turn is not None:
        with suppress(OSError, AssertionError):
            held.keep_drawing()
        gone = 0.0 if held.left_at is None or held.clock.is_paused else time.monotonic() - held.left_at
        _spent[held.session.spec.id] = (held.turn.id, max(0.0, held.clock.seconds - gone))
    if held.job is not None:
        held.job.stop()
    held.runner.close()
    held.session.close()
