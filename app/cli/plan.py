"""`prep plan`: every day until the interview, with what to do."""

from __future__ import annotations

import datetime as dt
import shlex
from dataclasses import asdict
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

from app.cli import terminal
from app.cli.options import JsonOption, ScriptOption, make_folder_of, option
from app.cli.quiz.dialogue import Dialogue
from app.cli.quiz.start import open_bank
from app.cli.start import change_settings, chart
from interview.plan.layout import Day
from interview.plan.learner import Learner
from interview.plan.make import Plan, make_plan
from interview.plan.writing import by_week, calendar, check_list
from lessons.course.lesson_files import lessons
from prep_common.paths import write_atomically
from prep_common.text import counted, join_and
from quizzes.learning.plan import Plan as QuestionPlan
from quizzes.state import State
from quizzes.topics import ROLES

WIDTH = 79
LEAST_WIDTH = 16
"""Columns beside a label, however narrow the terminal is."""
DETAILED_DAYS = 14
"""Days shown one by one; later weeks have a line each."""
NAMES = {
    "lesson": "lessons",
    "lab": "labs",
    "claim": "claims",
    "new": "new",
    "review": "reviews",
    "mock": "mocks",
}


def plan(
    interview: Annotated[str | None, option("A date (2026-12-15) or days from now.", metavar="DATE")] = None,
    hours: Annotated[float | None, option("Hours of practice per week.")] = None,
    role: Annotated[str | None, option("inference, kernel, platform, sre or applied.")] = None,
    level: Annotated[str | None, option("junior, mid, senior or staff.")] = None,
    all_: Annotated[bool, option("Show every day, however far the interview is.", "--all")] = False,
    ics: Annotated[Path | None, option("Write a calendar file.", metavar="FILE")] = None,
    at: Annotated[str, option("Hour of the calendar's events.", metavar="HH:MM")] = "19:00",
    markdown: Annotated[Path | None, option("Write a check-off list.", metavar="FILE")] = None,
    script: ScriptOption = None,
    json: JsonOption = False,
) -> None:
    """Show every day until the interview: lessons, labs, questions, reviews, claims and mock interviews.

    Options that you give are saved, as prep start does; without options the saved ones count. The plan follows what
    you have done: what you miss moves to the next days. Import the calendar file again to update its events.

    \b
    Examples:
      prep plan --interview 2026-12-15 --hours 5 --role sre
      prep plan
      prep plan --ics plan.ics --at 19:00
      prep plan --markdown plan.md
    """
    bank = open_bank()
    with State.open() as state:  # not open_state: a plan without your answers would mislead
        options: dict[str, Any] = {
            "interview": interview,
            "hours": hours,
            "role": role,
            "level": level,
            "all": all_,
        }
        options |= {"ics": ics, "markdown": markdown, "script": script, "json": json}
        hour = _hour(at, options, has_date=_has_date(state, dt.date.today()))
        make_folder_of(ics, markdown)
        given = {"role": role, "level": level, "interview_date": interview, "hours_per_week": hours}
        _settle(state, given, Dialogue(script, quiet=json))
        learner = Learner.read(bank, state)
    schedule = make_plan(learner)
    for path, text in ((ics, calendar(schedule, hour, learner.now)), (markdown, check_list(schedule))):
        if path is not None:
            write_atomically(path, text)
            terminal.note(f"{terminal.mark(True)} {terminal.literal(path)}")
    if json:
        return terminal.print_json(as_json(schedule))
    if ics is None and markdown is None:
        show(schedule, learner, whole=all_)
    terminal.next_command(next_step(schedule), "" if schedule.days else "the interview is today: nothing new")


def _settle(state: State, given: dict[str, Any], dialogue: Dialogue) -> None:
    """Save the given settings, and ask for the others if the date is missing or past.

    Raises Problem if the date cannot be asked for.
    """
    today = dt.date.today()
    change_settings(state, given, dialogue, today, ask=False)
    if _has_date(state, today):
        return
    date = state.settings.interview_date
    why = f"the interview of {date} has passed" if date else "no interview date is set"
    if dialogue.can_ask:
        if not dialogue.quiet:
            terminal.note(why)
        change_settings(state, given, dialogue, today, ask=True)
    if not _has_date(state, today):
        raise terminal.Problem(why, "prep plan --interview 21   a date, or days from now")


def _has_date(state: State, today: dt.date) -> bool:
    date = state.settings.interview_date
    return date is not None and date >= today


def _hour(text: str, options: dict[str, Any], *, has_date: bool) -> dt.time:
    """Return the hour of the calendar. Raises Problem, whose next step is the command with another hour.

    options: those that were given. The next step has a date if none is given or saved, and a calendar.
    """
    try:
        return dt.time.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        why = f"--at {text!r} is not a time; use HH:MM"
        if not has_date and options["interview"] is None:
            why += ". No interview date is set either"
            options = {**options, "interview": 21}
        if options["ics"] is None:
            options = {**options, "ics": "plan.ics"}
        words = [
            word
            for name, value in options.items()
            if value is not None and value is not False
            for word in (f"--{name}", *([] if value is True else [f"{value}"]))
        ]
        raise terminal.Problem(why, shlex.join(["prep", "plan", *words, "--at", "19:00"])) from None


def as_json(schedule: Plan) -> dict[str, Any]:
    plain = asdict(schedule)
    plain["today"], plain["interview"] = schedule.today.isoformat(), schedule.interview.isoformat()
    for day, row in zip(schedule.days, plain["days"], strict=True):
        row["date"], row["minutes"] = day.date.isoformat(), day.minutes
    return {**plain, "minutes": schedule.minutes, "planned": schedule.planned}


def next_step(schedule: Plan) -> str:
    """Return the first command of today, or the one that suits a day without tasks."""
    tasks = schedule.days[0].tasks if schedule.days else ()
    return tasks[0].command if tasks else "prep review --surprises" if not schedule.days else "prep today"


def show(schedule: Plan, learner: Learner, *, whole: bool = False) -> None:
    """Print the plan by weeks, and what it leaves out."""
    terminal.say(f"[bold]plan[/]  {_title(schedule, learner)}")
    shown = schedule.days if whole else schedule.days[:DETAILED_DAYS]
    later = False
    for monday, days in by_week(schedule):
        minutes = sum(day.minutes for day in days)
        heading = f"week of {monday.day} {monday:%b}"
        if days[0] in shown:
            terminal.say(f"\n [bold]{heading}[/]  {minutes / 60:.1f} h")
            for day in days:
                _show_day(day, schedule.today)
        else:
            if not later:
                terminal.say("\n [bold]later weeks, by their first day[/]")
            later = True
            _print(f" {monday.day:>2} {monday:%b}  {minutes / 60:4.1f} h  ", _sums(days))
    if schedule.days:
        terminal.say(
            f"\n {schedule.interview:%a} {schedule.interview.day:>2} {schedule.interview:%b}  interview"
        )
        _print_questions(schedule.questions)
    _print_lessons(schedule)
    _print_left_out(schedule)
    if schedule.weakest:
        topics = join_and([topic.replace("_", " ") for topic in schedule.weakest])
        _print(" weakest   ", [f"{topics}: most to gain for your role"])


def _title(schedule: Plan, learner: Learner) -> str:
    role = ROLES[learner.settings.role].partition(":")[0] if learner.settings.role else "all roles"
    who = ", ".join(filter(None, (role, learner.settings.level)))
    left = (schedule.interview - schedule.today).days
    when = {0: "the interview is today", 1: "the interview is tomorrow"}.get(
        left, f"{counted(left, 'day')} to the interview"
    )
    return f"{who} · {when} · {schedule.planned / 60:.1f} of {schedule.minutes / 60:.1f} h planned"


def _show_day(day: Day, today: dt.date) -> None:
    sign = ">" if day.date == today else " "
    label = f" {sign} {day.date:%a} {day.date.day:>2} {day.date:%b} "
    if not day.tasks:
        return _print(f"{label}{'':>7}  ", [f"{day.done:.0f} min done" if day.done else "free"])
    done = [f"{day.done:.0f} min done"] if day.done else []
    _print(f"{label}{day.minutes:3.0f} min  ", [*_brief(day), *done])


def _brief(day: Day) -> list[str]:
    """Return a day's tasks, new questions as one; a mock interview names its minutes already."""
    new = [task for task in day.tasks if task.kind == "new"]
    parts = []
    for task in day.tasks:
        if task.kind == "mock":
            parts.append(task.text)
        elif task.kind != "new":
            parts.append(f"{task.text} {task.minutes:.0f}m")
        elif task is new[0]:
            topics = ", ".join(t.text.partition(" on ")[2] for t in new)
            minutes = sum(t.minutes for t in new)
            parts.append(f"{sum(t.count for t in new)} new on {topics} {minutes:.0f}m")
    return parts


def _sums(days: list[Day]) -> list[str]:
    tasks = [task for day in days for task in day.tasks]
    minutes: dict[str, float] = {}
    for task in tasks:
        minutes[task.kind] = minutes.get(task.kind, 0.0) + task.minutes
    return [f"{NAMES.get(kind, kind)} {total:.0f}m" for kind, total in minutes.items()]


def _print(label: str, parts: list[str]) -> None:
    """Print a label and parts beside it; a line breaks between parts if it can, and within a part that is too long."""
    width = max(min(WIDTH, terminal.out().width - 1) - len(label), LEAST_WIDTH)
    tight = " · ".join(part if len(part) > width - 2 else part.replace(" ", "\xa0") for part in parts)
    for number, line in enumerate(wrap(tight, width, break_on_hyphens=False) or [""]):
        shown = (label if number == 0 else " " * len(label)) + line.replace("\xa0", " ")
        terminal.out().print(terminal.literal(shown), soft_wrap=True)


def _print_questions(plan: QuestionPlan) -> None:
    """Print the new questions and reviews of each week from today, and what they lead to."""
    terminal.out().print()
    _print(
        " questions ",
        [
            f"{plan.new_total} new, {counted(sum(plan.reviews), 'review')}",
            f"about {plan.recalled:.0f} recalled on the day",
        ],
    )
    for line in chart(plan, terminal.out().width):
        terminal.out().print(terminal.literal(line), soft_wrap=True)


def _print_lessons(schedule: Plan) -> None:
    """Print what the numbers of the lessons stand for."""
    planned = {
        name[:2] for day in schedule.days for task in day.tasks if task.kind == "lesson" for name in task.ids
    }
    titles = [
        f"L{lesson.number} {lesson.title.partition(':')[0]}"
        for lesson in lessons()
        if lesson.number in planned
    ]
    terminal.out().print()
    if titles:
        _print(" lessons   ", titles)


def _print_left_out(schedule: Plan) -> None:
    label = " left out  "
    missed = [entry for entry in schedule.left_out if entry.kind == "lesson"]
    rest = [entry for entry in schedule.left_out if entry.kind != "lesson"]
    if missed:
        hours = sum(entry.minutes for entry in missed) / 60
        _print(
            label,
            [f"{counted(len(missed), 'lesson')}, {hours:.1f} h, with their share of what you are asked:"],
        )
        label = " " * len(label)
        _print(label, [entry.short for entry in missed])
    if rest:
        _print(label, [f"{entry.what}: {entry.why}" for entry in rest])
