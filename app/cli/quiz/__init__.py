"""`prep quiz`: interview questions, graded by the engine.

dialogue.py   reads answers from a terminal, a script or a pipe
showing.py    renders questions, verdicts and explanations
sitting.py    asks items in turn: predict, commit, run, explain
menu.py       actions after a verdict: vary, trace, follow-up, sources
free_text.py  questions that are answered in prose
code.py       programs to repair
summary.py    the summary at the end
start.py      opens and closes a sitting; review and placement use it too
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal
from app.cli.settings import JsonOption, ScriptOption

if TYPE_CHECKING:
    from app.cli.quiz.sitting import Item
    from quizzes.question_bank import Bank
    from quizzes.state import Session, State

app = terminal.command_app()

MAX_ITEMS = 200


@app.command()
def quiz(
    topic: Annotated[
        str | None, typer.Option("--topic", help="Only this topic; prep bank stats lists them.")
    ] = None,
    role: Annotated[
        str | None, typer.Option("--role", help="Only for: inference, kernel, platform or sre.")
    ] = None,
    stage: Annotated[
        str | None, typer.Option("--stage", help="Only: screen, technical, deep_dive, design ...")
    ] = None,
    difficulty: Annotated[int | None, typer.Option("--difficulty", min=1, max=5)] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="Only: predict, numeric, choice, free ...")
    ] = None,
    question: Annotated[
        list[str] | None, typer.Option("--question", metavar="ID", help="Ask this question; repeat for more.")
    ] = None,
    num: Annotated[int, typer.Option("-n", "--num", min=1, max=MAX_ITEMS, help="Number of questions.")] = 10,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="The same seed asks the same questions with the same numbers."),
    ] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", min=0.1, help="Stop after this time.")] = None,
    exam: Annotated[
        bool, typer.Option("--exam", help="Show no hints, and verdicts only at the end.")
    ] = False,
    new: Annotated[bool, typer.Option("--new", help="Do not continue an interrupted quiz.")] = False,
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
      prep quiz --question batching.static_vs_continuous --seed 7
      prep quiz --seed 7 -n 2 --script answers.txt --json
    """
    from app.cli.quiz.start import hold, open_bank, open_state
    from quizzes.topics import KINDS, ROLES, STAGES, TOPICS, resolve

    wanted: dict[str, Any] = {
        "topic": resolve("topic", topic, TOPICS) if topic else None,
        "role": resolve("role", role, ROLES) if role else None,
        "stage": resolve("stage", stage, STAGES) if stage else None,
        "kind": resolve("kind", kind, KINDS) if kind else None,
        "difficulty": difficulty,
    }
    bank = open_bank()
    for question_id in question or []:
        bank.question(question_id)
    is_plain = not (new or exam or script or json or question or any(wanted.values()) or seed is not None)
    with open_state() as state:
        session = _unfinished(state) if is_plain else None
        if session is not None:
            items, first = _rest(state, session)
            terminal.err().print(
                f"[dim]continuing the quiz of {session.started:%d %b %H:%M} at item {first}; --new starts another[/]"
            )
            hold(items, bank=bank, state=state, kind="quiz", session=session, first=first, minutes=minutes)
        else:
            chosen = seed if seed is not None else random.SystemRandom().randrange(1 << 30)
            hold(
                _chosen_items(bank, state, question, num, chosen, is_fixed=seed is not None, wanted=wanted),
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
    bank: Bank,
    state: State,
    questions: list[str] | None,
    num: int,
    seed: int,
    *,
    is_fixed: bool,
    wanted: dict[str, Any],
) -> list[Item]:
    """Return the items of a new quiz. is_fixed: the seed alone chooses, so that it asks every learner the same.

    Raises Problem if no question fits.
    """
    from app.cli.quiz.sitting import Item
    from quizzes.learning.selection import pick
    from quizzes.state import State

    if questions:
        return [Item(question_id, seed) for question_id in questions]
    facts = State.in_memory() if is_fixed else state
    items = [Item(p.id, p.seed) for p in pick(bank, facts, n=num, seed=seed, **wanted)]
    if not items:
        raise terminal.Problem(
            f"no question fits {_words(wanted)}", next_step="prep bank stats counts the questions"
        )
    return items


def _unfinished(state: Any) -> Session | None:
    """Return the last quiz if it was interrupted with items left."""
    session = state.unfinished("quiz")
    if session is None or not session.spec.get("items"):
        return None
    return session if len(state.attempts(session_id=session.id)) < len(session.spec["items"]) else None


def _rest(state: Any, session: Session) -> tuple[list[Any], int]:
    """Return the items of a session that have no attempt yet, and the number of the first."""
    from app.cli.quiz.sitting import Item

    planned = [Item(question_id, seed) for question_id, seed in session.spec["items"]]
    first = 0
    for attempt in state.attempts(session_id=session.id):
        item = Item(attempt.question_id, attempt.seed)
        if item in planned[first:]:
            first = planned.index(item, first) + 1
    return planned[first:], first + 1


def _words(wanted: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in wanted.items() if value) or "that"
