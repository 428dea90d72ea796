"""Choose what to begin or continue: sessions by name, options of a new one, defaults from the settings."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from app.cli import terminal
from app.cli.mock import showing
from app.cli.mock.floor import Floor, clock_time
from app.cli.options import JsonOption, ScriptOption, argument, option
from app.cli.quiz.dialogue import Quit, Skip
from app.cli.quiz.start import drawn, open_bank, open_state
from quizzes.state import State, StateError
from quizzes.topics import ROLES, resolve

if TYPE_CHECKING:
    from interview.mock.scenario_list import Scenarios
    from interview.mock.session import Saved
    from interview.mock.talk import Spec

MINUTES = (20, 45, 60)
SessionArgument = Annotated[
    str | None, argument("A session of prep mock list; default: the last one.", metavar="[ID]")
]


@dataclass(frozen=True)
class Wanted:
    """Options of a new session."""

    role: Annotated[str | None, option("inference, kernel, platform, sre or applied.")] = None
    level: Annotated[str | None, option("mid, senior or staff.")] = None
    minutes: Annotated[int | None, option("20, 45 or 60.")] = None
    scenario: Annotated[
        str | None, option("Id of a scenario; prep mock scenarios lists them.", metavar="ID")
    ] = None
    coach: Annotated[bool, option("Show verdicts at once, not only in the report.", "--coach")] = False
    seed: Annotated[int | None, option("The same seed gives the same interview.")] = None
    script: ScriptOption = None
    json: JsonOption = False


def find(name: str) -> Saved:
    """Return a session by its id or the end of it, as prep mock list shows it. Raises Problem."""
    from interview.mock.session import SessionError, folder, read

    ids = sorted((path.stem for path in folder().glob("*.jsonl")), reverse=True)
    matches = [
        session_id
        for session_id in ids
        if name.strip().upper() and session_id.upper().endswith(name.strip().upper())
    ]
    if len(matches) != 1:
        which = "no session is" if not matches else f"{len(matches)} sessions are"
        raise terminal.Problem(f"{which} called {name!r}", "prep mock list   shows all sessions")
    try:
        return read(matches[0])
    except SessionError as error:
        raise terminal.Problem(str(error), error.next_step) from None


def short(session_id: str) -> str:
    """Return the end of a session's id, which is enough to name it."""
    return session_id[-6:].lower()


def specify(wanted: Wanted) -> Spec:
    """Return what a new session begins with. Raises Problem."""
    from interview.mock.choose import DAYS, choose, is_repeat
    from interview.mock.scenario import LEVELS
    from interview.mock.session import sessions

    scenarios = load()
    entry = None
    if wanted.scenario is not None:
        scenarios.scenario(wanted.scenario)
        entry = scenarios.entries[wanted.scenario]
    role, level = defaults()
    role = resolve("role", wanted.role or (entry.role if entry else role), ROLES)
    level = resolve("level", wanted.level or (entry.level if entry else level), dict.fromkeys(LEVELS, ""))
    minutes = wanted.minutes or 45
    if minutes not in MINUTES:
        raise terminal.Problem(f"--minutes is 20, 45 or 60, not {minutes}")
    is_fixed = wanted.seed is not None  # the seed alone chooses
    past = [] if is_fixed else sessions()
    spec = choose(
        scenarios,
        open_bank(),
        past,
        role=role,
        level=level,
        minutes=minutes,
        seed=drawn(wanted.seed),
        scenario=wanted.scenario,
        coach=wanted.coach,
        seen=frozenset() if is_fixed else _seen(DAYS),
    )
    if wanted.scenario is None and is_repeat(spec, past):
        terminal.note("[dim]you had every scenario within 30 days; this one comes again with new numbers[/]")
    return spec


def load() -> Scenarios:
    """Load the scenarios. Broken files are reported and left out. Raises Problem if none is left."""
    from interview.mock.scenario_list import load_scenarios

    scenarios = load_scenarios()
    for problem in scenarios.problems[:3]:
        terminal.note(f"[yellow]left out:[/] {terminal.literal(problem)}")
    if not len(scenarios):
        raise terminal.Problem("there are no scenarios", "prep doctor", code=terminal.ENVIRONMENT)
    return scenarios


def _seen(days: int) -> frozenset[str]:
    since = dt.datetime.now(dt.UTC) - dt.timedelta(days=days)
    try:
        with State.open_to_read() as state:
            return frozenset(attempt.question_id for attempt in state.attempts(since=since))
    except StateError:  # told by `defaults`
        return frozenset()


def open_ones() -> list[Saved]:
    """Return the sessions that can be continued, the newest first."""
    from interview.mock.session import sessions

    return [saved for saved in sessions() if saved.can_go_on]


def describe(saved: Saved) -> str:
    """Return one line about a session."""
    from interview.mock.scenario import role_name

    spec = saved.spec
    when = dt.datetime.fromisoformat(spec.started).astimezone()
    who = f"{role_name(spec.role)}, {spec.level}"
    return f"{when:%d %b %H:%M}, {who}, {clock_time(saved.elapsed)} of {spec.minutes}:00 (session {short(spec.id)})"


def defaults() -> tuple[str, str]:
    """Return role and level from the settings."""
    from interview.mock.scenario import LEVELS

    with open_state() as state:
        role, level = state.settings.role, state.settings.level
    level = "mid" if level == "junior" else level
    return (role if role in ROLES else "inference"), (level if level in LEVELS else "senior")  # type: ignore[return-value]


def ask_for(floor: Floor, wanted: Wanted) -> Wanted:
    """Ask for role, level and minutes; Enter takes the default. Raises Quit."""
    from interview.mock.scenario import LEVELS

    role, level = defaults()
    known = {
        "role": (role, tuple(ROLES)),
        "level": (level, LEVELS),
        "minutes": ("45", tuple(map(str, MINUTES))),
    }
    given: dict[str, str] = {}
    for name, (default, values) in known.items():
        while name not in given:
            try:
                line = floor.read(f" {name}: {', '.join(values)} [{default}] > ")
            except Skip:
                line = ""
            if line.lower() in ("q", ":q"):
                raise Quit
            try:
                given[name] = resolve(name, line or default, dict.fromkeys(values, ""))
            except ValueError as error:
                showing.warning(str(error))
    return replace(wanted, role=given["role"], level=given["level"], minutes=int(given["minutes"]))
