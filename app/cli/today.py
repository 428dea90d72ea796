"""`prep today`: one screen with the work of the day."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict, dataclass
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from app.cli import terminal
from app.cli.settings import JsonOption, ScriptOption

if TYPE_CHECKING:
    from app.cli.quiz.dialogue import Dialogue
    from quizzes.learning.calibration import Calibration
    from quizzes.learning.plan import Plan
    from quizzes.learning.progress import Progress
    from quizzes.question_bank import Bank
    from quizzes.state import Settings, State

app = terminal.command_app()
TYPICAL_MINUTES = 3.0


@dataclass(frozen=True)
class Overview:
    """Values shown on the screen."""

    settings: Settings
    days_left: int | None
    """Days to the interview; None without a date or after it."""
    due: int
    due_minutes: float
    surprises: int
    suspended: int
    topic: str | None
    """Topic with the most to gain."""
    progress: Progress
    calibration: Calibration | None
    plan: Plan


@app.command()
def today(
    script: ScriptOption = None,
    json: JsonOption = False,
) -> None:
    """Show due reviews, new questions and your progress. Enter starts the reviews.

    Example: prep today
    """
    from app.cli.quiz.dialogue import Dialogue, Quit
    from app.cli.quiz.start import open_bank, open_state

    bank = open_bank()
    with open_state() as state:
        found = overview(bank, state)
        if json:
            terminal.print_json(as_json(found))
            return
        show(found)
        command = first_command(found)
        dialogue = Dialogue(script)
        if not dialogue.is_live and script is None:
            terminal.next_command(command)
            return
        try:
            enter = "reviews" if found.due else "new questions"
            key = dialogue.read(f"\n Enter {enter} · n new questions · p progress · q quit > ").lower()
        except Quit:
            return
        _go(key, found, bank, state, dialogue)


def _go(key: str, found: Overview, bank: Bank, state: State, dialogue: Dialogue) -> None:
    """Run the command behind a key."""
    if key == "p":
        from app.cli.progress import show as show_progress

        show_progress(bank, state)
    elif key == "n" or (key == "" and not found.due):
        _new_questions(found, bank, state, dialogue)
    elif key == "":
        from app.cli.review import run

        run(bank, state, dialogue=dialogue)
    elif key != "q":
        terminal.next_command(first_command(found), f"{key!r} is not one of the keys")


def _new_questions(found: Overview, bank: Bank, state: State, dialogue: Dialogue) -> None:
    """Ask new questions of the learner's role and level, from the topic with the most to gain if it has any."""
    import random

    from app.cli.quiz.sitting import Item
    from app.cli.quiz.start import hold
    from quizzes.learning.progress import asked
    from quizzes.learning.selection import pick

    seed = random.SystemRandom().randrange(1 << 30)
    fitting = {entry.id for entry in asked(bank, found.settings.role, found.settings.level)}
    count = min(found.plan.new_today or 5, 10)
    for topic in (found.topic, None):
        picked = pick(bank, state, topic=topic, n=len(bank), seed=seed)
        items = [Item(p.id, p.seed) for p in picked if p.why == "new" and p.id in fitting][:count]
        if items:
            hold(
                items,
                bank=bank,
                state=state,
                kind="quiz",
                spec={"topic": topic, "seed": seed},
                dialogue=dialogue,
            )
            terminal.next_command("prep today")
            return
    terminal.out().print("you have seen every question of your role and level; reviews repeat them")
    terminal.next_command("prep review --ahead 7")


def overview(bank: Bank, state: State, now: dt.datetime | None = None) -> Overview:
    """Collect the values of the screen."""
    from quizzes.learning.calibration import calibration
    from quizzes.learning.plan import plan
    from quizzes.learning.progress import asked, progress
    from quizzes.learning.review import cards
    from quizzes.learning.selection import due, local_now

    now = now or local_now()
    settings = state.settings
    ready = due(bank, state, now=now)
    known = cards(state)
    entries = asked(bank, settings.role, settings.level)
    unseen = [entry for entry in entries if entry.id not in known]
    left = (settings.interview_date - now.date()).days if settings.interview_date else None
    standing = progress(bank, state, now=now)
    return Overview(
        settings=settings,
        days_left=left if left is not None and left >= 0 else None,
        due=len(ready),
        due_minutes=sum(picked.entry.minutes for picked in ready),
        surprises=sum(picked.why == "surprise" for picked in ready),
        suspended=sum(card.suspended for name, card in known.items() if name in bank),
        topic=standing.lever,
        progress=standing,
        calibration=calibration(state.attempts(scored=True), state.votes()),
        plan=plan(
            [card for name, card in known.items() if name in bank],
            unseen=len(unseen),
            minutes_per_question=sum(e.minutes for e in entries) / len(entries)
            if entries
            else TYPICAL_MINUTES,
            hours_per_week=settings.hours_per_week,
            interview=settings.interview_date,
            now=now,
        ),
    )


def as_json(found: Overview) -> dict[str, Any]:
    plain = asdict(found)
    date = found.settings.interview_date
    plain["settings"]["interview_date"] = date.isoformat() if date else None
    return plain


def first_command(found: Overview) -> str:
    return "prep review" if found.due else "prep quiz"


def show(found: Overview) -> None:
    """Print at most a dozen lines."""
    console = terminal.out()
    console.print(f"[bold]prep[/]  {_title(found)}\n", soft_wrap=True)
    for name, figure, words, cost in _lines(found):
        console.print(f" [bold]{name:<13}[/]{figure:>5}  {words}" + (f"  [dim]{cost}[/]" if cost else ""))
    if found.settings.role is None:
        console.print("\n [dim]prep start asks for your role and interview date and makes a plan[/]")


def _title(found: Overview) -> str:
    from quizzes.topics import ROLES

    settings = found.settings
    parts = []
    if found.days_left is not None:
        parts.append(f"{found.days_left} day{'s' * (found.days_left != 1)} to the interview")
    if settings.role:
        role = ROLES.get(settings.role, settings.role).split(":")[0]
        parts.append(f"{role}{', ' + settings.level if settings.level else ''}")
    return " · ".join(parts) or "no plan yet"


def _lines(found: Overview) -> list[tuple[str, str, str, str]]:
    """Return (name, number, text, cost) of each line."""
    from app.cli.progress import bar
    from quizzes.topics import TOPICS

    surprise = f"{found.surprises} surprise{'s' * (found.surprises > 1)} first" if found.surprises else ""
    lines = [
        ("reviews due", str(found.due), surprise, f"about {found.due_minutes:.0f} min" if found.due else "")
    ]
    plan = found.plan
    if not plan.days_with_new:
        lines.append(("new", "0", "none in the last days before the interview; review what you know", ""))
    elif not plan.enough_time:
        lines.append(("new", "0", "none: the reviews alone need more than your hours per week", ""))
    else:
        lines.append(
            (
                "new",
                str(plan.new_today),
                f"{plan.new_per_week} per week fit into {found.settings.hours_per_week:g} h",
                "",
            )
        )
    if found.topic:
        words = shorten(f"{found.topic}: {TOPICS[found.topic]}", 58, placeholder=" ...")
        lines.append(("topic", "", words, ""))
    readiness = found.progress.readiness
    lines.append(("readiness", f"{readiness:.0f}", f"{bar(readiness / 100)} of 100", ""))
    if found.calibration:
        c = found.calibration
        lines.append(("calibration", "", f"mean confidence {c.said:.0%}, right {c.was:.0%}", f"n={c.n}"))
    if found.suspended:
        words = terminal.as_typed("forgotten too often; prep progress lists them")
        lines.append(("suspended", str(found.suspended), words, ""))
    return lines
