"""`prep state`: export, import, rebuild, back up and reset the file with your answers."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli import terminal
from app.cli.settings import JsonOption
from common.text import counted

app = terminal.command_app(no_args_is_help=True)


@app.callback()
def state() -> None:
    """Manage the file with your answers. Review cards and statistics are computed from it."""


@app.command()
def where(json: JsonOption = False) -> None:
    """Show the file and its contents. PREP_HOME=FOLDER moves it.

    Example: prep state where
    """
    from common.paths import state_path
    from quizzes.state import State
    from quizzes.state.backup import backups
    from quizzes.state.schema import FACTS, SCHEMA

    path = state_path()
    if not path.exists():
        if json:
            terminal.print_json({"path": str(path), "exists": False})
        else:
            terminal.out().print(
                f"{path}\n[dim]does not exist yet; your first answer creates it[/]", soft_wrap=True
            )
            terminal.next_command("prep quiz")
        return
    with State.open() as opened:
        counts = {table: opened.count(table) for table in FACTS}
        counts["vote"] = sum(
            vote.verdict is None for vote in opened.votes()
        )  # a second row holds the verdict
    copies = backups(path)
    if json:
        terminal.print_json(
            {
                "path": str(path),
                "exists": True,
                "bytes": path.stat().st_size,
                "schema": SCHEMA,
                "facts": counts,
                "backups": [str(copy) for copy in copies],
            }
        )
        return
    console = terminal.out()
    console.print(terminal.literal(path), soft_wrap=True)
    console.print(
        f"[dim]schema {SCHEMA}, {path.stat().st_size / 1024:,.0f} KiB: {counted(counts['attempt'], 'answer')} in "
        f"{counted(counts['session'], 'sitting')}, {counted(counts['run'], 'run')}, "
        f"{counted(counts['vote'], 'vote')}[/]"
    )
    console.print(f"[dim]{_copies(copies)}[/]", soft_wrap=True)
    terminal.next_command("prep state export my-answers.zip", "to continue on another machine")


@app.command()
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Path of a new zip file.")],
    json: JsonOption = False,
) -> None:
    """Write all your answers to a zip file: a manifest and one JSONL file per table.

    Example: prep state export my-answers.zip
    """
    from app.cli.version import version_of
    from quizzes.state import State, archive

    if file.exists():
        raise terminal.Problem(f"{file} exists", next_step="choose another name, or remove it first")
    with State.open() as opened:
        counts = archive.export(opened, file, version_of("prep-workbench") or "")
    if json:
        terminal.print_json({"file": str(file), "facts": counts})
        return
    terminal.out().print(
        f"{terminal.mark(True)} {counted(counts['attempt'], 'answer')}, "
        f"{counted(sum(counts.values()), 'record')} in total -> {file}",
        soft_wrap=True,
    )
    terminal.next_command(f"prep state import {file.name}", "on the other machine")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An export, or a copy of a state file.")],
    json: JsonOption = False,
) -> None:
    """Add the records of FILE that are missing here. Importing twice is idempotent and never removes a record.

    Example: prep state import my-answers.zip
    """
    from quizzes.learning.review import cards
    from quizzes.state import State, archive

    with State.open() as opened:
        imported = archive.import_(opened, file)
        known = cards(opened)
    if json:
        terminal.print_json({"added": imported.added, "known": imported.known, "cards": len(known)})
        return
    terminal.out().print(
        f"{terminal.mark(True)} {counted(imported.added['attempt'], 'answer')} added, "
        f"{imported.known['attempt']:,} present; {counted(len(known), 'card')}"
    )
    terminal.next_command("prep today", "shows what is due")


@app.command()
def rebuild(json: JsonOption = False) -> None:
    """Recompute review cards and statistics from the answers.

    Example: prep state rebuild
    """
    from quizzes.learning.review import cards
    from quizzes.state import State

    with State.open() as opened:
        before = cards(opened)
        opened.drop_derived()
        after = cards(opened)
        attempts = opened.count("attempt")
    changed = sum(before.get(name) != card for name, card in after.items()) + len(
        before.keys() - after.keys()
    )
    if json:
        terminal.print_json({"answers": attempts, "cards": len(after), "changed": changed})
        return
    terminal.out().print(
        f"{terminal.mark(True)} {counted(len(after), 'card')} from {counted(attempts, 'answer')}, "
        f"changed: {changed}"
    )
    terminal.next_command("prep today")


@app.command()
def backup(json: JsonOption = False) -> None:
    """Copy the file and list all copies. Each day of practice makes one copy; the last seven are kept.

    Example: prep state backup
    """
    from common.paths import state_path
    from quizzes.state import State, StateError
    from quizzes.state.backup import backups, by_hand

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
        console = terminal.out()
        for copy in copies:
            sign = terminal.mark(True) if copy == made else " "
            when = dt.datetime.fromtimestamp(copy.stat().st_mtime)
            console.print(
                f"{sign} {when:%Y-%m-%d %H:%M}  {copy.stat().st_size / 1024:>8,.0f} KiB  {copy}",
                soft_wrap=True,
            )
        if not copies:
            console.print("no copies yet: you have no answers")
    if problem is not None:
        terminal.tell_error(str(problem))
        first = copies[0] if copies else "EXPORT.zip"
        terminal.next_command(f"prep state reset --yes && prep state import {first}")
        raise typer.Exit(terminal.ENVIRONMENT)
    if not json:
        terminal.next_command("prep state export my-answers.zip", "to keep a copy on another disk")


@app.command()
def reset(
    yes: Annotated[bool, typer.Option("--yes", help="Confirm.")] = False, json: JsonOption = False
) -> None:
    """Start with no answers. The old file is renamed, not deleted.

    Example: prep state reset --yes
    """
    from common.paths import state_path
    from quizzes.state.backup import set_aside

    path = state_path()
    if not path.exists():
        raise terminal.Problem(
            f"there is no state file at {path}", next_step="prep quiz", code=terminal.CHECKS_FAILED
        )
    if not yes:
        raise terminal.Problem(
            f"this renames {path} and starts with no answers", next_step="prep state reset --yes"
        )
    target = set_aside(path, dt.datetime.now())
    if json:
        terminal.print_json({"moved_to": str(target)})
        return
    terminal.out().print(f"{terminal.mark(True)} moved to {terminal.literal(target)}", soft_wrap=True)
    terminal.next_command("prep start", f"to undo: prep state import {target}")


def _copies(copies: list[Any]) -> str:
    if not copies:
        return "no copies yet"
    newest = dt.datetime.fromtimestamp(copies[0].stat().st_mtime)
    return f"{counted(len(copies), 'copy', 'copies')} in {copies[0].parent}, the newest of {newest:%Y-%m-%d %H:%M}"
