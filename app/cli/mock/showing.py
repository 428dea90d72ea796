"""Print what the candidate sees: the clock, the interviewer's words, a prediction beside the measured figure."""

from __future__ import annotations

import re
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from app.cli import terminal
from app.cli.mock.floor import clock_time
from app.cli.quiz import showing
from app.cli.run import plain
from interview.mock.coding import Checked
from interview.mock.scenario import STAGE_NAMES, role_name
from interview.mock.talk import Spec
from interview.mock.turns import Form, Turn

LONG_CELL = 30
"""Characters from which a cell holds words, which begin at the left."""
COST = "cost"
"""Row of a design that is a figure, not a goal."""
FENCED = re.compile(r"^```\w*\n(.*?)^```[ ]*\n*", re.DOTALL | re.MULTILINE)
AMBER, OVER = 0.8, 1.2
"""Shares of a step's minutes: a warning, and the end."""


def console() -> Console:
    return showing.console()


def rule(where: Console) -> None:
    showing.rule(where)


def opening(spec: Spec, how: str = "") -> None:
    """Print the line at the top of a session. how: when there are verdicts."""
    coach = how or ("verdicts at once" if spec.coach else "verdicts in the report")
    line = f"MOCK · {role_name(spec.role)}, {spec.level} · {spec.minutes} min · {coach}"
    where = console()
    where.print(f"\n[bold]{escape(line)}[/]", soft_wrap=not where.is_terminal)


def heading(text: str) -> None:
    where = console()
    where.print()
    showing.rule(where)
    where.print(f" [bold cyan]{escape(text)}[/]")


def step_line(turn: Turn, elapsed: float, minutes: int) -> None:
    """Print where the session is: the stage at the left, the clock at the right."""
    where = console()
    left = STAGE_NAMES.get(turn.stage, turn.stage)
    if turn.minutes:
        left += f", about {turn.minutes:g} min"
    right = f"{clock_time(elapsed)} / {minutes}:00"
    width = min(where.width, showing.WIDTH) - 1
    gap = " " * max(2, width - len(left) - len(right) - 1)
    where.print()
    showing.rule(where)
    where.print(f" [bold cyan]{escape(left)}[/]{gap}[dim]{right}[/]", soft_wrap=True)


def said(text: str, *, first: str = "Interviewer:") -> None:
    """Print what the interviewer says: paragraphs, quotes, code between fences verbatim."""
    if not text.strip():
        return
    for place, part in enumerate(FENCED.split(f"**{first}** {text}")):
        if place % 2:
            exhibit(part.rstrip())
            console().print()
        else:
            _words(part)


def _words(text: str) -> None:
    blocks = re.split(r"\n(?=> )|(?<=\n)(?=[^>\n])", text) if "\n> " in text else None
    for block in blocks or [text]:
        is_quote = block.startswith(">")
        body = "\n".join(line.removeprefix(">").strip() for line in block.splitlines()) if is_quote else block
        if body.strip():
            console().print(showing.prose(body, indent=4 if is_quote else 1))


def chart(curve: dict[str, Any], *, coach: bool, who: str = "you") -> None:
    """Print the prediction beside the measured figure. Verdicts on a prediction are for coached sessions."""
    rows = curve.get("rows") or ()
    if not rows:
        return
    is_prediction = any(said for _, said, *_ in rows)
    with_marks = coach or not is_prediction
    table = terminal.framed_table()
    headings = ["", f"{who} said", "measured"] if is_prediction else ["", "measured"]
    is_long = any(len(str(cell)) > LONG_CELL for row in rows for cell in row[1:3])
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if is_long or number == 0 else "right", overflow="fold")
    if with_marks:
        table.add_column("")
    for what, said_, measured, ok in rows:
        cells = [showing.inline(str(what))]
        cells += [_cell(said_)] if is_prediction else []
        cells.append(_cell(measured))
        if with_marks:
            without = what == COST or is_prediction and not said_
            cells.append("" if without else _verdict(ok, is_prediction))
        table.add_row(*cells)
    where = console()
    where.width = min(where.width, showing.WIDTH)
    where.print(Padding(table, (0, 0, 0, 1)))


def _cell(value: Any) -> str:
    return escape(value) if isinstance(value, str) else plain(value)


def _verdict(ok: bool, is_prediction: bool) -> str:
    words = ("PASS", "MISS") if is_prediction else ("met", "not met")
    return f"{terminal.mark(ok)} {words[0 if ok else 1]}"


def menu(texts: list[str] | dict[int, str]) -> None:
    """Print texts with their numbers; those of a list are 1, 2, …"""
    where = console()
    where.print()
    for number, text in texts.items() if isinstance(texts, dict) else enumerate(texts, 1):
        where.print(showing.numbered(f"{number}", text))
    if texts:
        where.print()


def quote(text: str) -> None:
    """Print what the candidate wrote, dimmed and indented."""
    console().print(Padding(f"[dim]{escape(text)}[/]", (0, 0, 0, 5), expand=False))


def checks(checked: Checked) -> None:
    """Print the checks of a program as `prep lesson check` does."""
    if checked.problem:
        warning(checked.problem)
    where = console()
    for ok, says, details in checked.checks:
        where.print(f" {terminal.mark(ok)} {showing.inline(says)}")
        for line in details:
            where.print(Padding(f"[yellow]{escape(line)}[/]", (0, 0, 0, 5), expand=False))
    total = len(checked.passed) + len(checked.failed)
    if total:
        where.print(f" [bold]{len(checked.passed)} of {total} checks pass[/]")


def exhibit(text: str) -> None:
    """Print code, a log or a table verbatim."""
    where = console()
    where.print()
    where.print(Padding(Text(text), (0, 0, 0, 3)))


def fields(want: Form, values: dict[str, Any]) -> None:
    """Print the fields of a design with their values and limits."""
    table = terminal.framed_table()
    for heading, side in (("field", "left"), ("", "left"), ("value", "right"), ("possible", "left")):
        table.add_column(heading, justify=side, overflow="fold")  # type: ignore[arg-type]
    for pick in want.fields:
        unit = f" {pick.unit}" if pick.unit else ""
        possible = ", ".join(pick.options) if pick.options else f"{pick.lo:,g} to {pick.hi:,g}"
        value = values.get(pick.id)
        shown = "-" if value is None else f"{plain(value)}{escape(unit)}"
        table.add_row(f"[bold]{pick.id}[/]", showing.inline(pick.ask), shown, escape(possible))
    where = console()
    where.width = min(where.width, showing.WIDTH)
    where.print(Padding(table, (0, 0, 0, 1)))


def warning(text: str) -> None:
    console().print(Padding(f"[yellow]{escape(text)}[/]", (0, 0, 0, 1), expand=False))


def note(text: str) -> None:
    console().print(showing.note(escape(text)))
