"""The candidate's own numbers, and designs: fields that are checked by a run before they are committed."""

from __future__ import annotations

import re
from typing import Any

from app.cli.mock import showing
from app.cli.mock.conversation import Conversation, read_line
from app.cli.quiz.dialogue import Quit, Skip
from app.cli.run import plain
from interview.mock.scenario import Pick
from interview.mock.turns import Form, read_pick
from quizzes.grading import ParseError

KEYS = "FIELD VALUE sets a field · check · commit · show · ? help · q leave"
HELP = (
    "Type the name of a field and its value: replicas 4, or several: replicas 4, batch 32. check runs the formula and "
    "the simulation with the current values, as often as you like within the interviewer's patience; commit decides. "
    "/clarify QUESTION · /pause · /time · /draw"
)
_SETTING = re.compile(r"(\w+)\s*(?:[=:]|\s)\s*(.+)")


def read_form(talk: Conversation, want: Form) -> dict[str, Any]:
    """Return the values of all fields, and whether they are committed. Raises Quit."""
    values = {**want.values, **talk.draft.data.setdefault("values", {})}
    return _design(talk, want, values) if want.can_try or len(want.fields) > 2 else _ask(talk, want, values)


def _ask(talk: Conversation, want: Form, values: dict[str, Any]) -> dict[str, Any]:
    """Ask for each field in turn; Enter keeps the value that is shown."""
    given = talk.draft.data["values"]
    for pick in want.fields:
        while pick.id not in given:
            prompt = f" {_words(pick)}{_kept(pick, values)} > "
            line = read_line(talk.floor, prompt, "choose one; it is yours, and none is wrong")
            value = line if line else values.get(pick.id)
            if value is None:
                showing.warning(
                    "type a number" if not pick.options else f"type one of {', '.join(pick.options)}"
                )
                continue
            try:
                given[pick.id] = read_pick(pick, value)
                talk.keep()
            except ParseError as error:
                showing.warning(str(error))
    return {"values": dict(given), "commit": True}


def _design(talk: Conversation, want: Form, values: dict[str, Any]) -> dict[str, Any]:
    """Read settings until the design is checked or committed."""
    showing.fields(want, values)
    talk.say_note(KEYS if want.can_try else KEYS.replace("check · ", ""))
    if not want.can_try:
        showing.warning("what you commit now counts; it is not checked before")
    while True:
        try:
            line = talk.floor.read(" design > ")
        except Skip:
            showing.warning("this cannot be passed; commit the best design that you have")
            continue
        key = line.lower()
        if key in ("q", ":q"):
            raise Quit
        if key in ("check", "commit"):
            return {"values": dict(values), "commit": key == "commit" or not want.can_try}
        if key in ("", "show"):
            showing.fields(want, values)
        elif key in ("?", ":?"):
            talk.say_note(HELP)
        else:
            _set(want, values, line)
            talk.draft.data["values"] = dict(values)
            talk.keep()


def _set(want: Form, values: dict[str, Any], line: str) -> None:
    """Set the fields that a line names: all of them, or none and a reason."""
    given: dict[str, Any] = {}
    fields = {pick.id: pick for pick in want.fields}
    for part in re.split(r",\s+|;\s*", line):
        setting = _SETTING.fullmatch(part.strip())
        name = _field(setting[1], list(fields)) if setting else None
        if setting is None or name is None:
            showing.warning(f"type a field and its value; the fields are {', '.join(fields)}")
            return
        try:
            given[name] = read_pick(fields[name], setting[2].removesuffix(f" {fields[name].unit}"))
        except ParseError as error:
            showing.warning(f"{name}: {error}")
            return
    values.update(given)
    showing.note(" · ".join(f"{name} {plain(value)}" for name, value in given.items()))


def _field(word: str, names: list[str]) -> str | None:
    """Return the field that a word names: its name, its number in the table, or an unambiguous beginning."""
    if word in names:
        return word
    if word.isdigit() and 1 <= int(word) <= len(names):
        return names[int(word) - 1]
    matches = [name for name in names if name.startswith(word.lower())]
    return matches[0] if len(matches) == 1 else None


def _words(pick: Pick) -> str:
    if pick.options:
        return f"{pick.ask} ({', '.join(pick.options)})"
    unit = f" {pick.unit}" if pick.unit else ""
    return f"{pick.ask} ({pick.lo:,g} to {pick.hi:,g}{unit})"


def _kept(pick: Pick, values: dict[str, Any]) -> str:
    value = values.get(pick.id)
    return "" if value is None else f" [{value}]"
