"""Shared terminal output: streams, consoles, marks, tables, the closing line, and errors.

Exit codes: 0 ok, 1 checks failed, 2 usage, 3 environment, 4 inconclusive, 130 interrupted,
141 the reader of the output left.
"""

from __future__ import annotations

import codecs
import errno
import io
import json
import math
import os
import re
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from prep_common.text import PLAIN, rough_duration

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod
    from rich.table import Table

CHECKS_FAILED = 1
USAGE = 2
ENVIRONMENT = 3
INCONCLUSIVE = 4
INTERRUPTED = 130
BROKEN_PIPE = 141
MARKDOWN_WIDTH = 78


_QUIET_S = 2.0
"""Time before the bar of a counted task appears."""


class Problem(Exception):
    """An error that the user can fix: what is wrong, why, and the next step."""

    def __init__(self, message: str, next_step: str = "", *, code: int = USAGE) -> None:
        super().__init__(message)
        self.next_step = next_step
        self.code = code


class Group(TyperGroup):
    """A command group that lists each member with the whole first sentence of its help."""

    shows: tuple[str, Callable[[str], str]] | None = None
    """Member that takes a name, and a function that returns the full name of what a word names, or raises."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the member. For a name in its place, suggest the member that takes one."""
        if self.shows and args and args[0] not in self.commands:
            member, find = self.shows
            try:
                name = find(args[0])
            except (ValueError, LookupError, Problem):
                return super().resolve_command(ctx, args)
            group = f"prep {ctx.command_path.partition(' ')[2]}"
            raise Problem(f"{group} has no command {args[0]!r}; did you mean '{group} {member} {name}'?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        members = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, member.get_short_help_str(limit=1000)) for name, member in members if member is not None
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def command_app(
    *commands: Callable[..., None], help: str = "", shows: tuple[str, Callable[[str], str]] | None = None
) -> typer.Typer:
    """Return the typer app of a command, or of a group if `help` is given. A command is named after its function.

    shows: as in `Group`. Its help pages are plain: at 80 columns, boxes would cut long option names.
    """
    app = typer.Typer(
        cls=type("Group", (Group,), {"shows": shows}),
        no_args_is_help=bool(help),
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    if help:
        app.callback(help=help)(lambda: None)  # without a callback, typer makes one command of a group of one
    for command in commands:
        settings = getattr(command, "context", None)
        kind = getattr(command, "kind", None)
        app.command(command.__name__.strip("_"), cls=kind, context_settings=settings)(command)
    return app


def context(**settings: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command with settings of its parser."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        command.context = settings  # type: ignore[attr-defined]
        return command

    return decorate


WHOLE = 10_000
"""Columns of a pipe: a table has the width of its cells, and no id is cut."""


def out() -> Console:
    """Console on stdout: results. A pipe cuts and wraps nothing, unless COLUMNS is set."""
    from app.cli.hanging import HangingConsole

    # Not cached: a test runner swaps sys.stdout. No highlighting: colour is for meaning, not for every number
    console = HangingConsole(highlight=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WHOLE
    return console


def err() -> Console:
    """Console on stderr: progress and errors, so that stdout can be piped."""
    from app.cli.hanging import HangingConsole

    return HangingConsole(stderr=True, highlight=False, emoji=False)


def say(text: str, console: Console | None = None, *, whole: bool = False) -> None:
    """Print one logical line, with `prep` in hints as the user typed it.

    A terminal wraps it between words, so no id breaks; a pipe gets it whole, and stdout only unless COLUMNS is set.
    whole: a terminal gets it whole, too, because the line holds a path or a command to copy.
    """
    console = console or out()
    wraps = console.is_terminal or ("COLUMNS" in os.environ and not console.stderr)
    if whole or not wraps:
        console.print(as_typed(text), soft_wrap=True)
    else:
        console.print(as_typed(text))


def note(text: str) -> None:
    """Print a line on stderr that is never wrapped: paths and commands stay whole."""
    err().print(text, soft_wrap=True)


def is_live(console: Console) -> bool:
    """Whether lines can be redrawn: the terminal understands cursor movement."""
    return console.is_terminal and not console.is_dumb_terminal


def unicode_ok() -> bool:
    # The console finds it: inside a Live, sys.stdout is a proxy without an encoding.
    return out().encoding.lower().startswith("utf")


def mark(ok: bool | None) -> str:
    """Return a coloured word or sign. Colour alone never carries the meaning. None is a warning."""
    if ok is None:
        return "[yellow]warn[/]"
    sign = ("✓" if ok else "✗") if unicode_ok() else ("ok" if ok else "x")
    return f"[green]{sign}[/]" if ok else f"[bold red]{sign}[/]"


def loading(what: str) -> AbstractContextManager[object]:
    """Show a spinner while `what` is loaded. Silent unless stderr is a terminal."""
    return status(f"loading {what}")


@contextmanager
def status(first: str = "starting", *, lines_in_pipe: bool = False) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows what is being done, in one changing line on stderr.

    lines_in_pipe: print a line for each if stderr is not a terminal; otherwise such a stderr gets nothing.
    """
    console = err()
    if is_live(console):
        with console.status(f"[dim]{literal(first)}[/]") as line:
            yield lambda text: line.update(f"[dim]{literal(text.strip())}[/]")
    elif lines_in_pipe:
        yield lambda text: console.print(text, style="dim", markup=False)
    else:
        yield lambda text: None


@contextmanager
def stages(first: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows "stage: text" in one changing line on stderr; in a pipe, a line per stage."""
    told = ""

    def line(text: str) -> None:
        nonlocal told
        stage = text.partition(": ")[0]
        if stage != told:
            err().print(text, style="dim", markup=False)
        told = stage

    if is_live(err()):
        with status(first) as change:
            yield change
    else:
        yield line


def table(*headings: str, left: tuple[str, ...] = (), rows: Iterable[Iterable[object]] = ()) -> Table:
    """Return a table in our one style: light rules, numbers to the right; the first column and `left` hold words."""
    from rich import box
    from rich.table import Table

    result = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, heading in enumerate(headings):
        side: JustifyMethod = "left" if index == 0 or heading in left else "right"
        result.add_column(heading, justify=side, overflow="fold")
    for row in rows:
        result.add_row(*map(str, row))
    return result


def framed_table() -> Table:
    """Return a table with a frame, for results beside a prediction and for forms; in ASCII where Unicode fails."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SQUARE if unicode_ok() else box.ASCII, pad_edge=True)


def show(title: str, body: Table) -> None:
    """Print a heading and a table."""
    say(f"[bold]{title}[/]")
    out().print(body)


@contextmanager
def progress(total: int, what: str, *, every: float = 5.0) -> Iterator[Callable[..., None]]:
    """Yield `advance(name, done)`. On stderr: a bar on a terminal, else a line every few seconds.

    Both show how many of the `total` items are done and the time left at the pace so far. Call `advance(name)` when
    an item begins, or `advance(done=n)` as often as you like: then the bar appears after two seconds.
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


def need_libraries(what: str, names: Iterable[str], command: str, extra: str) -> None:
    """Raise a Problem if libraries of an extra are missing. what: "notebooks need"; command: it installs the extra."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise Problem(
            f"{what} {', '.join(missing)}, not installed here",
            f"./prep {command}   (installs them)   or   pip install -e '.[{extra}]'",
            code=ENVIRONMENT,
        )


def markdown(text: str) -> None:
    """Print Markdown as headings, lists and paragraphs, in lines of a readable length."""
    from rich.markdown import Markdown

    console = out()
    console.print(Markdown(text), width=min(console.width, MARKDOWN_WIDTH))


def literal(text: object) -> str:
    """Return text that Rich prints verbatim: [cuda] in a path or message is not markup."""
    from rich.markup import escape

    return escape(str(text))


def shown(path: Path) -> str:
    """Return a path relative to the current folder, if it lies there."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def interrupted(done: str, resume: str = "") -> typer.Exit:
    """Say that what a command has shown is only what was `done` before Ctrl-C, and return the exception to raise.

    resume: the command that continues, if there is one.
    """
    err().print(f"[yellow]interrupted: only what was {done} until then[/]")
    if resume:
        next_command(resume)
    return typer.Exit(INTERRUPTED)


def next_command(command: str, why: str = "") -> None:
    """Print the last line of a screen: the one next command. On stderr, so that a pipe gets results only.

    PREP_HINTS=0 is set for a command inside another one, which has its own hint.
    """
    if os.environ.get("PREP_HINTS") == "0":
        return
    command, why = as_typed(command), as_typed(why)
    console = err()
    fits = not console.is_terminal or len(f"next: {command}  {why}") <= console.width
    gap = "  " if fits else "\n      "
    reason = f"{gap}[dim]{why}[/]" if why else ""
    note(f"\n[dim]next:[/] [bold cyan]{literal(command)}[/]{reason}")


def print_json(value: Any) -> None:
    """Print plain JSON on stdout: no colour, no wrapping; dataclasses as objects, NaN and infinity as null."""
    plain = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    print(json.dumps(_finite(plain), indent=2, allow_nan=False))


def pick(source: object, names: str) -> dict[str, Any]:
    """Return the attributes named in `names` (separated by spaces) as a dict for JSON."""
    return {name: getattr(source, name) for name in names.split()}


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
    """Replace `prep` in hints with what the user typed to start it, such as `./prep` (exported by the start script),
    and `pip` and `python` with those of its environment."""
    typed = os.environ.get("PREP_COMMAND")
    if typed is None:
        return text
    # Started from the checkout: the `pip` on PATH would install into another environment.
    pip = f"{shlex.quote(sys.executable)} -m pip install -e"
    text = re.sub(r"(?<!-m )(?<![\w./-])pip install -e", lambda match: pip, text)
    text = re.sub(r"(?<![\w./-])python (?=-m )", lambda match: f"{shlex.quote(sys.executable)} ", text)
    return re.sub(r"(?<![\w./-])prep (?=[a-z])", lambda match: f"{typed} ", text)


def tell_error(message: str, next_step: str = "") -> None:
    """Print an error and its next step on stderr. Markup in the texts is printed verbatim."""
    say(f"[bold red]error:[/] {literal(message)}", err())
    if next_step:
        note(f"[dim]next:[/] {literal(as_typed(next_step))}")


def debug_wanted() -> bool:
    return os.environ.get("PREP_DEBUG", "") not in ("", "0")


_WRITABLE = "change its permissions, or set PREP_HOME and PREP_CACHE to folders that can be written"
NEXT_STEPS = {
    errno.ENOSPC: "free some disk space, then run the command again",
    errno.EROFS: _WRITABLE,
    errno.EACCES: _WRITABLE,
}
"""Cause of an OSError that says nothing more -> what to do. A StateError has its own next step."""


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
        tell_error(f"{error}", getattr(error, "next_step", NEXT_STEPS.get(error.errno or 0, "")))
        return typer.Exit(ENVIRONMENT)
    frames = traceback.extract_tb(error.__traceback__)
    where = f"  ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    tell_error(
        f"{type(error).__name__}: {error}{where}", "PREP_DEBUG=1 before the command shows the traceback"
    )
    return typer.Exit(CHECKS_FAILED)


def interrupt(number: int, frame: object) -> None:
    """Treat SIGTERM like Ctrl-C, so that a command's processes end too."""
    raise KeyboardInterrupt


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C inside the block; one that is ignored (`nohup`) stays ignored."""
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def silence_stdout() -> None:
    """Discard the rest of the output: the reader of our pipe has exited (`prep ... | head`), or the disk is full."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())


def prepare_streams() -> None:
    """Replace closed streams with the null device, and characters that a stream cannot encode with plain ones.

    Bytes of the input that are no text become the replacement character.
    """

    def plain(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        return "".join(PLAIN.get(c, "?") for c in error.object[error.start : error.end]), error.end

    codecs.register_error("prep-plain", plain)
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")
    elif isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="prep-plain")
