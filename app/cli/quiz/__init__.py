"""`prep quiz`: interview questions, graded by the engine.

start.py      opens and closes a sitting; review and placement use it too
asking.py     asks items in turn and prints the summary at the end
sitting.py    one item: predict, commit, run, explain
menu.py       actions after a verdict: vary, trace, follow-up, sources
free_text.py  questions that are answered in prose
code.py       programs to repair
dialogue.py   reads answers from a terminal, a script or a pipe; replies.py those of a question, editor.py long ones
running.py    runs an experiment during a dialogue
showing.py    renders questions, verdicts and explanations
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Annotated, Any

import typer

from app.cli import terminal
from app.cli.options import JsonOption, ScriptOption, option
from app.cli.quiz.start import drawn, hold, open_bank, open_state
from quizzes.learning.selection import pick
from quizzes.question_bank import Bank
from quizzes.state import Session, State
from quizzes.topics import KINDS, ROLES, STAGES, TOPICS, resolve

MAX_ITEMS = 200


def _unlocked(lesson: str) -> list[str]:
    """Return the ids of the questions that a lesson prepares for."""
    from lessons.course.lesson_files import find_lesson

    return list(find_lesson(lesson).unlocks)


def _refuse_words(words: list[str]) -> None:
    """Raise a Problem for a word without an option, with the option that takes it."""
    if not words:
        return
    word = words[0]
    way = f"--question {word}" if "." in word else "--help"
    for name, values in (("topic", TOPICS), ("role", ROLES), ("kind", KINDS), ("stage", STAGES)):
        with suppress(ValueError):
            way = f"--{name} {resolve(name, word, values)}"
    raise terminal.Problem(f"prep quiz takes {word!r} only behind an option", f"prep quiz {way}")


@terminal.context(allow_extra_args=True)
def quiz(
    ctx: typer.Context,
    topic: Annotated[str | None, option("Only this topic; prep bank stats lists them.")] = None,
    role: Annotated[str | None, option("Only for: inference, kernel, platform, sre or applied.")] = None,
    stage: Annotated[
        str | None, option("Only: screen, technical, design ..., or those of a lesson: L07.")
    ] = None,
    difficulty: Annotated[int | None, option(min=1, max=5)] = None,
    kind: Annotated[str | None, option("Only: predict, numeric, choice, free ...")] = None,
    question: Annotated[list[str] | None, option("Ask this question; repeat for more.", metavar="ID")] = None,
    num: Annotated[int, option("Number of questions.", "-n", "--num", min=1, max=MAX_ITEMS)] = 10,
    seed: Annotated[
        int | None, option("The same seed asks the same questions with the same numbers.")
    ] = None,
    minutes: Annotated[float | None, option("Stop after this time.", min=0.1)] = None,
    exam: Annotated[bool, option("Show no hints, and verdicts only at the end.", "--exam")] = False,
    new: Annotated[bool, option("Do not continue an interrupted quiz.", "--new")] = False,
    script: ScriptOption = None,
    json: JsonOption = False,
) -> None:
    """Answer interview questions; the live engine grades them.

    You predict a result and say how sure you are. Your answer is saved before the experiment runs. Without options,
    the command continues an interrupted quiz, or picks questions that are due and new ones.

    \b
    Examples:
      prep quiz
      prep quiz --topic prefix-cache --role sre -n 5 --exam
      prep quiz --stage L07
      prep quiz --question batching.static_vs_continuous --seed 7
      prep quiz --seed 7 -n 2 --script answers.txt --json
    """
    _refuse_words(ctx.args)
    if stage and re.fullmatch(r"[lL]\d{1,2}", stage):
        question, stage = [*(question or []), *_unlocked(stage)], None
    wanted: dict[str, Any] = {
        name: resolve(name, value, known) if value else None
        for name, value, known in (
            ("topic", topic, TOPICS),
            ("role", role, ROLES),
            ("stage", stage, STAGES),
            ("kind", kind, KINDS),
        )
    }
    wanted["difficulty"] = difficulty
    bank = open_bank()
    for question_id in question or []:
        bank.question(question_id)
    is_plain = not (new or exam or script or json or question or any(wanted.values()) or seed is not None)
    with open_state() as state:
        session = _unfinished(state) if is_plain else None
        if session is not None and not state.claim(session.id):
            terminal.note(f"[dim]the quiz of {session.started:%d %b %H:%M} is open in another terminal[/]")
            session = None
        if session is not None:
            items, first = _rest(state, session)
            terminal.err().print(
                f"[dim]continuing the quiz of {session.started:%d %b %H:%M} at item {first}; --new starts another[/]"
            )
            hold(items, bank=bank, state=state, kind="quiz", session=session, first=first, minutes=minutes)
        else:
            chosen = drawn(seed)
            if question:
                items = [(question_id, chosen) for question_id in question]
            else:
                items = _chosen_items(bank, state, num, chosen, is_fixed=seed is not None, wanted=wanted)
            hold(
                items,
                bank=bank,
                state=state,
                kind="exam" if exam else "quiz",
                spec={**wanted, "question": question, "seed": chosen},
                script=script,
                json=json,
                exam=exam,
                minutes=minutes,
            )
    if not json:
        terminal.next_command("prep quiz", "for more; prep review repeats questions that are due")


def _chosen_items(
    bank: Bank, state: State, num: int, seed: int, *, is_fixed: bool, wanted: dict[str, Any]
) -> list[tuple[str, int]]:
    """Return the items of a new quiz. is_fixed: the seed alone chooses, so that it asks every learner the same.

    Raises Problem if no question fits.
    """
    picks = pick(bank, State.in_memory() if is_fixed else state, n=num, seed=seed, **wanted)
    if not picks:
        words = ", ".join(f"{name} {value}" for name, value in wanted.items() if value) or "that"
        raise terminal.Problem(f"no question fits {words}", "prep bank stats counts the questions")
    return [(picked.id, picked.seed) for picked in picks]


def _unfinished(state: State) -> Session | None:
    """Return the last quiz if it was interrupted with items left."""
    session = state.unfinished("quiz")
    if session is None or not session.spec.get("items"):
        return None
    return session if len(state.attempts(session_id=session.id)) < len(session.spec["items"]) else None


def _rest(state: State, session: Session) -> tuple[list[tuple[str, int]], int]:
    """Return the items of a session that have no attempt yet, and the number of the first."""
    planned = [(question_id, seed) for question_id, seed in session.spec["items"]]
    first = 0
    for attempt in state.attempts(session_id=session.id):
        item = (attempt.question_id, attempt.seed)
        if item in planned[first:]:
            first = planned.index(item, first) + 1
    return planned[first:], first + 1
