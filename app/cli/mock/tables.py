"""`prep mock list` and `scenarios`; `lint` for authors."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any

import typer

from app.cli import terminal
from app.cli.mock.choosing import load, short
from app.cli.mock.floor import clock_time
from app.cli.options import JsonOption, argument, option
from interview.mock.scenario import LEVELS, role_name
from quizzes.topics import ROLES, resolve


def list_(json: JsonOption = False) -> None:
    """List your interviews: date, role, scenario and result.

    Example: prep mock list
    """
    rows = _sessions()
    if json:
        terminal.print_json(rows)
        return
    if not rows:
        terminal.say("no interviews yet")
        terminal.next_command("prep mock")
        return
    for row in rows:
        _show(row)
    open_one = next((row for row in rows if row["state"] == "open"), None)
    over = next((row for row in rows if row["state"] == "over"), None)
    if open_one is not None:
        terminal.next_command(f"prep mock resume {short(open_one['session'])}")
    elif over is not None:
        terminal.next_command(f"prep mock report {short(over['session'])}")


def _show(row: dict[str, Any]) -> None:
    name = f"[bold]{short(row['session'])}[/]"
    if row["state"] == "unreadable":
        terminal.say(f"{name}  [yellow]unreadable:[/] {terminal.literal(row['why'])}")
        return
    started = dt.datetime.fromisoformat(row["started"]).astimezone()
    spent = f"{clock_time(row['elapsed_s'])} of {row['minutes']}:00"
    words = {"over": "over,", "open": "open at", "unfit": "does not fit this version,"}
    state = f"{words[row['state']]} {spent}"
    terminal.say(f"{name}  {started:%d %b %Y %H:%M}  {role_name(row['role'])}, {row['level']}  {state}")
    terminal.say(f"        [dim]{terminal.literal(', '.join(row['scenarios']))}[/]")
    if row["recommendation"]:
        from interview.mock.assessment import titles

        marks = " · ".join(f"{titles()[axis].lower()} {value or '-'}" for axis, value in row["marks"].items())
        terminal.say(f"        [bold]{row['recommendation']}[/]  [dim]{marks}[/]")


def _sessions() -> list[dict[str, Any]]:
    from interview.mock.session import SessionError, folder, read

    rows: list[dict[str, Any]] = []
    for path in sorted(folder().glob("*.jsonl"), reverse=True):
        try:
            saved = read(path.stem)
        except SessionError as error:
            rows.append({"session": path.stem, "state": "unreadable", "why": str(error)})
            continue
        spec = saved.spec
        recommendation, marks = _marks(spec.id) if saved.is_over else ("", {})
        rows.append(
            {
                "session": spec.id,
                **terminal.pick(spec, "started role level minutes seed coach"),
                "scenarios": list(spec.scenarios),
                "state": "over" if saved.is_over else "open" if saved.can_go_on else "unfit",
                "elapsed_s": round(saved.elapsed, 1),
                "recommendation": recommendation,
                "marks": marks,
            }
        )
    return rows


def _marks(session_id: str) -> tuple[str, dict[str, int | None]]:
    """Return the recommendation and the marks of a saved report; nothing without one."""
    from interview.mock.report import load as load_report
    from interview.mock.session import SessionError

    try:
        report = load_report(session_id)
    except SessionError:
        return "the report cannot be read", {}
    if report is None:
        return "", {}
    return report.recommendation, {row.axis: row.machine for row in report.axes}


def scenarios(
    role: Annotated[str | None, option("Only for this role.")] = None,
    json: JsonOption = False,
) -> None:
    """List the questions that an interviewer may ask: role, level, kind and title.

    Example: prep mock scenarios --role sre
    """
    wanted = resolve("role", role, ROLES) if role else None
    entries = [entry for entry in load() if wanted in (None, entry.role)]
    entries.sort(key=lambda entry: (list(ROLES).index(entry.role), LEVELS.index(entry.level), entry.id))
    if json:
        terminal.print_json([terminal.pick(entry, "id title role level kind topics") for entry in entries])
        return
    if not entries:
        raise terminal.Problem(f"there is no scenario for {wanted}", "prep mock scenarios")
    for entry in entries:
        terminal.say(f"[bold]{entry.id}[/]  [dim]{entry.level}, {entry.kind}[/]")
        terminal.say(f"    {terminal.literal(entry.title)}")
    terminal.next_command(f"prep mock --scenario {entries[0].id}")


def lint(
    ids: Annotated[list[str] | None, argument("Scenarios; default: all.", metavar="[ID]...")] = None,
    play: Annotated[bool, option("Walk whole sessions, too.", "--play")] = False,
    no_runs: Annotated[bool, option("Leave out everything that runs an experiment.", "--no-runs")] = False,
) -> None:
    """Check scenarios beyond their schema: for authors.

    Example: prep mock lint sre.noon_cliff --play
    """
    from interview.mock.lint import main
    from interview.mock.scenario_list import load_scenarios

    for name in ids or ():
        load_scenarios().scenario(name)  # an unknown name is an error, not a finding
    flags = [*(["--play"] if play else []), *(["--no-runs"] if no_runs else [])]
    if main([*(ids or []), *flags]):
        raise typer.Exit(terminal.CHECKS_FAILED)
