"""Shared by the commands of `prep mine`: which pieces to use, and errors of pieces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from app.cli import terminal
from app.cli.options import option

if TYPE_CHECKING:
    from lessons.mine.pieces import Pieces

SolutionsOption = Annotated[
    bool, option("Use the reference solutions of all lessons in place of your pieces.", "--solutions")
]


def load(solutions: bool) -> Pieces:
    """Return the learner's pieces, or the reference solutions; say on stderr which are used."""
    from lessons.mine.workspace import learner_pieces, solution_pieces

    pieces = solution_pieces() if solutions else learner_pieces()
    if not solutions and not pieces.yours:
        terminal.note("[yellow]no piece is yours yet: the engine is all ours[/]  (prep mine list says why)")
    else:
        names = ", ".join(pieces.yours or [piece.name for piece in pieces if piece.whose == "reference"])
        terminal.note(f"[dim]{'reference solutions' if solutions else 'yours'}: {names}[/]")
    return pieces


@contextmanager
def pieces_explained() -> Iterator[None]:
    """Report a broken rule of a piece as an error with a next step."""
    from lessons.mine.errors import piece_error
    from lessons.mine.identity import quiet_engine
    from lessons.mine.workspace import check_command

    try:
        with quiet_engine():
            yield
    except Exception as error:
        if (broken := piece_error(error)) is None:
            raise
        step = check_command(broken.piece.rpartition(" ")[2].rstrip(")"))
        raise terminal.Problem(str(broken), step, code=terminal.CHECKS_FAILED) from error
