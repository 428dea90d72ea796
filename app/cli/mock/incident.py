"""An incident in the terminal: run its drill on this machine, and read a hypothesis."""

from __future__ import annotations

from typing import Any

from app.cli import terminal
from app.cli.mock import showing
from app.cli.mock.conversation import Conversation, read_line
from interview.drills import LIBRARIES
from interview.drills.score import MOST_NAMED
from interview.mock.turns import Hypothesis, RunDrill


def read_drill(talk: Conversation, want: RunDrill) -> dict[str, Any]:
    """Run the servers of a drill. Whatever goes wrong is a reply: the interview continues."""
    talk.say_note("servers start on this machine; Ctrl-C stops the run, not the interview")
    try:
        terminal.need_libraries("drills need", LIBRARIES, "drill", "serve")
        from interview.mock.live import live

        with terminal.stages("starting") as tell:
            return live(want, tell)
    except KeyboardInterrupt:
        return {"failed": "the run was interrupted"}
    except terminal.Problem as problem:
        return {"failed": str(problem)}
    finally:
        talk.floor.drain()


def read_hypothesis(talk: Conversation, want: Hypothesis) -> dict[str, Any]:
    showing.menu([text for _, text in want.causes])
    known = talk.draft.data
    ids = [name for name, _ in want.causes]
    if "cause" not in known:
        number = _whole(talk, " cause, its number > ", len(ids))
        known["cause"] = ids[number - 1]
        talk.keep()
    if "confidence" not in known:
        known["confidence"] = _whole(talk, " how sure, 1-99 % > ", 99)
        talk.keep()
    evidence = _figures(talk, want.figures) if want.figures else []
    return {"cause": known["cause"], "confidence": known["confidence"], "evidence": evidence}


def _whole(talk: Conversation, prompt: str, most: int) -> int:
    while True:
        text = read_line(talk.floor, prompt).rstrip("%.) ")
        if text.isascii() and text.isdigit() and 1 <= int(text) <= most:
            return int(text)
        showing.warning(f"type a number from 1 to {most}")


def _figures(talk: Conversation, figures: tuple[str, ...]) -> list[str]:
    """Return names of figures that a look has shown."""
    while True:
        line = read_line(talk.floor, f" names of the figures that decide, 1 to {MOST_NAMED} > ")
        named = line.replace(",", " ").split()
        wrong = [name for name in named if name not in figures]
        if named and not wrong and len(set(named)) <= MOST_NAMED:
            return list(dict.fromkeys(named))
        showing.warning(f"no look has shown {wrong[0]!r}" if wrong else f"name 1 to {MOST_NAMED}")
        talk.say_note(f"your looks have shown: {', '.join(figures)}")
