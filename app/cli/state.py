"""`prep state`: export, import, rebuild, back up and reset the file with your answers."""

from __future__ import annotations

import datetime as dt
import shlex
from pathlib import Path
from typing import Annotated

import typer

from app.cli import terminal
from app.cli.options import JsonOption, argument, option
from prep_common.paths import state_path
from prep_common.text import counted
from prep_common.text_file import unreadable
from quizzes.learning.review import cards
from quizzes.state import State, StateDamaged, StateError, archive
from quizzes.state.backup import backups, by_hand, is_sound, set_aside
from quizzes.state.schema import FACTS, SCHEMA


def where(json: JsonOption = False) -> None:
    """Show the file and its contents. PREP_HOME=FOLDER moves it.

    Example: prep state where
    """
    path = state_path()
    if not path.exists():
        if json:
            terminal.print_json({"path": str(path), "exists": False})
        else:
            terminal.say(f"{path}\n[dim]does not exist yet; your first answer creates it[/]", whole=True)
            terminal.next_command("prep quiz")
        return
    with State.open_to_read() as opened:
        counts = {table: opened.count(table) for table in FACTS}
        # A second row holds the verdict.
        counts["vote"] = sum(vote.verdict is None for vote in opened.votes())
    copies = backups(path)
    if json:
        kept = [str(copy) for copy in copies]
        place = {"path": str(path), "exists": True, "bytes": path.stat().st_size}
        return terminal.print_json({**place, "schema": SCHEMA, "facts": counts, "backups": kept})
    terminal.say(terminal.literal(path), whole=True)
    names = {"attempt": "answer", "session": "sitting", "run": "run", "vote": "vote"}
    answers, *others = (counted(counts[name], noun) for name, noun in names.items())
    size = f"{path.stat().st_size / 1024:,.0f} KiB"
    terminal.out().print(f"[dim]schema {SCHEMA}, {size}: {answers} in {', '.join(others)}[/]")
    backed_up = "no copies yet"
    if copies:
        newest = dt.datetime.fromtimestamp(copies[0].stat().st_mtime)
        number = counted(len(copies), "copy")
        backed_up = f"{number} in {copies[0].parent}, the newest of {newest:%Y-%m-%d %H:%M}"
    terminal.say(f"[dim]{backed_up}[/]", whole=True)
    terminal.next_command("prep state export my-answers.zip", "to continue on another machine")


def export(
    file: Annotated[Path, argument("Path of a new zip file.", metavar="FILE")], json: JsonOption = False
) -> None:
    """Write all your answers to a zip file: a manifest and one JSONL file per table.

    Example: prep state export my-answers.zip
    """
    from app.cli.doctor import version_of

    if file.exists():
        raise terminal.Problem(f"{file} exists", "choose another name, or remove it first")
    with State.open_to_read() as opened:
        counts = archive.export(opened, file, version_of() or "")
    if json:
        return terminal.print_json({"file": str(file), "facts": counts})
    what = f"{counted(counts['attempt'], 'answer')}, {counted(sum(counts.values()), 'record')} in total"
    terminal.say(f"{terminal.mark(True)} {what} -> {file}", whole=True)
    terminal.next_command(f"prep state import {file.name}", "on the other machine")


def import_(
    file: Annotated[Path, argument("An export, or a copy of a state file.", metavar="FILE")],
    json: JsonOption = False,
) -> None:
    """Add the records of FILE that are missing here. Importing twice is idempotent and never removes a record.

    Example: prep state import my-answers.zip
    """
    try:
        file.open("rb").close()
    except OSError as error:
        raise terminal.Problem(
            str(unreadable(file, error)), "prep state export FILE   makes an export"
        ) from None
    with State.open() as opened:
        imported = archive.import_(opened, file)
        known = cards(opened)
    if json:
        return terminal.print_json({"added": imported.added, "known": imported.known, "cards": len(known)})
    terminal.out().print(
        f"{terminal.mark(True)} {counted(imported.added['attempt'], 'answer')} added, "
        f"{imported.known['attempt']:,} present; {counted(len(known), 'card')}"
    )
    terminal.next_command("prep today", "shows what is due")


def rebuild(json: JsonOption = False) -> None:
    """Recompute review cards and statistics from the answers.

    Example: prep state rebuild
    """
    with State.open() as opened:
        before = cards(opened)
        opened.drop_derived()
        after = cards(opened)
        attempts = opened.count("attempt")
    changed = sum(before.get(name) != card for name, card in after.items())
    changed += len(before.keys() - after.keys())
    if json:
        return terminal.print_json({"answers": attempts, "cards": len(after), "changed": changed})
    made = f"{counted(len(after), 'card')} from {counted(attempts, 'answer')}"
    terminal.out().print(f"{terminal.mark(True)} {made}, changed: {changed}")
    terminal.next_command("prep today")


def backup(json: JsonOption = False) -> None:
    """Copy the file and list all copies. Each day of practice makes one copy; the last seven are kept.

    Example: prep state backup
    """
    path = state_path()
    problem: StateError | None = None
    made: Path | None = None
    if path.exists():
        try:
            with State.open() as opened:
                made = by_hand(opened.connection, path, dt.datetime.now())
        except StateError as error:  # list the copies anyway: the learner needs them now
            problem = error
    copies = backups(path)
    if json:
        terminal.print_json({"made": str(made) if made else None, "backups": [str(copy) for copy in copies]})
    else:
        for copy in copies:
            sign = terminal.mark(True) if copy == made else " "
            when = dt.datetime.fromtimestamp(copy.stat().st_mtime)
            size = f"{copy.stat().st_size / 1024:>8,.0f} KiB"
            terminal.say(f"{sign} {when:%Y-%m-%d %H:%M}  {size}  {copy}", whole=True)
        if not copies:
            terminal.out().print("no copies yet" + (": you have no answers" if problem is None else ""))
    if problem is not None:
        terminal.tell_error(str(problem), "" if isinstance(problem, StateDamaged) else problem.next_step)
        if isinstance(problem, StateDamaged):
            again = f" && prep state import {shlex.quote(str(copies[0]))}" if copies else ""
            terminal.next_command(
                f"prep state reset --yes{again}", "the damaged file is renamed, not deleted"
            )
        raise typer.Exit(terminal.ENVIRONMENT)
    if not json:
        terminal.next_command("prep state export my-answers.zip", "to keep a copy on another disk")


def reset(yes: Annotated[bool, option("Confirm.", "--yes")] = False, json: JsonOption = False) -> None:
    """Start with no answers. The old file is renamed, not deleted.

    Example: prep state reset --yes
    """
    path = state_path()
    if not path.exists():
        raise terminal.Problem(f"there is no state file at {path}", "prep quiz", code=terminal.CHECKS_FAILED)
    if not yes:
        raise terminal.Problem(f"this renames {path} and starts with no answers", "prep state reset --yes")
    target = set_aside(path, dt.datetime.now())
    if json:
        return terminal.print_json({"moved_to": str(target)})
    terminal.say(f"{terminal.mark(True)} moved to {terminal.literal(target)}", whole=True)
    undo = f"to undo: prep state import {shlex.quote(str(target))}" if is_sound(target) else ""
    terminal.next_command("prep start", undo)


HELP = "Manage the file with your answers. Review cards and statistics are computed from it."
state = terminal.command_app(where, export, import_, rebuild, backup, reset, help=HELP)
