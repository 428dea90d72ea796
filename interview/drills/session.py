"""A drill that is being held: its runs, looks, hypothesis, fix and score. The learner's state gets a line per event.

    session = Session.start(drill)
    session.run_healthy(tell)
    session.run_faulty(tell)
    session.look("queue")
    session.guess("seqs_too_high", 85, ["preemptions"])
    session.fix(1, tell)
    session.end()

A session that was interrupted stays readable: `report` shows it as far as it went.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TextIO

from engine.config import ConfigError
from interview.drills import looks
from interview.drills.applies import figures_of_drill
from interview.drills.commands import is_right_fix
from interview.drills.drill import Change, Drill, Fix, Load, Stage, find_drill
from interview.drills.figures import FIGURES, LOOKS, Figures
from interview.drills.measure import figures, good_share
from interview.drills.running import Record, Tell, run
from interview.drills.score import MOST_NAMED, Guess, Score, score
from prep_common.paths import data_dir
from quizzes.yaml_files import UnknownId

FORMAT = 1
MINUTES = 15.0
"""Time to find the cause, by default."""
Runs = Callable[[Stage, Load, Tell], Record]


class NoSession(ValueError):
    """Raised for an unknown session."""


@dataclass(frozen=True)
class Result:
    """A run, in figures."""

    figures: Figures
    good: float
    is_met: bool


def folder() -> Path:
    return data_dir() / "drills"


class Session:
    """One drill of one learner."""

    def __init__(self, drill: Drill, path: Path, minutes: float = MINUTES, runs: Runs = run) -> None:
        """minutes: time for looks, from the end of the faulty run. runs: runs a stage under its load."""
        self.drill, self.path, self.id = drill, path, path.stem
        self.minutes, self._runs = minutes, runs
        self._began = dt.datetime.now()
        self._deadline: float | None = None
        self._stopped: float | None = None
        """When the clock was stopped, while a load runs again."""
        self._lock: TextIO | None = None
        self.before: Record | None = None
        self.record: Record | None = None
        self.healthy: Result | None = None
        self.faulty: Result | None = None
        self.looked: list[str] = []
        self.guesses: list[Guess] = []
        """Every statement of the cause, in order."""
        self.is_late = False
        """Whether a fix had worked before the cause was stated."""
        self.fixed: tuple[str, Result] | None = None
        self.num_fixes = 0
        self.helped_by: int | None = None
        """Fixes tried when one helped: it met the objective, or is one that the drill's proof names."""

    @classmethod
    def start(cls, drill: Drill, minutes: float = MINUTES, runs: Runs = run) -> Self:
        """Begin a session and its file. Raises OSError if it cannot be written."""
        moment = dt.datetime.now().strftime("%Y%m%d-%H%M%S")
        path = folder() / f"{moment}-{drill.code}.jsonl"
        number = 1
        while path.exists():
            number += 1
            path = folder() / f"{moment}-{drill.code}-{number}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        session = cls(drill, path, minutes, runs)
        session._lock = path.open("a", encoding="utf-8")
        with suppress(OSError):  # a file system without locks
            fcntl.flock(session._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        session._write("start", format=FORMAT, drill=drill.id, level=drill.level)
        return session

    @property
    def guessed(self) -> Guess | None:
        """Return the last statement of the cause."""
        return self.guesses[-1] if self.guesses else None

    @property
    def cost(self) -> int:
        """Return the cost of the looks so far."""
        return sum(LOOKS[name].cost for name in self.looked)

    @property
    def seconds(self) -> float:
        return (dt.datetime.now() - self._began).total_seconds()

    @property
    def seconds_left(self) -> float:
        """Return the time left for looks."""
        if self._deadline is None:
            return 60 * self.minutes
        return max(0.0, self._deadline - (self._stopped or time.monotonic()))

    def run_healthy(self, tell: Tell) -> Result:
        """Run the healthy twin, once more if it misses its objective: the figures of yesterday.

        Raises ConfigError if it misses it twice: on a busy machine the faulty run would have two causes.
        """
        self.before, self.healthy = self._run("healthy", [], tell)
        if not self.healthy.is_met:
            tell("the healthy server missed its own objective; once more")
            self.before, self.healthy = self._run("healthy", [], tell)
        if not self.healthy.is_met:
            raise ConfigError(
                f"the healthy server misses its own objective ({self.healthy.good:.0%} of its requests are good, "
                f"{self.drill.objective.share:.0%} are needed): this machine is too busy for a drill; end other "
                "programs and start again"
            )
        return self.healthy

    def run_faulty(self, tell: Tell) -> Result:
        """Run the faulty stage, which all looks show. Then the time begins."""
        self.record, self.faulty = self._run("faulty", [self.drill.fault], tell)
        self._deadline = time.monotonic() + 60 * self.minutes
        return self.faulty

    def look(self, name: str) -> list[str]:
        """Return the lines of a look. It is paid once. Raises ConfigError for an unknown one, or when time is over."""
        if name not in LOOKS:
            raise ConfigError(f"no look is called {name!r}; looks are {', '.join(LOOKS)}")
        assert self.record and self.faulty and self.healthy
        if name not in self.looked:
            if not self.seconds_left:
                raise ConfigError("the time is over: state your hypothesis, apply a fix, or end the drill")
            self.looked.append(name)
            self._write("look", name=name, cost=LOOKS[name].cost)
        among = figures_of_drill(self.drill.id)
        return looks.look(name, self.record, self.faulty.figures, self.healthy.figures, among)

    def guess(self, cause: str, confidence: int, evidence: list[str]) -> None:
        """State the cause, the confidence in percent and at most MOST_NAMED deciding figures.

        The first statement counts in full; a right one after it, and one after a fix has worked, for less
        (`interview.drills.score`). Raises ConfigError.
        """
        has_worked = self.fixed is not None and self.fixed[1].is_met
        if has_worked and self.guessed is not None:
            raise ConfigError("a fix has met the objective, so the cause that you stated before it stands")
        if cause not in self.drill.hypotheses:
            raise ConfigError(
                f"{cause!r} is not a hypothesis of this drill; use one of {', '.join(self.drill.hypotheses)}"
            )
        if not 1 <= confidence <= 99:
            raise ConfigError(f"the confidence is 1 to 99 percent, got {confidence}")
        if not evidence:
            raise ConfigError("name the figures that decide, as a look shows them")
        if wrong := [name for name in evidence if name not in FIGURES]:
            raise ConfigError(f"no figure is called {wrong[0]!r}; take names from the looks")
        if len(evidence) > MOST_NAMED:
            raise ConfigError(f"name at most {MOST_NAMED} figures that decide, got {len(evidence)}")
        self.guesses.append(Guess(cause, confidence, evidence))
        self.is_late = has_worked
        self._write("hypothesis", cause=cause, confidence=confidence, evidence=evidence)

    def fix(self, wanted: int | str, tell: Tell) -> Result:
        """Apply a fix to the faulty stage and run the same load again; the clock stands still. Raises ConfigError.

        wanted: the number of a fix of the drill, or options such as "max-num-seqs=8". A right fix earns its points
        also if the objective stays missed, as on a busy machine: the drill's proof shows that it helps.
        """
        change, words = self._change(wanted), self.words_of(wanted)
        is_right = is_right_fix(self.drill, change)
        self._stopped = time.monotonic()
        try:
            _, result = self._run("fix", [self.drill.fault, change], tell, fix=words, is_right=is_right)
        finally:
            if self._deadline is not None:
                self._deadline += time.monotonic() - self._stopped
            self._stopped = None
        self.num_fixes += 1
        if self.helped_by is None and (result.is_met or is_right):
            self.helped_by = self.num_fixes
        if self.fixed is None or not self.fixed[1].is_met:
            self.fixed = (words, result)
        return result

    def end(self) -> Score:
        """Score the session."""
        result = score(
            self.drill, self.looked, self.guesses, self.helped_by, self.seconds, is_late=self.is_late
        )
        self._write("end", **asdict(result))
        self.close()
        return result

    def close(self) -> None:
        """Let go of the session: from now on `is_held` says no."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def words_of(self, wanted: int | str) -> str:
        """Return a fix in words. Raises ConfigError for a wrong one."""
        change = self._change(wanted)
        return change.say if isinstance(change, Fix) else str(wanted)

    def _change(self, wanted: int | str) -> Change:
        if isinstance(wanted, int):
            if not 1 <= wanted <= len(self.drill.fixes):
                raise ConfigError(f"fixes are numbered 1 to {len(self.drill.fixes)}, got {wanted}")
            return self.drill.fixes[wanted - 1]
        settings: dict[str, Any] = {}
        for part in wanted.replace(",", " ").split():
            match = re.fullmatch(r"-*([a-z][a-z-]+)=([\w.:-]+)", part)
            if match is None:
                raise ConfigError(f"a fix is a number, or options such as max-num-seqs=8; got {part!r}")
            name, value = match.groups()
            if name in FORBIDDEN:
                raise ConfigError(f"{name} belongs to the drill; choose another option")
            settings[name] = {"true": True, "false": False}.get(value, value)
        return Change(set=settings)

    def _run(self, kind: str, changes: list[Change], tell: Tell, **more: Any) -> tuple[Record, Result]:
        stage, load = self.drill.changed(*changes)
        record = self._runs(stage, load, tell)
        good = good_share(record, load, self.drill.objective)
        result = Result(figures(record, load), round(good, 3), self.drill.is_met(good))
        self._write(kind, good=result.good, is_met=result.is_met, figures=result.figures, **more)
        return record, result

    def _write(self, event: str, **fields: Any) -> None:
        entry = {"at": dt.datetime.now().isoformat(timespec="seconds"), "event": event, **fields}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


FORBIDDEN = ("port", "host", "request-log", "stats-interval", "api-key", "served-model-name")


def read(session_id: str) -> list[dict[str, Any]]:
    """Return the events of a session, or of a drill's newest. Raises NoSession."""
    names = sessions()
    with suppress(UnknownId):
        session_id = find_drill(session_id).code
    matches = [name for name in names if name == session_id or name.endswith(f"-{session_id}")]
    if not matches:
        known = (
            f"sessions are {', '.join(names[:5])}" if names else "none is kept; prep drill start begins one"
        )
        raise NoSession(f"no session of a drill is called {session_id!r}; {known}")
    events = []
    for line in (folder() / f"{matches[0]}.jsonl").read_text(encoding="utf-8").splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            break  # cut off by a crash
    if not events or events[0].get("format") != FORMAT:
        raise NoSession(f"the file of {matches[0]} is damaged, or of another version")
    find_drill(events[0]["drill"])
    return events


def is_held(session_id: str) -> bool:
    """Return whether a process holds this session now, such as a terminal with `prep drill start`."""
    with (folder() / f"{session_id}.jsonl").open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False


def sessions() -> list[str]:
    """Return the ids of all sessions, the newest first."""
    return sorted((path.stem for path in folder().glob("*.jsonl")), reverse=True)
