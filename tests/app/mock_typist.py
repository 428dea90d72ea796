"""A scripted candidate at the keyboard: types what `interview.mock.candidates` replies, one line per prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.cli.mock.floor import Floor
from app.cli.mock.starting import hold
from interview.mock.candidates import Candidate
from interview.mock.coding import name_of
from interview.mock.session import Session
from interview.mock.turns import Ask, Continue, Form, Hypothesis, Mark, Menu, Program, Prose, Rate, Turn
from prep_common.paths import write_atomically
from quizzes.experiments.runner import Runner

KEYS = {"hit": "h", "partial": "p", "miss": "m", "contradicted": "x"}


def typed(turn: Turn, reply: dict[str, Any]) -> list[str]:
    """Return the lines of a reply."""
    want = turn.want
    if isinstance(want, Continue):
        return [""]
    if reply.get("pass"):
        return ["/pass"]
    if isinstance(want, Prose):
        if "clarify" in reply:
            return [f"/clarify {reply['clarify']}"]
        return [*reply["text"].splitlines(), "."] if reply["text"] else ["/pass"]
    if isinstance(want, Ask):
        sure = reply["confidence"]
        return [*(reply["replies"].get(key, "") for key in want.keys), "" if sure is None else f"{sure}"]
    if isinstance(want, Form):
        values = [f"{name} {value}" for name, value in reply["values"].items()]
        return (
            [*values, "commit"]
            if want.can_try or len(want.fields) > 2
            else [v.split(" ", 1)[1] for v in values]
        )
    if isinstance(want, Menu):
        return [str(next(number for number, name in want.numbers.items() if name == reply["pick"]))]
    if isinstance(want, Hypothesis):
        number = [name for name, _ in want.causes].index(reply["cause"]) + 1
        return [str(number), f"{reply['confidence']} %", ", ".join(reply["evidence"])]
    if isinstance(want, Mark):
        return [KEYS[reply["mark"]]]
    if isinstance(want, Rate):
        return [str(reply["ratings"].get(axis, "")) for axis in want.axes]
    assert isinstance(want, Program)
    return ["done"]


def sit(session: Session, persona: str = "excellent", runner: Runner | None = None) -> dict[str, Any]:
    """Let a persona sit a session at the terminal. Return the facts that --json prints. runner: the candidate's."""
    floor = Floor()
    facts: dict[str, Any] = {}
    with Runner() as own:
        candidate = Candidate(persona, session, runner or own)

        def lines() -> Iterator[str]:
            while session.turn is not None:
                turn, reply = session.turn, candidate.reply(session.turn)[0]
                if isinstance(turn.want, Program):
                    path = session.path.with_suffix("") / f"{name_of(turn.want.code)}.py"
                    write_atomically(path, reply["source"])
                yield from typed(turn, reply)

        floor._lines = lines()
        hold(session, floor, facts)
    return facts
