"""`prep today`: one screen with the work of the day."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict, dataclass
from textwrap import shorten
from typing import Any

from app.cli import terminal
from app.cli.options import JsonOption, ScriptOption
from app.cli.progress import bar
from app.cli.progress import show as show_progress
from app.cli.quiz.dialogue import Dialogue, Quit
from app.cli.quiz.start import drawn, hold, open_bank, open_state
from app.cli.review import run
from interview.plan.layout import Day
from interview.plan.learner import Learner
from interview.plan.make import make_plan, plan_without_date
from prep_common.text import counted
from quizzes.learning.calibration import Calibration, calibration
from quizzes.learning.plan import Plan
from quizzes.learning.progress import Progress, asked, progress
from quizzes.learning.review import cards
from quizzes.learning.selection import due, local_now, pick
from quizzes.question_bank import Bank
from quizzes.state import Settings, State
from quizzes.topics import ROLES, TOPICS


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
    """New questions and reviews; those of `prep plan` if there is an interview date in the future."""
    day: Day | None
    """Today in `prep plan`; None without an interview date in the future."""

    @property
    def first_command(self) -> str:
        return "prep review" if self.due else "prep quiz"


def today(script: ScriptOption = None, json: JsonOption = False) -> None:
    """Show due reviews, new questions and your progress. Enter starts the reviews.

    Example: prep today
    """
    bank = open_bank()
    with open_state() as state:
        summary = overview(bank, state)
        if json:
            return terminal.print_json(as_json(summary))
        show(summary)
        dialogue = Dialogue(script)
        if not dialogue.is_live and script is None:
            return terminal.next_command(summary.first_command)
        try:
            enter = "reviews" if summary.due else "new questions"
            key = dialogue.read(f"\n Enter {enter} · n new questions · p progress · q quit > ").lower()
        except Quit:
            return
        if key == "p":
            show_progress(bank, state)
        elif key == "n" or (key == "" and not summary.due):
            _new_questions(summary, bank, state, dialogue)
        elif key == "":
            run(bank, state, dialogue=dialogue)
        elif key != "q":
            terminal.next_command(summary.first_command, f"{key!r} is not one of the keys")


def _new_questions(summary: Overview, bank: Bank, state: State, dialogue: Dialogue) -> None:
    """Ask new questions of the learner's role and level, from the topic with the most to gain if it has any."""
    seed = drawn(None)
    fitting = {entry.id for entry in asked(bank, summary.settings.role, summary.settings.level)}
    count = min(summary.plan.new_today or 5, 10)
    for topic in (summary.topic, None):
        picked = pick(bank, state, topic=topic, n=len(bank), seed=seed)
        items = [(p.id, p.seed) for p in picked if p.why == "new" and p.id in fitting][:count]
        if items:
            spec = {"topic": topic, "seed": seed}
            hold(items, bank=bank, state=state, kind="quiz", spec=spec, dialogue=dialogue)
            terminal.next_command("prep today")
            return
    terminal.out().print("you have seen every question of your role and level; reviews repeat them")
    terminal.next_command("prep review --ahead 7")


def overview(bank: Bank, state: State, now: dt.datetime | None = None) -> Overview:
    """Collect the values of the screen."""
    now = now or local_now()
    settings = state.settings
    ready = due(bank, state, now=now)
    known = cards(state, now)
    left = (settings.interview_date - now.date()).days if settings.interview_date else None
    standing = progress(bank, state, now=now)
    kept = [card for name, card in known.items() if name in bank]
    learner = Learner.read(bank, state, now)
    coming = make_plan(learner) if left is not None and left > 0 else None
    return Overview(
        settings=settings,
        days_left=left if left is not None and left >= 0 else None,
        due=len(ready),
        due_minutes=sum(picked.entry.minutes for picked in ready),
        surprises=sum(picked.why == "surprise" for picked in ready),
        suspended=sum(card.suspended for card in kept),
        topic=standing.lever,
        progress=standing,
        calibration=calibration(state.attempts(scored=True), state.votes()),
        plan=plan_without_date(learner) if coming is None else coming.questions,
        day=coming.days[0] if coming is not None else None,
    )


def as_json(summary: Overview) -> dict[str, Any]:
    plain = asdict(summary)
    date = summary.settings.interview_date
    plain["settings"]["interview_date"] = date.isoformat() if date else None
    names = ("new_today", "new_per_week", "new_total", "reviews_per_day")
    plain["plan"] |= {name: getattr(summary.plan, name) for name in names}
    if summary.day is not None:
        plain["day"]["date"] = summary.day.date.isoformat()
    return plain


def show(summary: Overview) -> None:
    """Print at most a dozen lines."""
    console = terminal.out()
    terminal.say(f"[bold]prep[/]  {_title(summary)}\n")
    for name, figure, words, cost in _lines(summary):
        console.print(f" [bold]{name:<13}[/]{figure:>5}  {words}" + (f"  [dim]{cost}[/]" if cost else ""))
    date = summary.settings.interview_date
    if date is not None and summary.days_left is None:
        console.print(
            f"\n [yellow]the interview of {date} has passed[/]; prep plan --interview DATE sets the next"
        )
    if summary.settings.role is None:
        console.print("\n [dim]prep start asks for your role and interview date and makes a plan[/]")


def _title(summary: Overview) -> str:
    settings = summary.settings
    parts = []
    if summary.days_left is not None:
        parts.append(f"{counted(summary.days_left, 'day')} to the interview")
    if settings.role:
        role = ROLES.get(settings.role, settings.role).split(":")[0]
        parts.append(", ".join(filter(None, (role, settings.level))))
    return " · ".join(parts) or "no plan yet"


def _lines(summary: Overview) -> list[tuple[str, str, str, str]]:
    """Return (name, number, text, cost) of each line."""
    surprise = f"{counted(summary.surprises, 'surprise')} first" if summary.surprises else ""
    minutes = f"about {summary.due_minutes:.0f} min" if summary.due else ""
    lines = [("reviews due", str(summary.due), surprise, minutes)]
    plan = summary.plan
    if not plan.days_with_new:
        lines.append(("new", "0", "none on the last day; review what you know", ""))
    else:
        words = f"{plan.new_per_week} in the next 7 days, {summary.settings.hours_per_week:g} h a week"
        lines.append(("new", str(plan.new_today), words, ""))
    if summary.day is not None:
        tasks = ", ".join(task.text for task in summary.day.tasks) or "a free day"
        lines.append(
            ("plan", f"{summary.day.minutes:.0f}", shorten(f"min: {tasks}", 58, placeholder=" ..."), "")
        )
    if summary.topic:
        words = shorten(f"{summary.topic}: {TOPICS[summary.topic]}", 58, placeholder=" ...")
        lines.append(("topic", "", words, ""))
    readiness = summary.progress.readiness
    lines.append(("readiness", f"{readiness:.0f}", f"{bar(readiness / 100)} of 100", ""))
    if summary.calibration:
        c = summary.calibration
        lines.append(("calibration", "", f"mean confidence {c.said:.0%}, right {c.was:.0%}", f"n={c.n}"))
    if summary.suspended:
        words = terminal.as_typed("forgotten too often; prep progress lists them")
        lines.append(("suspended", str(summary.suspended), words, ""))
    return lines
