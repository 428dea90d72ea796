"""`prep mock`, `start` and `resume`: choose or continue a session, hold it, say how it ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from app.cli import terminal
from app.cli.mock import showing
from app.cli.mock.choosing import SessionArgument, Wanted, ask_for, describe, find, open_ones, short, specify
from app.cli.mock.floor import Floor, clock_time
from app.cli.options import JsonOption, ScriptOption, option_groups
from app.cli.quiz.dialogue import EndOfInput, Quit, Skip

if TYPE_CHECKING:
    from interview.mock.session import Saved, Session


@option_groups
def start(wanted: Wanted) -> None:
    """Begin a new interview. What you leave out comes from your settings (prep start).

    \b
    Examples:
      prep mock start
      prep mock start --role inference --level staff --minutes 60
    """
    with _silent(wanted.json) as facts:
        begin(Floor(wanted.script, quiet=wanted.json), wanted, facts)


@option_groups
def mock_(ctx: typer.Context, wanted: Wanted) -> None:
    """Continue the open interview, or begin one."""
    if ctx.invoked_subcommand is not None:
        if wanted != Wanted():
            command = f"prep mock {ctx.invoked_subcommand}"
            raise terminal.Problem(f"options come after {command}", f"{command} --help")
        return
    is_plain = wanted == replace(Wanted(), json=wanted.json)
    floor = Floor(wanted.script, quiet=wanted.json)
    with _silent(wanted.json) as facts:
        try:
            (_continue_or_begin if is_plain else begin)(floor, wanted, facts)
        except (Quit, Skip):
            terminal.next_command("prep mock")


def resume(session: SessionArgument = None, script: ScriptOption = None, json: JsonOption = False) -> None:
    """Continue an interview exactly where it stopped.

    Example: prep mock resume
    """
    saved = find(session) if session else next(iter(open_ones()), None)
    if saved is None:
        raise terminal.Problem("no interview is open", "prep mock")
    if saved.is_over:
        raise terminal.Problem("that interview is over", f"prep mock report {short(saved.spec.id)}")
    with _silent(json) as facts:
        continue_(Floor(script, quiet=json), saved, facts)


def begin(floor: Floor, wanted: Wanted, facts: dict[str, Any]) -> None:
    """Begin a session with these options; defaults come from the settings. facts: filled in for --json."""
    with problems_of_sessions():
        from interview.mock.session import Session

        with Session.start(specify(wanted)) as session:
            hold(session, floor, facts)


def continue_(floor: Floor, saved: Saved, facts: dict[str, Any]) -> None:
    """Continue a session. Raises Problem if it is open elsewhere or does not fit."""
    with problems_of_sessions():
        from interview.mock.session import Session

        with Session.open(saved.spec.id) as session:
            hold(session, floor, facts, resumed=True)


def _continue_or_begin(floor: Floor, wanted: Wanted, facts: dict[str, Any]) -> None:
    """Offer the open session; without one, or if the candidate wants a new one, ask what to begin."""
    open_one = next(iter(open_ones()), None)
    line = "n"
    if open_one is not None:
        terminal.say(f"an interview is open: {describe(open_one)}")
        line = "?"
        while line not in ("", "n"):
            line = floor.read(" Enter continues it · n begins a new one · q leaves > ").lower()
            if line in ("q", ":q"):
                raise Quit
    if open_one is not None and line == "":
        continue_(floor, open_one, facts)
    else:
        begin(floor, ask_for(floor, wanted), facts)


def hold(session: Session, floor: Floor, facts: dict[str, Any], *, resumed: bool = False) -> None:
    """Hold a session to its end, or until the candidate leaves. Ctrl-C raises KeyboardInterrupt at the end.

    Raises Problem, and deletes a new session, if standard input ends before the first reply.
    """
    from app.cli.mock.conversation import Conversation
    from app.cli.mock.replies import reply_to
    from quizzes.experiments.runner import Runner

    showing.opening(session.spec)
    interrupted, is_kept = False, True
    with Runner() as runner:
        talk = Conversation(session, floor, runner, session.path.with_suffix(""))
        if resumed:
            talk.show_where()
        try:
            talk.hold(reply_to)
        except Quit as left:
            if isinstance(left, EndOfInput) and not resumed and not session.past and not session.notes:
                session.delete()
                raise terminal.Problem(
                    "standard input ended before the first reply; the interview is not kept",
                    "prep mock in a terminal, or with --script FILE",
                ) from None
            is_kept = talk.keep()
        except KeyboardInterrupt:
            is_kept = talk.keep()
            interrupted = True
    if session.is_over:
        closing(session)
    else:
        showing.console().print()
        used = f"{clock_time(session.elapsed)} of {session.spec.minutes}:00 are used"
        if is_kept:
            showing.note(f"everything is kept; {used}")
        else:
            showing.warning(f"the disk is full: what you typed since the last answer is lost; {used}")
        terminal.next_command(f"prep mock resume {short(session.spec.id)}", "continues exactly here")
    facts.update(_facts(session))
    if interrupted:
        raise KeyboardInterrupt


def closing(session: Session) -> None:
    """Print the end of an interview that is over: its report."""
    from app.cli.mock.reporting import closing_report, show
    from interview.mock.session import SessionError

    where = showing.console()
    where.print()
    showing.rule(where)
    where.print(
        f" [bold]The interview is over.[/] {clock_time(session.elapsed)} of {session.spec.minutes}:00"
    )
    try:
        report = closing_report(session)
    except (OSError, SessionError) as error:
        raise terminal.Problem(
            f"the report cannot be written: {error}", f"prep mock report {short(session.spec.id)}"
        ) from None
    show(report)


def _facts(session: Session) -> dict[str, Any]:
    """Return how a session stands, for --json."""
    spec = session.spec
    return {
        "session": spec.id,
        "over": session.is_over,
        **terminal.pick(spec, "role level minutes seed"),
        "scenarios": list(spec.scenarios),
        "elapsed_s": round(session.elapsed, 1),
        "turn": None if session.turn is None else session.turn.id,
        "log": str(session.path),
    }


@contextmanager
def _silent(json: bool) -> Iterator[dict[str, Any]]:
    """Yield facts to fill in. json: print nothing else, and the facts at the end."""
    facts: dict[str, Any] = {}
    if not json:
        yield facts
        return
    try:
        with Path(os.devnull).open("w", encoding="utf-8") as nothing, redirect_stdout(nothing):
            yield facts
    finally:
        if facts:
            terminal.print_json(facts)


@contextmanager
def problems_of_sessions() -> Iterator[None]:
    """Tell a session that cannot be used in one line."""
    from interview.mock.session import SessionError

    try:
        yield
    except SessionError as error:
        raise terminal.Problem(str(error), error.next_step) from None
