"""`prep review`: repeat questions that are due, surprises first, with new numbers."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal
from app.cli.settings import JsonOption, ScriptOption

if TYPE_CHECKING:
    from app.cli.quiz.dialogue import Dialogue
    from app.cli.quiz.sitting import Sitting
    from quizzes.learning.review import Card
    from quizzes.learning.selection import Picked
    from quizzes.question_bank import Bank
    from quizzes.state import State

app = terminal.command_app()


@app.command()
def review(
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Maximum number of questions.")] = None,
    missed: Annotated[
        bool, typer.Option("--missed", help="Only questions that you last answered wrong.")
    ] = False,
    surprises: Annotated[
        bool, typer.Option("--surprises", help="Only wrong answers that you were sure of.")
    ] = False,
    ahead: Annotated[
        int, typer.Option("--ahead", min=0, max=365, help="Also questions due in the next N days.")
    ] = 0,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="ID", help="Resume a suspended question.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="The same seed gives the same numbers.")] = None,
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
    from app.cli.quiz.start import open_bank, open_state

    bank = open_bank()
    with open_state() as state:
        if resume is not None:
            bank.question(resume)
            state.resume(resume)
            terminal.err().print(f"[dim]{resume} is no longer suspended[/]")
        run(
            bank,
            state,
            limit=limit,
            missed=missed,
            surprises=surprises,
            ahead=ahead,
            seed=seed,
            script=script,
            json=json,
        )


def run(
    bank: Bank,
    state: State,
    *,
    limit: int | None = None,
    missed: bool = False,
    surprises: bool = False,
    ahead: int = 0,
    seed: int | None = None,
    script: Path | None = None,
    json: bool = False,
    dialogue: Dialogue | None = None,
) -> None:
    """Choose and ask questions, then print when each is due next."""
    from app.cli.quiz import summary
    from app.cli.quiz.sitting import Item
    from app.cli.quiz.start import hold
    from quizzes.learning.selection import due

    chosen = random.SystemRandom().randrange(1 << 30) if seed is None else seed
    found = due(bank, state, limit=limit, missed=missed, surprises=surprises, ahead_days=ahead, seed=chosen)
    spec = {"limit": limit, "missed": missed, "surprises": surprises, "ahead": ahead, "seed": chosen}
    if not found:
        if json:
            terminal.print_json(
                {"kind": "review", "complete": True, "summary": summary.figures([]), "items": []}
            )
        else:
            _nothing_due(bank, state)
        return
    if not json:
        terminal.out().print(f"[bold]{len(found)} to review[/]{_reasons(found)}")
    items = [Item(picked.id, picked.seed) for picked in found]
    sitting = hold(
        items, bank=bank, state=state, kind="review", spec=spec, script=script, json=json, dialogue=dialogue
    )
    if not json:
        _when_again(sitting)
        left = len(due(bank, state))
        terminal.next_command(
            "prep review" if left else "prep quiz", f"{left} left" if left else "for new questions"
        )


def _reasons(found: list[Picked]) -> str:
    count = sum(picked.why == "surprise" for picked in found)
    minutes = sum(picked.entry.minutes for picked in found)
    words = f", {count} surprise{'s' * (count > 1)} first" if count else ""
    return f"{words}  [dim]about {minutes:.0f} min[/]"


def _nothing_due(bank: Bank, state: State) -> None:
    from quizzes.learning.review import cards
    from quizzes.learning.selection import local_now

    coming = sorted(
        (c for c in cards(state).values() if c.question_id in bank and not c.suspended), key=lambda c: c.due
    )
    if not coming:
        terminal.out().print("nothing to review yet")
        terminal.next_command("prep quiz")
        return
    first = coming[0].due.astimezone(local_now().tzinfo)
    terminal.out().print(
        f"no review is due; {len(coming)} question{'s' * (len(coming) != 1)} scheduled, the next on {first:%a %d %b}"
    )
    days = max((first.date() - local_now().date()).days, 1)
    terminal.next_command("prep quiz", f"for new questions, or prep review --ahead {days}")


def _when_again(sitting: Sitting) -> None:
    """Print the rating of each answer and the day of its next review."""
    from app.cli.quiz import showing
    from quizzes.learning.review import NAMES, cards
    from quizzes.learning.selection import local_now

    answered = {
        record.question_id for record in sitting.records if record.status in ("right", "partly", "wrong")
    }
    known = cards(sitting.state)
    now = local_now()
    where = showing.console()
    for question_id in sorted(answered & known.keys()):
        card = known[question_id]
        terminal.print_line(
            f" {NAMES[card.last_rating]:<6}{_again(card, now):<18}[dim]{question_id}[/]", where
        )
        if card.suspended:
            where.print(
                f"       [yellow]forgotten {card.lapses} times: suspended.[/] Read the answer, then resume it:\n"
                f"       {terminal.as_typed(f'prep answer {question_id}; prep review --resume {question_id}')}",
                soft_wrap=True,
            )


def _again(card: Card, now: dt.datetime) -> Any:
    if card.suspended:
        return "suspended"
    if card.surprise:
        return "next session"
    days = (card.due.astimezone(now.tzinfo).date() - now.date()).days
    return "today" if days <= 0 else f"in {days} day{'s' * (days > 1)}"
