"""Prose: lines until a dot, with a count of words, an editor, and clarifying questions."""

from __future__ import annotations

from typing import Any

from app.cli.mock import showing
from app.cli.mock.conversation import Conversation, command
from app.cli.quiz.dialogue import Quit, Skip
from app.cli.quiz.editor import edit
from app.cli.quiz.free_text import END
from interview.mock.turns import Prose
from prep_common.text import counted
from quizzes.grading import ParseError

KEYS = "'.' ends · /clarify · /editor · /draw · /pause · /pass · q"


SHOWN, LONGEST = 5, 400
"""Lines, and characters of each, that are shown again when an answer goes on."""


class _Asked(Exception):
    """The candidate asks a clarifying question."""


def read_prose(talk: Conversation, want: Prose) -> dict[str, Any]:
    """Return the answer, "" if it is passed, or a clarifying question. Raises Quit."""
    talk.say_note(f"{want.lo} to {want.hi} words · {KEYS}")
    data = talk.draft.data
    if talk.carried:
        data["lines"], talk.carried = talk.carried, []
        talk.keep()
    lines: list[str] = data.setdefault("lines", [])
    if lines:
        _show_again(talk, lines)

    def ask(question: str) -> None:
        raise _Asked(question or talk.floor.read(" your question > "))

    def write(_: str) -> None:
        lines[:] = edit("\n".join(lines)).splitlines()
        talk.keep()
        talk.say_note(f"{counted(count(lines), 'word')}; a line '.' ends the answer, or write more")

    with command(talk.floor, clarify=ask, editor=write):
        try:
            text = _lines(talk, want, lines, write)
        except Skip:
            return {"text": ""}
        except _Asked as asked:
            talk.carried = list(lines)
            return {"clarify": str(asked)}
    return {"text": text}


def count(lines: list[str]) -> int:
    """Return the number of words."""
    return sum(len(line.split()) for line in lines)


def _lines(talk: Conversation, want: Prose, lines: list[str], write: Any) -> str:
    while True:
        line = talk.floor.read(f" {count(lines):>3} | ")
        if line.lower() in ("q", ":q"):
            raise Quit
        if line in ("?", ":?"):
            talk.floor.command("/help")
        elif line != END:
            lines.append(line)
            talk.keep()
        elif text := "\n".join(lines).strip():
            try:
                want.check({"text": text})
                return text
            except ParseError as error:
                showing.warning(f"{error}: /editor")
        else:
            showing.warning("you have not said anything yet; /pass gives no answer")


def _show_again(talk: Conversation, lines: list[str]) -> None:
    talk.say_note(f"you have written {counted(count(lines), 'word')}; /editor changes them. The last lines:")
    for line in lines[-SHOWN:]:
        showing.quote(line[:LONGEST])
