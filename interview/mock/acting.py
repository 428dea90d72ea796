"""Steps in which the candidate acts: a design on a canvas, a refutation, a program. Incidents: incident.py."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from interview.mock import evidence
from interview.mock.asking import run_experiment
from interview.mock.drawn import Drawn
from interview.mock.scenario import Canvas, Step
from interview.mock.talk import Asked, Conversation, Heard, Talk
from interview.mock.turns import Form, Menu, Program, Turn, read_pick

MOST_TRIES = 8
"""Checks of a design: then the interviewer goes on."""


def design_step(talk: Talk, drawn: Drawn, step: Step, asked: Asked) -> Conversation:
    """Let the candidate set fields; every try is checked by formula and simulation. Then change the conditions.

    Each round is an observation; together they weigh as much as one step."""
    canvas = step.canvas
    assert canvas is not None
    values = {pick.id: pick.start for pick in canvas.fields}
    rounds: list[tuple[str, dict[str, Any], dict[str, Any]]] = [(asked.say, {}, canvas.solution)]
    rounds += [(drawn.text(change.say), change.args, change.solution) for change in canvas.changes]
    rounds = rounds if talk.spec.minutes > 20 else rounds[:1]
    goals: list[bool] = []
    observed: list[evidence.Evidence] = []
    tries = 0
    for number, (say, args, solution) in enumerate(rounds):
        outcome = yield from _design(talk, drawn, canvas, asked, number, say, drawn.value(args), values)
        if outcome is None:
            return
        met, spent, count, values = outcome
        best = yield from _run_canvas(
            talk, drawn, canvas, asked, drawn.value(solution), drawn.value(args), f".ref{number}"
        )
        goals, tries = goals + met, tries + count
        reference = (
            0.0 if best is None else float(drawn.value(canvas.cost, result=best, **drawn.value(solution)))
        )
        observed += evidence.of_canvas(
            met, spent, reference, list(step.axes), asked.key, count, weight=1 / len(rounds)
        )
    asked.replies |= {"values": values, "tries": tries}
    asked.all_right = all(goals)
    talk.note(asked, observed)


def _design(
    talk: Talk,
    drawn: Drawn,
    canvas: Canvas,
    asked: Asked,
    number: int,
    say: str,
    args: dict[str, Any],
    values: dict[str, Any],
) -> Generator[Turn, Heard, tuple[list[bool], float, int, dict[str, Any]] | None]:
    """Return goals met, cost, tries and the committed values; None if no run succeeded."""
    result: dict[str, Any] | None = None
    for tries in range(MOST_TRIES):
        form = Form(tuple(canvas.fields), dict(values), can_try=tries < MOST_TRIES - 1)
        heard = yield talk.turn(asked, f"design{number}.{tries}", say, form, began=number == tries == 0)
        reply = talk.hear(asked, heard)
        given = {
            pick.id: read_pick(pick, reply["values"].get(pick.id, values[pick.id])) for pick in canvas.fields
        }
        if result is None or given != values or tries == 0:
            values = given
            result = yield from _run_canvas(talk, drawn, canvas, asked, values, args, f".{number}.{tries}")
        if result is None:
            say = ""
            continue
        names = {**values, "result": result}
        met = [drawn.holds(goal.holds, **names) for goal in canvas.goals]
        cost = float(drawn.value(canvas.cost, **names))
        asked.rows = [
            (drawn.text(goal.say, **names), "", drawn.text(goal.shows, **names), ok)
            for goal, ok in zip(canvas.goals, met, strict=True)
        ] + [("cost", "", f"{cost:,.2f} {canvas.cost_unit}", True)]
        talk.chart = {**asked.run, "rows": list(asked.rows)}
        talk.preface = f"By hand: {drawn.text(canvas.formula, **values)}"
        say = ""
        if reply.get("commit"):
            return met, cost, tries + 1, values
    return (met, cost, MOST_TRIES, values) if result is not None else None


def _run_canvas(
    talk: Talk,
    drawn: Drawn,
    canvas: Canvas,
    asked: Asked,
    values: dict[str, Any],
    args: dict[str, Any],
    label: str,
) -> Generator[Turn, Heard, dict[str, Any] | None]:
    asked_run = dict(asked.run)
    is_reference = label.startswith(".ref")
    everything = {**drawn.value(canvas.run.args), **values, **args}
    result = yield from run_experiment(talk, asked, canvas.run.run, everything, label, silent=is_reference)
    if is_reference:
        asked.run = asked_run  # the reference is for the report's ratio only
    return result


def reverse_step(talk: Talk, drawn: Drawn, step: Step, asked: Asked) -> Conversation:
    """Show a wrong answer; the candidate chooses the experiment that refutes it, at most two, and names the flaw."""
    reverse = step.reverse
    assert reverse is not None
    say = f"{asked.say}\n\n> {drawn.text(reverse.answer)}"
    chosen: list[str] = []
    refuted: list[bool] = []
    tests = _texts(drawn, drawn.shuffled(step, reverse.tests))
    while len(chosen) < 2 and not any(refuted):
        left = tuple(option for option in tests if option[0] not in chosen)
        menu = Menu(left, tuple(name for name, _ in tests))
        heard = yield talk.turn(asked, f"test{len(chosen)}", say, menu, began=not chosen)
        chosen.append(talk.hear(asked, heard)["pick"])
        test = next(test for test in reverse.tests if test.id == chosen[-1])
        result = yield from run_experiment(
            talk, asked, test.run.run, drawn.value(test.run.args), f".{test.id}"
        )
        if result is None:
            return
        refuted.append(drawn.holds(test.refutes, result=result))
        shown = drawn.text(test.shows, result=result)
        asked.rows.append((drawn.text(test.text), "refutes it", shown, refuted[-1]))
        talk.preface = shown
        say = "That does not refute it. Which other experiment would?"
    flaws = _texts(drawn, drawn.shuffled(step, reverse.flaw))
    heard = yield talk.turn(asked, "flaw", "What is wrong with the answer?", Menu(flaws))
    flaw = talk.hear(asked, heard)["pick"]
    is_right = {choice.id: _is_right(drawn, choice.right, None) for choice in reverse.flaw}[flaw]
    asked.replies = {"tests": chosen, "flaw": flaw}
    asked.all_right = is_right and refuted[-1]
    asked.explain = drawn.text(
        step.explain, **({"result": asked.run["result"]} if "result" in asked.run else {})
    )
    talk.note(asked, evidence.of_reverse(refuted, is_right, list(step.axes), asked.key))


def code_step(talk: Talk, drawn: Drawn, step: Step, asked: Asked) -> Conversation:
    """Let the candidate write and check a program."""
    assert step.code is not None
    heard = yield talk.turn(asked, "code", asked.say, Program(step.code), began=True)
    reply = talk.hear(asked, heard)
    passed, failed = reply["passed"], reply["failed"]
    asked.replies = {name: reply.get(name) for name in ("source", "passed", "failed", "tries")}
    asked.all_right = not failed and bool(passed)
    pieces = evidence.of_code(
        len(passed), len(failed), int(reply.get("tries") or 1), list(step.axes), asked.key
    )
    talk.note(asked, pieces)
    talk.preface = f"{len(passed)} of {len(passed) + len(failed)} checks pass."


def _texts(drawn: Drawn, choices: list[Any]) -> tuple[tuple[str, str], ...]:
    return tuple((choice.id, drawn.text(choice.text)) for choice in choices)


def _is_right(drawn: Drawn, right: bool | str, broken: dict[str, Any] | None) -> bool:
    if isinstance(right, bool):
        return right
    return drawn.holds(right, **({} if broken is None else {"result": broken}))
