"""Errors of the learner's pieces: which piece, which rule, which step."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

SOURCE = "<exercise {}>"
"""File name of a piece's code in tracebacks."""


class PieceError(RuntimeError):
    """Raised if a piece breaks a rule of its seam or raises. The engine stops instead of computing wrong tokens."""

    def __init__(self, piece: str, rule: str, detail: str) -> None:
        super().__init__(f"your {piece} broke the rule '{rule}': {detail}")
        self.piece, self.rule, self.detail = piece, rule, detail


def ask(piece: str, where: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call the learner's code. An exception becomes a PieceError that names the piece, the step and the line."""
    try:
        return function(*args)
    except PieceError:
        raise
    except Exception as error:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if "<exercise" in frame.filename
        ]
        line = f", line {lines[-1]} of the exercise" if lines else ""
        detail = f"it raised {type(error).__name__}: {error} ({where}{line})"
        raise PieceError(piece, "it raises only what its docstring allows", detail) from error


def piece_error(error: BaseException | None) -> PieceError | None:
    """Return the PieceError among an exception and its causes: a dead engine names it as its cause."""
    while error is not None and not isinstance(error, PieceError):
        error = error.__cause__
    return error
