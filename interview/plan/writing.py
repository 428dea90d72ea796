"""The plan as a check-off list in Markdown, and as a calendar file (iCalendar, RFC 5545)."""

from __future__ import annotations

import datetime as dt
from itertools import groupby

from interview.plan.layout import Day
from interview.plan.make import Plan


def check_list(plan: Plan) -> str:
    """Return Markdown with a box to tick per task, grouped by week."""
    lines = [f"# Until the interview on {plan.interview:%A} {plan.interview.isoformat()}", ""]
    lines += [
        f"{plan.planned / 60:.1f} h planned, {plan.hours_per_week:g} h a week. Made on {plan.today}.",
        "",
    ]
    for monday, days in by_week(plan):
        if any(day.tasks for day in days):
            lines += [f"## Week of {monday.isoformat()}", ""]
        for day in days:
            if day.tasks:
                lines += [f"### {day.date:%a} {day.date.isoformat()} · {day.minutes:.0f} min", ""]
                lines += [
                    f"- [ ] {task.text}, {task.minutes:.0f} min: `{task.command}`" for task in day.tasks
                ]
                lines += [""]
    if plan.left_out:
        lines += ["## Left out", ""]
        lines += [*(f"- {entry.what}: {entry.why}" for entry in plan.left_out), ""]
    return "\n".join(lines)


def by_week(plan: Plan) -> list[tuple[dt.date, list[Day]]]:
    """Return (Monday, days) of each week."""
    weeks = groupby(plan.days, key=lambda day: day.date - dt.timedelta(days=day.date.weekday()))
    return [(monday, list(days)) for monday, days in weeks]


def calendar(plan: Plan, at: dt.time, now: dt.datetime) -> str:
    """Return a calendar with an event per day that has tasks, at this hour of the local time zone, and the day of the
    interview.

    The UID of a day is always the same and SEQUENCE grows with time, so importing a newer plan updates the events.
    """
    stamp = _utc(now)
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//prep//prep plan//EN", "CALSCALE:GREGORIAN"]
    for day in plan.days:
        if not day.tasks:
            continue
        start = dt.datetime.combine(day.date, at).astimezone()
        what = "\n".join(f"{task.text}, {task.minutes:.0f} min: {task.command}" for task in day.tasks)
        lines += [
            "BEGIN:VEVENT",
            f"UID:{day.date.isoformat()}@plan.prep",
            f"DTSTAMP:{stamp}",
            f"SEQUENCE:{int(now.timestamp()) // 60}",
            f"DTSTART:{_utc(start)}",
            f"DTEND:{_utc(start + dt.timedelta(minutes=round(day.minutes)))}",
            f"SUMMARY:{_text('prep: ' + ', '.join(task.text for task in day.tasks))}",
            f"DESCRIPTION:{_text(what)}",
            "END:VEVENT",
        ]
    lines += [
        "BEGIN:VEVENT",
        "UID:interview@plan.prep",
        f"DTSTAMP:{stamp}",
        f"SEQUENCE:{int(now.timestamp()) // 60}",
        f"DTSTART;VALUE=DATE:{plan.interview:%Y%m%d}",
        f"DTEND;VALUE=DATE:{plan.interview + dt.timedelta(days=1):%Y%m%d}",
        "SUMMARY:Interview",
        "TRANSP:TRANSPARENT",
        "END:VEVENT",
    ]
    return "".join(_folded(line) for line in [*lines, "END:VCALENDAR"])


def _utc(time: dt.datetime) -> str:
    return f"{time.astimezone(dt.UTC):%Y%m%dT%H%M%SZ}"


def _text(value: str) -> str:
    """Escape a text value."""
    for character in "\\;,":
        value = value.replace(character, "\\" + character)
    return value.replace("\n", "\\n")


def _folded(line: str) -> str:
    """Return lines of at most 75 octets with CRLF; a continuation starts with a space. No character is divided."""
    lines = [""]
    for character in line:
        if len((lines[-1] + character).encode()) > 75:
            lines.append(" ")
        lines[-1] += character
    return "".join(part + "\r\n" for part in lines)
