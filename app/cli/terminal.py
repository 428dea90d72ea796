"""What every screen shares: consoles, marks, the closing line, and how an error is told.

Exit codes: 0 ok, 1 checks failed, 2 usage, 3 environment, 4 inconclusive, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

CHECKS_FAILED = 1
USAGE = 2
ENVIRONMENT = 3
INCONCLUSIVE = 4
INTERRUPTED = 130


class Problem(Exception):
    """Something the user can mend: what, why, and the next step."""

    def __init__(self, message: str, *, next_step: str = "", code: int = USAGE) -> None:
        super().__init__(message)
        self.next_step = next_step
        self.code = code


def command_app(**settings: Any) -> typer.Typer:
    """A subcommand's typer app. Plain help pages: at 80 columns, boxes cut long option names short."""
    return typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **settings
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
    """True if lines can be redrawn: a terminal that understands cursor movement."""
    return console.is_terminal and not console.is_dumb_terminal


def unicode_ok() -> bool:
    return (
        out().encoding.lower().startswith("utf")
    )  # not sys.stdout: inside a Live that is a proxy without one


def mark(ok: bool | None) -> str:
    """A word or sign with colour; the colour alone never carries the meaning. None is a warning."""
    if ok is None:
        return "[yellow]warn[/]"
    sign = ("✓" if ok else "✗") if unicode_ok() else ("ok" if ok else "x")
    return f"[green]{sign}[/]" if ok else f"[bold red]{sign}[/]"


@contextmanager
def loading(what: str) -> Iterator[None]:
    """A spinner while something is loaded: importing torch takes seconds. Silent where nobody watches."""
    console = err()
    if is_live(console):
        with console.status(f"[dim]loading {what}[/]"):
            yield
    else:
        yield


def table(*headings: str, left: tuple[str, ...] = ()) -> Table:
    """A table in our one style: light rules, numbers to the right; the first column and `left` hold words."""
    from rich import box
    from rich.table import Table

    result = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, heading in enumerate(headings):
        result.add_column(heading, justify="left" if index == 0 or heading in left else "right")
    return result


def show(title: str, body: Table) -> None:
    """A heading and what it heads."""
    console = out()
    console.print(f"[bold]{title}[/]", soft_wrap=True)
    console.print(body)


def next_command(command: str, why: str = "") -> None:
    """The last line of a screen: the one thing to do next. On stderr, so that a pipe gets results only."""
    reason = f"  [dim]{why}[/]" if why else ""
    err().print(f"\n[dim]next:[/] [bold cyan]{command}[/]{reason}", soft_wrap=True)


def print_json(value: Any) -> None:
    """Plain JSON on stdout for scripts: no colour, no wrapping; dataclasses as objects."""
    print(
        json.dumps(asdict(value) if is_dataclass(value) and not isinstance(value, type) else value, indent=2)
    )


def tell_error(message: str, next_step: str = "") -> None:
    from rich.markup import escape

    console = err()
    console.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True)
    if next_step:
        console.print(f"[dim]next:[/] {escape(next_step)}", soft_wrap=True)


def debug_wanted() -> bool:
    return os.environ.get("PREP_DEBUG", "") not in ("", "0")


def explain(error: BaseException) -> typer.Exit:
    """Tell an exception as one clear line and choose the exit code."""
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
    """The reader of our pipe has left (`prep … | head`): write the rest to nowhere, say nothing."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
