"""The candidate's prompt: a clock that stops for pauses, and the commands that work at every prompt.

/pause   stop the clock until Enter          /clarify QUESTION   ask the interviewer for a fact
/time    elapsed and left                    /draw               a whiteboard in your editor
/pass    no answer                           /q                  leave; everything is kept
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from app.cli import terminal
from app.cli.quiz.dialogue import Dialogue, Quit, Skip
from prep_common.names import closest

COMMANDS = ("clarify", "draw", "editor", "help", "pass", "pause", "q", "quit", "time")
_COMMAND = re.compile(r"[/:]([a-zA-Z]+|\?)(?:\s+(.*))?$", re.DOTALL)
SHORT = {"?": "help", "h": "help", "hint": "help", "q": "quit", "s": "pass", "skip": "pass", "e": "editor"}
"""Other names of commands, as in a quiz."""
_LONGEST = 100_000


class Clock:
    """Seconds of one reply, by a clock that no change of the date moves. Pauses do not count."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.start()

    def start(self, seconds: float = 0.0) -> None:
        """Begin at a number of seconds."""
        self._began = self._now() - seconds

    @property
    def seconds(self) -> float:
        return self._now() - self._began

    def pause(self, until: Callable[[], object]) -> float:
        """Stand still while `until` runs. Return how long that took."""
        began = self._now()
        try:
            until()
        finally:
            paused = self._now() - began
            self._began += paused
        return paused


def clock_time(seconds: float) -> str:
    """Return minutes and seconds: 07:40."""
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    return f"{minutes:02}:{rest:02}"


class Floor(Dialogue):
    """Reads the candidate's lines. `on` handles the commands; those that it lacks are told to be unknown."""

    limit = _LONGEST

    def __init__(self, script: Path | None = None, *, quiet: bool = False) -> None:
        super().__init__(script, quiet=quiet)
        self.clock = Clock()
        self.on: dict[str, Callable[[str], None]] = {}
        """Command -> what it does with the rest of its line."""
        self.before_prompt: Callable[[], None] = lambda: None

    def read(self, prompt: str) -> str:
        """Return the next line that is no command. Raises Quit, Skip."""
        while True:
            self.before_prompt()
            line = super().read(prompt)
            if not self.command(line):
                return line

    def command(self, line: str) -> bool:
        """Run a line that is a command. Return whether it was one, or looks like one. Raises Quit, Skip."""
        match = _COMMAND.match(line)
        if match is None:
            return False
        name, rest = match[1].lower(), (match[2] or "").strip()
        name = SHORT.get(name, name)
        if name == "quit" and not rest:
            raise Quit
        if name == "pass" and not rest:
            raise Skip
        if name in self.on:
            self.on[name](rest)
            return True
        hint = f"/{name} does nothing here"
        if name not in COMMANDS:
            close = closest(name, COMMANDS, cutoff=0.75)
            if close is None:
                return False  # a path, such as /v1/completions
            hint = f"/{name} is unknown; did you mean /{close}?"
        if not self.quiet:
            terminal.err().print(f" [yellow]{terminal.literal(hint)}[/]")
        return True
