"""Questions to whoever sits at the terminal, or to a script that answers for them.

A script is a text file with one reply a line. What it answers is printed after the prompt, so that a transcript reads
like a session.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from app.cli import screen

Value = TypeVar("Value")
ScriptOption = Annotated[
    Path | None, typer.Option("--script", help="Take the replies from this file, one a line.", metavar="FILE")
]
QUIT = ("q", "quit")


class Left(Exception):
    """The learner wants to leave: q, or the end of the input."""


class Dialogue:
    """Asks and reads."""

    def __init__(self, script: Path | None = None) -> None:
        self._script: list[str] | None = None
        if script is not None:
            try:
                self._script = script.read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise screen.Problem(f"--script {script} cannot be read: {error}") from None

    def ask(self, prompt: str, read: Callable[[str], Value]) -> Value:
        """What `read` makes of a reply. It raises ValueError to have the question asked again. Raises Left."""
        while True:
            reply = self._line(prompt)
            if reply.strip().lower() in QUIT:
                raise Left
            try:
                return read(reply.strip())
            except ValueError as error:
                screen.out().print(f"[yellow]{_plain(error)}[/]", soft_wrap=True)

    def _line(self, prompt: str) -> str:
        console = screen.out()
        console.print(f"{prompt} [bold]>[/] ", end="")
        if self._script is not None:
            if not self._script:
                console.print()
                raise screen.Problem(f"the script has no reply to {prompt!r}", next_step="add a line to it")
            reply = self._script.pop(0)
            console.print(reply, markup=False)
            return reply
        line = sys.stdin.readline()
        if not sys.stdin.isatty():
            console.print(line.rstrip("\n"), markup=False)
        if not line:
            raise Left
        return line


def one_of(**replies: Any) -> Callable[[str], Any]:
    """Reads a word or its beginning: one_of(confirmed=..., refuted=...)."""

    def read(reply: str) -> Any:
        found = [value for word, value in replies.items() if reply and word.startswith(reply.lower())]
        if len(found) != 1:
            raise ValueError(f"type one of: {', '.join(replies)}; the first letter is enough; q leaves")
        return found[0]

    return read


def percent(reply: str) -> int:
    """A confidence from 1 to 99."""
    digits = reply.removesuffix("%").strip()
    if not digits.isdecimal() or not 1 <= int(digits) <= 99:
        raise ValueError("type a whole number from 1 to 99; nothing is certain; q leaves")
    return int(digits)


def _plain(error: ValueError) -> str:
    from rich.markup import escape

    return escape(str(error))
