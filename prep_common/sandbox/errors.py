"""Exceptions of the checker for errors and stops of learner code."""

from __future__ import annotations

import textwrap
from typing import Any

from prep_common.guest.errors import class_like


class GuestError(Exception):
    """Learner code raised an exception. It is also an instance of the builtin class that was raised: `except
    ValueError` finds it."""

    type_name = message = source_line = ""
    line: int | None = None
    is_stub = False
    """Whether the code is not written yet: NotImplementedError."""
    call = ""
    """The call that raised, such as `take(3)`; empty if the code raised while it was loaded."""

    def __str__(self) -> str:
        place = f" in line {self.line}" if self.line else ""
        if self.is_stub:
            return f"not written yet{place}: {self.message}" if self.message else f"not written yet{place}"
        quoted = f", `{self.source_line}`," if place and self.source_line else ""
        return f"{self.type_name}{place}{quoted.rstrip(',')}: {self.message}".rstrip(": ")


class GuestStopped(Exception):
    """Learner code was stopped at a limit, or its process ended."""

    @property
    def told(self) -> str:
        """Sentence for the learner."""
        return f"your code {self}"


class GuestNotStarted(GuestStopped):
    """The process of a guest was stopped, or ended, before it ran any learner code."""

    @property
    def told(self) -> str:
        return f"the process for your code {self}; none of your code ran. Try again when the machine is less busy"


def as_call(operation: str, args: list[Any]) -> str:
    """Return a request to the guest as the code that asks for it, shortened."""
    if operation != "call":
        return ""
    _, name, positional, keywords = args
    shown = [_short(value) for value in positional]
    shown += [f"{key}={_short(value)}" for key, value in keywords.items()]
    return f"{name}({', '.join(shown)})"


def _short(value: Any) -> str:
    return textwrap.shorten(repr(value), 80, placeholder=" ...")


def guest_error(told: Any) -> GuestError:
    """Return the exception that the guest describes. What it says is not trusted."""
    names = [name for name in told["family"] if isinstance(name, str)]
    error = class_like(GuestError, names)()
    assert isinstance(error, GuestError)
    error.type_name, error.message = str(told["type"]), str(told["message"])
    error.line = told["line"] if type(told["line"]) is int and told["line"] > 0 else None
    error.source_line = str(told["source"])
    error.is_stub = "NotImplementedError" in names
    return error
