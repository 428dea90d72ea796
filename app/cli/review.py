"""`prep review`: repeat questions that are due, surprises first, with new numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from app.cli import terminal
from app.cli.options import JsonOption, ScriptOption, option
from app.cli.quiz.dialogue import Dialogue
from app.cli.quiz.start import drawn, hold, open_bank, open_state
from prep_common.text import counted
from quizzes.learning.review import NAMES, again_in_words, cards
from quizzes.learning.selection import due, local_now
from quizzes.question_bank import Bank
from quizzes.state import State

if TYPE_CHECKING:
    from app.cli.quiz.sitting import Sitting


def review(
    limit: Annotated[int | None, option("Maximum number of questions.", min=1)] = None,
    missed: Annotated[bool, option("Only questions that you last answered wrong.", "--missed")] = False,
    surprises: Annotated[bool, option("Only wrong answers that you were sure of.", "--surprises")] = False,
    ahead: Annotated[int, option("Also questions due in the next N days.", min=0, max=365)] = 0,
    resume: Annotated[str | None, option("Resume a suspended question.", metavar="ID")] = None,
    seed: Annotated[int | None, option("The same seed gives the same numbers.")] = None,
    script: ScriptOption = None,
    json: JsonOption = False,
) -> None:
    """Repeat the questions that are due. Each review draws new numbers, so you practise the method.

    Your answer sets the next interval: wrong, right but slow or with a hint, right, or right, sure and fast. Intervals
    shrink as the interview approaches.

    \b
    Examples:
      prep review
      prep review --surprises
      prep review --limit 5 --ahead 3
    """
    bank = open_bank()
    with open_state() as state:
        if resume is not None:
            bank.question(resume)
            state.resume(resume)
            terminal.err().print(f"[dim]{resume} is no longer suspended[/]")
        choice: dict[str, Any] = {"limit": limit, "missed": missed, "surprises": surprises, "ahead": ahead}
        run(bank, state, seed=seed, script=script, json=json, **choice)


def run(
    bank: Bank,
    state: State,
    *,
    seed: int | None = None,
    script: Path | None = None,
    json: bool = False,
    dialogue: Dialogue | None = None,
    ahead: int = 0,
    **choice: Any,
) -> None:
    """Choose and ask questions, then print when each is due next."""
    from app.cli.quiz import asking

    chosen = drawn(seed)
    reviews = due(bank, state, **choice, ahead_days=ahead, seed=chosen)
    spec = {**choice, "ahead": ahead, "seed": chosen}
    if not reviews:
        if json:
            nothing = {"kind": "review", "complete": True, "summary": asking.figures([]), "items": []}
            terminal.print_json(nothing)
        else:
            _nothing_due(bank, state)
        return
    if not json:
        count = sum(picked.why == "surprise" for picked in reviews)
        minutes = sum(picked.entry.minutes for picked in reviews)
        words = f", {counted(count, 'surprise')} first" if count else ""
        terminal.out().print(f"[bold]{len(reviews)} to review[/]{words}  [dim]about {minutes:.0f} min[/]")
    items = [(picked.id, picked.seed) for picked in reviews]
    sitting = hold(
        items, bank=bank, state=state, kind="review", spec=spec, script=script, json=json, dialogue=dialogue
    )
    if not json:
        _when_again(sitting)
        left = len(due(bank, state))
        then = ("prep review", f"{left} left") if left else ("prep quiz", "for new questions")
        terminal.next_command(*then)


def _nothing_due(bank: Bank, state: State) -> None:
    known = [card for card in cards(state).values() if card.question_id in bank and not card.suspended]
    coming = sorted(known, key=lambda card: card.due)
    if not coming:
        terminal.out().print("nothing to review yet")
        terminal.next_command("prep quiz")
        return
    first = coming[0].due.astimezone(local_now().tzinfo)
    planned = counted(len(coming), "question")
    terminal.out().print(f"no review is due; {planned} scheduled, the next on {first:%a %d %b}")
    days = max((first.date() - local_now().date()).days, 1)
    terminal.next_command("prep quiz", f"for new questions, or prep review --ahead {days}")


def _when_again(sitting: Sitting) -> None:
    """Print the rating of each answer and the day of its next review."""
    from app.cli.quiz import showing

    graded = ("right", "reviewed", "partly", "wrong")
    answered = {record.question_id for record in sitting.records if record.status in graded}
    known = cards(sitting.state)
    now = local_now()
    where = showing.console()
    for question_id in sorted(answered & known.keys()):
        card = known[question_id]
        when = f" {NAMES[card.last_rating]:<6}{again_in_words(card, now):<18}"
        terminal.say(f"{when}[dim]{question_id}[/]", where)
        if card.suspended:
            where.print(
                f"       [yellow]forgotten {card.lapses} times: suspended.[/] Read the answer, then resume it:\n"
                f"       {terminal.as_typed(f'prep answer {question_id}; prep review --resume {question_id}')}",
                soft_wrap=True,
            )
