"""Shared terminal output: consoles, marks, tables, the closing line, and errors.

Exit codes: 0 ok, 1 checks failed, 2 usage, 3 environment, 4 inconclusive, 130 interrupted.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from common.text import rough_duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

CHECKS_FAILED = 1
USAGE = 2
ENVIRONMENT = 3
INCONCLUSIVE = 4
INTERRUPTED = 130


_QUIET_S = 2.0
"""Time before the bar of a counted task appears."""


class Problem(Exception):
    """An error that the user can fix: what is wrong, why, and the next step."""

    def __init__(self, message: str, *, next_step: str = "", code: int = USAGE) -> None:
        super().__init__(message)
        self.next_step = next_step
        self.code = code


class Group(TyperGroup):
    """A command group that lists its members by their whole first sentence, not cut at the width."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        members = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, member.get_short_help_str(limit=1000)) for name, member in members if member is not None
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def command_app(**settings: Any) -> typer.Typer:
    """Return a subcommand's typer app. Its help pages are plain: at 80 columns, boxes would cut long option names."""
    return typer.Typer(
        cls=Group,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        **settings,
    )


def out() -> Console:
    """Console on stdout: results."""
    return _console(stderr=False)


def err() -> Console:
    """Console on stderr: progress and errors, so that stdout can be piped."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    # Not cached: a test runner swaps sys.stdout. No highlighting: colour is for meaning, not for every number
    return Console(stderr=stderr, highlight=False, emoji=False)


def is_live(console: Console) -> bool:
    """Whether lines can be redrawn: the terminal understands cursor movement."""
    return console.is_terminal and not console.is_dumb_terminal


def unicode_ok() -> bool:
    return (
        out().encoding.lower().startswith("utf")
    )  # not sys.stdout: inside a Live that is a proxy without one


def mark(ok: bool | None) -> str:
    """Return a coloured word or sign. Colour alone never carries the meaning. None is a warning."""
    if ok is None:
        return "[yellow]warn[/]"
    sign = ("✓" if ok else "✗") if unicode_ok() else ("ok" if ok else "x")
    return f"[green]{sign}[/]" if ok else f"[bold red]{sign}[/]"


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Show a spinner while `what` is loaded. Silent unless stderr is a terminal."""
    with status(f"loading {what}"):
        yield


@contextmanager
def status(first: str = "starting", *, lines_in_pipe: bool = False) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows what is being done, in one changing line on stderr.

    lines_in_pipe: print a line for each where stderr is no terminal; else nothing is shown there.
    """
    from rich.markup import escape

    console = err()
    if is_live(console):
        with console.status(f"[dim]{escape(first)}[/]") as line:
            yield lambda text: line.update(f"[dim]{escape(text.strip())}[/]")
    elif lines_in_pipe:
        yield lambda text: console.print(text, style="dim", markup=False)
    else:
        yield lambda text: None


def table(*headings: str, left: tuple[str, ...] = ()) -> Table:
    """Return a table in our one style: light rules, numbers to the right; the first column and `left` hold words."""
    from rich import box
    from rich.table import Table

    result = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, heading in enumerate(headings):
        result.add_column(heading, justify="left" if index == 0 or heading in left else "right")
    return result


def show(title: str, body: Table) -> None:
    """Print a heading and a table."""
    console = out()
    console.print(f"[bold]{title}[/]", soft_wrap=True)
    console.print(body)


def print_line(text: str, console: Console | None = None) -> None:
    """Print one logical line, hints as typed: wrapped between words on a terminal (no id breaks), whole in a pipe."""
    console = console or out()
    console.print(as_typed(text), soft_wrap=not console.is_terminal)


@contextmanager
def progress(total: int, what: str, *, every: float = 5.0) -> Iterator[Callable[..., None]]:
    """Yield `advance(name, done)`. On stderr: a bar on a terminal, else a line every few seconds.

    Both show how many of the `total` items are done and the time left at the pace so far. Call `advance` with the
    name of an item that begins; or with done=, however often, and nothing is shown in the first two seconds.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = err()
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    bar = Progress(*columns, console=console, transient=True) if is_live(console) else None
    task = bar.add_task(what, total=total) if bar else None
    began = last = time.monotonic()
    number = -1

    def advance(name: str = what, done: int | None = None) -> None:
        nonlocal number, last
        number = number + 1 if done is None else done
        now = time.monotonic()
        if bar is not None and task is not None:
            if done is None or now - began > _QUIET_S:
                bar.start()
                bar.update(task, description=name, completed=number)
        elif number and now - last >= every:
            last = now
            left = rough_duration((now - began) / number * (total - number))
            console.print(f"{number} of {total} {what}, about {left} left")

    try:
        yield advance
    finally:
        if bar is not None:
            bar.stop()


def literal(text: object) -> str:
    """Return text that Rich prints as it is: in paths and messages, [cuda] is no markup."""
    from rich.markup import escape

    return escape(str(text))


def next_command(command: str, why: str = "") -> None:
    """Print the last line of a screen: the one next command. On stderr, so that a pipe gets results only."""
    reason = f"  [dim]{as_typed(why)}[/]" if why else ""
    err().print(f"\n[dim]next:[/] [bold cyan]{literal(as_typed(command))}[/]{reason}", soft_wrap=True)


def print_json(value: Any) -> None:
    """Print plain JSON on stdout: no colour, no wrapping; dataclasses as objects, NaN and infinity as null."""
    plain = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    print(json.dumps(_finite(plain), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def figure(value: float, digits: int = 1) -> str:
    """Return a figure for a table; a dash if it is absent (NaN or infinite)."""
    return f"{value:,.{digits}f}" if math.isfinite(value) else "–" if unicode_ok() else "-"


def as_typed(text: str) -> str:
    """Replace `prep` in hints by what the user typed to start it, such as `./prep`, which the start script exports."""
    typed = os.environ.get("PREP_COMMAND", "prep")
    return re.sub(r"(?<![\w./-])prep (?=[a-z])", lambda match: f"{typed} ", text)


def tell_error(message: str, next_step: str = "") -> None:
    """Print an error, and its next step, on stderr. The texts are no markup."""
    from rich.markup import escape

    console = err()
    console.print(f"[bold red]error:[/] {escape(as_typed(message))}", soft_wrap=True)
    if next_step:
        console.print(f"[dim]next:[/] {escape(as_typed(next_step))}", soft_wrap=True)


def debug_wanted() -> bool:
    return os.environ.get("PREP_DEBUG", "") not in ("", "0")


def explain(error: BaseException) -> typer.Exit:
    """Print an exception as one clear line and return the exit code."""
    if isinstance(error, KeyboardInterrupt):
        err().print("[dim]interrupted[/]")
        return typer.Exit(INTERRUPTED)
    if isinstance(error, Problem):
        tell_error(str(error), error.next_step)
        return typer.Exit(error.code)
    if isinstance(error, ValueError):  # ConfigError and RequestRejected are ValueErrors that say what to do
        tell_error(str(error))
        return typer.Exit(USAGE)
    if isinstance(error, ModuleNotFoundError):
        tell_error(f"{error}", "./prep doctor   (says which parts of the installation are missing)")
        return typer.Exit(ENVIRONMENT)
    if isinstance(error, OSError):
        tell_error(f"{error}", getattr(error, "next_step", ""))  # a StateError says what to do
        return typer.Exit(ENVIRONMENT)
    where = _last_frame(error)
    tell_error(
        f"{type(error).__name__}: {error}{where}", "PREP_DEBUG=1 before the command shows the traceback"
    )
    return typer.Exit(CHECKS_FAILED)


def _last_frame(error: BaseException) -> str:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None:
        return ""
    return f"  ({os.path.basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno})"


def silence_broken_pipe() -> None:
    """Discard the rest of the output: the reader of our pipe has exited (`prep ... | head`)."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
