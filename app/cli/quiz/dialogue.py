"""Answers from a terminal, a script or a pipe: one line per prompt.

A script is a text file with one line per prompt, in the order of the prompts. Lines that start with # are comments.
At the end of the script the sitting ends as if the learner had quit.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from prep_common.text_file import read_text

MAX_CHARACTERS = 20_000
_CONTROL = re.compile(
    "\x1b\\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
COMMANDS = {"h": "hint", "s": "skip", "q": "quit", "?": "help"}
"""Letter that is a command at a prompt which takes no words."""
_MARKED = {
    **COMMANDS,
    **{name: name for name in COMMANDS.values()},
    "pass": "skip",
    "e": "editor",
    "editor": "editor",
}
"""Names of commands after a slash; a colon works, too."""
HELP = (
    "h hint · s skip · q quit (your answers are kept) · ? this help. Numbers may be arithmetic: 38*32. "
    "Where the answer is a word, type /h, /s, /q"
)


def command_of(line: str) -> str:
    """Return the command of a line such as /s, /skip or :s; "" if it is none."""
    return _MARKED.get(line[1:].lower(), "") if line[:1] in ("/", ":") else ""


class Quit(Exception):
    """The learner quits, or the input ends."""


class EndOfInput(Quit):
    """Standard input has ended: a closed pipe, or Ctrl-D."""


class Skip(Exception):
    """The learner skips this question."""


class Dialogue:
    """Prints prompts and reads lines. quiet: do not print prompts (for --json)."""

    limit = MAX_CHARACTERS
    """Characters of a line; the rest is cut."""

    def __init__(self, script: Path | None = None, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self._lines = _script_lines(script) if script is not None else None
        self.is_live = script is None and sys.stdin.isatty()
        self.can_ask = script is not None or self.is_live

    def read(self, prompt: str) -> str:
        """Return the next line without its line end. Raises Quit at the end of a script, else EndOfInput."""
        if self._lines is not None:
            line = next(self._lines, None)
            self._echo(prompt, line)
        elif self.is_live:
            line = _from_terminal(prompt)
        else:
            line = sys.stdin.readline() or None
            self._echo(prompt, line)
        if line is None:
            raise EndOfInput if self._lines is None else Quit
        return printable(line)[: self.limit].strip()

    def command_or_text(
        self, prompt: str, *, words: bool = False, hints: bool = True, skips: bool = True
    ) -> tuple[str, str]:
        """Return (command, line): the command is "hint", "help", "skip" or, for an answer, "text".

        words: a bare letter may be an answer. skips: s raises Skip; otherwise it is returned as "skip".

        Raises Quit, Skip.
        """
        line = self.read(prompt)
        command = command_of(line) or COMMANDS.get("" if words else line.lower(), "text")
        if command == "quit":
            raise Quit
        if command == "skip" and skips:
            raise Skip
        if command == "editor" or command == "hint" and not hints:
            command = "help"
        return command, line

    def drain(self) -> None:
        """Discard keys that were typed during a run: they must not answer the next prompt."""
        if self.is_live:
            try:
                import termios

                termios.tcflush(sys.stdin, termios.TCIFLUSH)
            except (ImportError, OSError):
                pass

    def _echo(self, prompt: str, line: str | None) -> None:
        """Print a scripted answer after its prompt, so that the output reads like a sitting."""
        if not self.quiet:
            print(f"{prompt}{'' if line is None else printable(line).rstrip()}", flush=True)


def printable(text: str) -> str:
    """Return the text without control characters, which would change a terminal that shows it. Tabs stay."""
    return _CONTROL.sub("", text)


def _script_lines(path: Path) -> Iterator[str]:
    return iter([line for line in read_text(path).splitlines() if not line.startswith("#")])


def _from_terminal(prompt: str) -> str | None:
    try:
        import readline  # noqa: F401 - gives input() editing and history
    except ImportError:
        pass
    try:
        return input(prompt)
    except EOFError:
        print()
        return None
