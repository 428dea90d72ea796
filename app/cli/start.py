"""`prep start`: role, interview date, and a placement test of twelve questions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Annotated, Any

from app.cli import terminal
from app.cli.options import JsonOption, ScriptOption, option
from app.cli.progress import bar
from app.cli.quiz.dialogue import Dialogue, EndOfInput, Quit
from app.cli.quiz.start import drawn, hold, open_bank, open_state
from app.cli.today import as_json, overview
from prep_common.text import counted
from quizzes.learning.placement import ITEMS, LEVELS, Placement, Result
from quizzes.learning.plan import Plan
from quizzes.question_bank import Bank
from quizzes.state import Session, Settings, State
from quizzes.topics import ROLES, resolve

FARTHEST_DAYS = 3650
ROWS = 8
"""Maximum lines of the chart of the plan."""


def start(
    role: Annotated[str | None, option("inference, kernel, platform, sre or applied.")] = None,
    level: Annotated[str | None, option("junior, mid, senior or staff.")] = None,
    interview: Annotated[
        str | None, option("A date (2026-12-15), days from now, or none.", metavar="DATE")
    ] = None,
    hours: Annotated[float | None, option("Hours of practice per week.")] = None,
    date: Annotated[str | None, option(None, "--date", hidden=True)] = None,
    placement: Annotated[bool, option("Ask twelve placement questions.")] = True,
    seed: Annotated[int | None, option("The same seed gives the same placement questions.")] = None,
    script: ScriptOption = None,
    json: JsonOption = False,
) -> None:
    """Set role, level, interview date and hours; then answer twelve placement questions on six topics.

    Options that you give are not asked for. Role and level select the questions, the date and the
    hours set the number of new questions per week.

    \b
    Examples:
      prep start
      prep start --role sre --level senior --interview 2026-12-15 --hours 5
      prep start --interview 21 --no-placement
    """
    if date is not None:
        raise terminal.Problem("there is no option --date", f"use --interview {date}")
    bank = open_bank()
    today = dt.date.today()
    with open_state() as state:
        dialogue = Dialogue(script, quiet=json)
        given = {"role": role, "level": level, "interview_date": interview, "hours_per_week": hours}
        change_settings(
            state, given, dialogue, today, ask=dialogue.is_live or all(v is None for v in given.values())
        )
        result = None
        if placement and _wants_placement(dialogue, json, asked=script is not None or dialogue.is_live):
            result = place(bank, state, dialogue, seed=seed, json=json)
        _tell(bank, state, result, json=json)


def change_settings(
    state: State, given: dict[str, Any], dialogue: Dialogue, today: dt.date, *, ask: bool
) -> None:
    """Save the given settings (name -> text), and those that the learner is asked for. Enter keeps a value.

    Raises ValueError for a value that makes no sense, and KeyboardInterrupt at the end of standard input: nothing is
    saved then.
    """
    now, readers = state.settings, readers_for(today)
    changes = {name: readers[name][1](str(value)) for name, value in given.items() if value is not None}
    if ask:
        changes |= _asked(dialogue, readers, now, {name for name in readers if name not in changes})
    changes = {name: value for name, value in changes.items() if value != getattr(now, name)}
    if changes:
        state.change_settings(**changes)


def _asked(
    dialogue: Dialogue, readers: dict[str, tuple[str, Callable[[str], Any]]], now: Settings, names: set[str]
) -> dict[str, Any]:
    changes = {}
    try:
        for name, (words, read) in readers.items():
            if name not in names:
                continue
            kept = getattr(now, name)
            changes[name] = _ask(dialogue, f" {words} [{'none' if kept is None else kept}] > ", read, kept)
    except EndOfInput:
        raise KeyboardInterrupt from None
    except Quit:
        pass  # keep the answers so far
    return changes


def _ask(dialogue: Dialogue, prompt: str, read: Callable[[str], Any], kept: Any) -> Any:
    while True:
        line = dialogue.read(prompt)
        if not line:
            return kept
        if line.lower() == "q":
            raise Quit
        try:
            return read(line)
        except ValueError as error:
            terminal.tell_error(str(error))


def readers_for(today: dt.date) -> dict[str, tuple[str, Callable[[str], Any]]]:
    """Return, per setting, its prompt and a parser that raises ValueError with a reason."""
    return {
        "role": (f"role: {', '.join(ROLES)}", lambda line: resolve("role", line, ROLES)),
        "level": (
            f"level: {', '.join(LEVELS)}",
            lambda line: resolve("level", line, dict.fromkeys(LEVELS, "")),
        ),
        "interview_date": ("interview: a date, days from now, or none", lambda line: read_date(line, today)),
        "hours_per_week": ("hours a week", read_hours),
    }


def read_date(line: str, today: dt.date) -> dt.date | None:
    """Parse 2026-12-15, 21 (days from today) or none. Raises ValueError."""
    text = line.strip().lower()
    if text in ("none", "-"):
        return None
    if text.isascii() and text.isdigit():
        days = int(text) if len(text) < 6 else FARTHEST_DAYS + 1
    else:
        try:
            days = (dt.date.fromisoformat(text) - today).days
        except ValueError:
            raise ValueError(f"{line!r} is not a date; use YYYY-MM-DD, a number of days, or none") from None
    if days == 0:
        raise ValueError(f"{line!r} is today, which leaves nothing to plan; use a later day, or none")
    if not 0 < days <= FARTHEST_DAYS:
        why = "in the past" if days < 0 else "too far away"
        raise ValueError(f"{line!r} is {why}; today is {today.isoformat()}")
    return today + dt.timedelta(days=days)


def read_hours(line: str) -> float:
    try:
        hours = float(line.strip().removesuffix("h").replace(",", "."))
    except ValueError:
        raise ValueError(f"{line!r} is not a number of hours; use 5 or 2.5") from None
    if not 0 < hours <= 100:
        raise ValueError(f"{line!r} is out of range; use more than 0 and at most 100 hours a week")
    return hours


def _wants_placement(dialogue: Dialogue, json: bool, *, asked: bool) -> bool:
    """Return whether to ask the placement questions: only if there is an input to read answers from."""
    if not asked:
        return False
    if not json:
        terminal.out().print(
            "\n[bold]placement[/]  12 short questions on 6 topics, about 20 minutes. No hints; verdicts at the end."
        )
    try:
        return dialogue.read(" Enter begins, s skips the placement > ").lower() not in ("s", "q", "n", "no")
    except Quit:
        return False


def place(bank: Bank, state: State, dialogue: Dialogue, *, seed: int | None, json: bool) -> Result | None:
    """Ask the placement questions. Their answers count for review. Return None if none was answered."""
    chosen = drawn(seed)
    settings = state.settings
    placement = Placement(bank, settings.role, settings.level, chosen)
    spec = {"role": settings.role, "level": settings.level, "seed": chosen}
    session = state.begin_session("placement", spec)
    hold(
        _adaptive(placement, state, session),
        bank=bank,
        state=state,
        kind="placement",
        session=session,
        dialogue=dialogue,
        exam=True,
        total=ITEMS,
        quiet=json,
    )
    return placement.result() if placement.answers else None


def _adaptive(placement: Placement, state: State, session: Session) -> Iterator[tuple[str, int]]:
    """Yield each item once the previous one is graded. A skipped question counts as wrong."""
    while (entry := placement.next()) is not None:
        yield (entry.id, placement.figures_seed(entry))
        attempts = state.attempts(session_id=session.id, question_id=entry.id)
        if attempts and not attempts[-1].scored:
            placement.skip(entry)
        else:
            placement.answer(entry, bool(attempts) and attempts[-1].correct)


def _tell(bank: Bank, state: State, result: Result | None, *, json: bool) -> None:
    """Print where to begin and the plan."""
    summary = overview(bank, state)
    if json:
        plain = as_json(summary)
        placed = None if result is None else {**asdict(result), "begin_with": result.begin_with}
        return terminal.print_json(
            {"settings": plain["settings"], "plan": plain["plan"], "placement": placed}
        )
    console = terminal.out()
    if result is not None:
        table = terminal.table("topic", "right", "hardest right")
        for row in result.topics:
            hardest = f"difficulty {row.hardest_right}" if row.hardest_right else "-"
            table.add_row(row.topic.replace("_", " "), f"{row.correct} of {row.asked}", hardest)
        console.print(table)
        console.print(
            f"estimated difficulty [bold]{result.difficulty:g}[/] of 5 from {counted(result.answered, 'answer')}: "
            "a starting point, not a grade"
        )
    plan = summary.plan
    when, end = ("", "on the interview day") if summary.days_left else (" in four weeks", "then")
    console.print(
        f"[bold]plan[/]  {plan.minutes_per_day:.0f} min a day: {plan.new_total} new questions{when}, "
        f"about {plan.recalled:.0f} recalled {end}"
    )
    for line in chart(plan, terminal.out().width):
        terminal.out().print(terminal.literal(line), soft_wrap=True)
    begin = result.begin_with if result is not None else summary.topic
    topic = f" --topic {begin}" if begin else ""
    terminal.next_command(f"prep quiz{topic}", "then prep today, once a day")


def chart(plan: Plan, columns: int = 80) -> list[str]:
    """Return bars of the new questions and reviews of each row of weeks, for so many columns; no lines without any."""
    weeks = -(-plan.days // 7)
    per_row = -(-weeks // ROWS)
    rows = []
    for start in range(0, weeks, per_row):
        end, days = min(start + per_row, weeks), slice(start * 7, (start + per_row) * 7)
        label = f"week  {end}" if end == start + 1 else f"weeks {start + 1}-{end}"
        rows.append((label, sum(plan.new[days]), sum(plan.reviews[days])))
    most = max(max(new, reviews) for _, new, reviews in rows)
    if not most:
        return []
    width = max(len(label) for label, _, _ in rows)
    size = min(18, max(1, (columns - width - 27) // 2))
    return [
        f" {label:<{width}}  new {new:>4} {bar(new / most, size)}  reviews {reviews:>4} {bar(reviews / most, size)}"
        for label, new, reviews in rows
    ]
