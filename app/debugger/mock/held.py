"""Interviews that are open in this server's tabs: one tab each, with its clock, its runs and its drawing.

A reloaded tab takes its interview back at the same turn. A few seconds after a tab was closed, its interview is
released, so that a terminal or another tab can continue it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from streamlit import runtime

from interview.mock.scenario_list import Scenarios, load_scenarios
from interview.mock.session import Session, SessionError
from interview.mock.talk import Asked, Spec
from interview.mock.turns import Mark, Rate, RunExperiment, Turn
from quizzes.experiments.runner import Runner

PATIENCE_S = 2.0
"""Seconds that a new tab waits for the old one to close: a reload opens the new connection first, sometimes."""
LEFT_S = 10.0
"""Seconds after which the interview of a closed tab is released."""
LOOK_S = 1.0


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


class Job:
    """Work in a thread, such as a run of an experiment. The page polls it."""

    def __init__(self, turn: str, work: Callable[[], Any], stop: Callable[[], None] | None = None) -> None:
        self.turn = turn
        self.began = time.monotonic()
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_stopped = False
        self._stop = stop
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self.result = work()
        except BaseException as error:
            self.error = error

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def stop(self, limit_s: float = 5.0) -> None:
        """End the work. A worker that is just starting is ended again, until the thread has given up."""
        self.is_stopped = True
        until = time.monotonic() + limit_s
        while self._stop is not None and not self.is_done and time.monotonic() < until:
            with suppress(Exception):
                self._stop()
            self._thread.join(0.1)

    def wait(self, limit_s: float) -> None:
        """Wait a moment: quick work needs no progress bar."""
        self._thread.join(limit_s)


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
        return next(each for each in reversed(self.session.talk.asked) if each.key == key)

    @property
    def is_timed(self) -> bool:
        """Return whether the present turn is the candidate's time: runs, marks and the own rating are not."""
        return self.session.turn is not None and not isinstance(self.turn.want, RunExperiment | Mark | Rate)

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


_lock = threading.Lock()
_held: dict[str, Held] = {}
_spent: dict[str, tuple[str, float]] = {}
"""Interview -> turn and seconds spent on it when its tab was closed."""
_watcher: threading.Thread | None = None


def scenarios() -> Scenarios:
    """Return the scenarios that interviews are chosen from."""
    return load_scenarios()


def is_open(tab: str) -> bool:
    """Return whether a tab of this server is connected."""
    return bool(runtime.exists() and runtime.get_instance().is_active_session(tab))


def begin(spec: Spec, tab: str) -> Held:
    """Begin an interview in a tab. Raises SessionError."""
    return _hold(Session.start(spec, scenarios()), tab)


def take(session_id: str, tab: str, patience_s: float = PATIENCE_S) -> Held:
    """Return the interview for a tab, opened if necessary. Raises SessionError, also if another tab has it."""
    until = time.monotonic() + patience_s
    while True:
        with _lock:
            found = _held.get(session_id)
            if found is not None and (found.owner == tab or not is_open(found.owner)):
                found.owner, found.left_at = tab, None
                return found
        if found is None:
            return _hold(Session.open(session_id, scenarios()), tab)
        if time.monotonic() >= until:
            raise SessionError(
                "this session is open in another terminal or tab", "go on there, or close it first"
            )
        time.sleep(0.1)


def _hold(session: Session, tab: str) -> Held:
    held = Held(session, tab)
    drawings = [note for note in session.notes if note["note"] == "drawing" and note.get("strokes")]
    held.drawing = list(drawings[-1]["strokes"]) if drawings else []
    if session.turn is not None:
        turn, spent = _spent.pop(session.spec.id, ("", 0.0))
        held.clock.show(session.turn.id, spent if turn == session.turn.id else 0.0)
    with _lock:
        _held[session.spec.id] = held
    _watch()
    return held


def release(held: Held) -> None:
    """Close an interview's file and end its runs. It can be continued anywhere."""
    with _lock:
        if _held.get(held.session.spec.id) is held:
            del _held[held.session.spec.id]
    if held.session.turn is not None:
        with suppress(OSError, AssertionError):
            held.keep_drawing()
        gone = 0.0 if held.left_at is None or held.clock.is_paused else time.monotonic() - held.left_at
        _spent[held.session.spec.id] = (held.turn.id, max(0.0, held.clock.seconds - gone))
    if held.job is not None:
        held.job.stop()
    held.runner.close()
    held.session.close()


def _watch() -> None:
    """Release the interviews of closed tabs, in a thread that lives while there are any."""
    global _watcher
    with _lock:
        if _watcher is None or not _watcher.is_alive():
            _watcher = threading.Thread(target=_look, daemon=True)
            _watcher.start()


def _look() -> None:
    global _watcher
    while True:
        time.sleep(LOOK_S)
        with _lock:
            held = list(_held.values())
            if not held:
                _watcher = None
                return
        release_left(held)


def release_left(held: list[Held], now: float | None = None) -> None:
    """Stop the clock of closed tabs, and release their interviews a little later."""
    now = time.monotonic() if now is None else now
    for each in held:
        if is_open(each.owner):
            each.left_at = None
        elif each.left_at is None:
            each.left_at = now
        elif now - each.left_at >= LEFT_S:
            release(each)
