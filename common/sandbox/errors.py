"""Exceptions of the checker for errors and stops of learner code."""

from __future__ import annotations

from typing import Any

from common.guest.errors import class_like


class GuestError(Exception):
    """Learner code raised an exception. It is also an instance of the builtin class that was raised: `except
    ValueError` finds it."""

    type_name = message = source_line = ""
    line: int | None = None
    is_stub = False
    """Whether the code is not written yet: NotImplementedError."""

    def __str__(self) -> str:
        place = f" in line {self.line}" if self.line else ""
        if self.is_stub:
            return f"not written yet{place}: {self.message}" if self.message else f"not written yet{place}"
        quoted = f", `{self.source_line}`," if place and self.source_line else ""
        return f"{self.type_name}{place}{quoted.rstrip(',')}: {self.message}".rstrip(": ")


class GuestStopped(Exception):
    """Learner code was stopped at a limit, or its process ended."""


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
