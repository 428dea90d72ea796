"""The report as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from interview.mock.assessment import FAR_OFF, titles
from interview.mock.report.model import Report, StepRow
from interview.mock.scenario import STAGE_NAMES, role_name
from interview.mock.taking_up import literal
from prep_common.text import counted

AXES_CHART, TREND_CHART = "[chart: axes]", "[chart: trend]"
"""Lines that the HTML page replaces by drawings; in Markdown a table says the same."""


def as_markdown(report: Report, *, charts: bool = False) -> str:
    """Return the report. charts: with the lines that stand for drawings."""
    return "\n".join(_lines(report, charts)).strip() + "\n"


def _lines(report: Report, charts: bool) -> Iterator[str]:
    yield f"# Mock interview: {report.title}\n"
    yield (
        f"{role_name(report.role)}, {report.level} · {report.minutes_used:g} of {report.minutes} minutes · "
        f"{report.started[:16].replace('T', ' ')} UTC · session {report.id}\n"
    )
    yield f"**Recommendation for {report.level}: {report.recommendation}.** A machine's reading of this one session.\n"
    if report.reason:
        yield f"Why: {report.reason}.\n"
    yield from _axes(report, charts)
    yield from _conclusions(report)
    yield "## Question by question\n"
    for number, step in enumerate(report.steps, 1):
        yield from _step(number, step)
    yield from _rest(report, charts)


def _axes(report: Report, charts: bool) -> Iterator[str]:
    yield "## Axes\n"
    if charts:
        yield f"{AXES_CHART}\n"
    by_judge = any(row.judge is not None for row in report.axes)
    marks = [
        [row.title, _mark(row.machine), _own(row.own), *([_own(row.judge)] * by_judge), row.observations]
        for row in report.axes
    ]
    yield from table(["axis", "machine", "you", *(["judge"] * by_judge), "observed"], marks)
    yield "An axis with fewer than two observations has no mark. An explanation with its probes counts as two, each "
    yield "round of a design as one. Only the machine's marks decide.\n"
    for row in report.axes:
        if row.machine is not None and row.own is not None and abs(row.own - row.machine) >= FAR_OFF:
            yield f"* You rated {row.title.lower()} {row.own}; the evidence says {row.machine}."
    yield ""
    for row in report.axes:
        if row.machine is not None:
            yield f"### {row.title}: {row.machine}\n\n{row.anchor}\n"
            yield from (f"* {literal(piece)}" for piece in row.evidence)
            yield ""


def _conclusions(report: Report) -> Iterator[str]:
    if report.strengths:
        yield "## Strengths\n"
        yield from (f"* {literal(strength)}" for strength in report.strengths)
        yield ""
    if report.gaps:
        yield "## Gaps\n"
        for gap in report.gaps:
            links = ", ".join(f"`{command(name)}`" for name in gap["learn"])
            yield f"* {literal(gap['step'])}: {literal(gap['why'])}" + (f". Next: {links}" if links else "")
        yield ""
    calibration = report.calibration
    yield "## Calibration\n"
    if calibration["intervals"]:
        yield f"{calibration['held']} of {calibration['intervals']} intervals held; 80 % should.\n"
    if calibration.get("boundless"):
        yield f"{counted(calibration['boundless'], 'interval')} too wide to say anything.\n"
    if calibration["sure"]:
        sure, wrong = counted(calibration["sure"], "time"), counted(calibration["sure_and_wrong"], "time")
        yield f"You were at least 80 % sure {sure}, and wrong {wrong} of these.\n"
    if not calibration["intervals"] and not calibration["sure"]:
        yield "You gave neither an interval nor a confidence of 80 % or more.\n"


def _step(number: int, step: StepRow) -> Iterator[str]:
    late = ", over time" if step.seconds > 72 * step.minutes else ""
    yield f"### {number}. {_stage(step)} · {step.seconds / 60:.1f} of {step.minutes:g} min{late}\n"
    if step.why:
        yield f"*Why this question: {step.why.rstrip('.')}.*\n"
    yield f"{step.asked}\n"
    for question in step.clarified:
        yield f"You asked: “{literal(question['asked'])}” {question['told'] or 'That was left to you.'}\n"
    if step.answer:
        yield from (f"> {line}" for line in literal(step.answer).splitlines() or [""])
        yield ""
    if step.points:
        by_judge = any(point.judge for point in step.points)
        rows = [
            [
                p.say,
                f"{p.own}; {p.doubt}" if p.doubt else p.own,
                _probe(p.probe),
                *([p.judge] * by_judge),
                literal(p.quote),
            ]
            for p in step.points
        ]
        yield from table(
            ["key point", "you", "follow-up", *(["judge"] * by_judge), "nearest words of yours"], rows
        )
    if step.rows:
        yield from table(
            ["", "said", "measured", ""],
            [
                [literal(str(r[0])), literal(str(r[1])), literal(str(r[2])), "right" if r[3] else "off"]
                for r in step.rows
            ],
        )
    if step.ran:
        yield f"`{step.ran}`\n"
    if step.explain:
        yield f"{step.explain}\n"
    if step.evidence:
        yield f"Evidence: {literal('; '.join(step.evidence))}\n"
    if step.five:
        yield f"**An answer that would score 5.** {step.five}\n"
    if step.post_mortem:
        yield re.sub(r"^#", "####", step.post_mortem, flags=re.MULTILINE)


def _rest(report: Report, charts: bool) -> Iterator[str]:
    if report.unreached:
        yield "## Not asked\n"
        yield from (f"* {literal(name)}" for name in report.unreached)
        yield ""
    yield "## Time\n"
    spent = [(f"{step.seconds / 60:.1f}", f"{step.minutes:g}") for step in report.steps]
    stages = [f"{number}. {_stage(step)}" for number, step in enumerate(report.steps, 1)]
    rows = [[stage, *minutes] for stage, minutes in zip(stages, spent, strict=True)]
    yield from table(["", "minutes", "planned"], rows)
    if report.pauses or report.drawings:
        yield f"Pauses: {report.pauses}. Drawings: {report.drawings}.\n"
    if max((len(values) for values in report.trend.values()), default=0) > 1:
        yield "## Trend\n"
        if charts:
            yield f"{TREND_CHART}\n"
        yield from table(
            ["axis", "marks, oldest first"],
            [
                [titles()[axis], " ".join(_mark(value) for value in values)]
                for axis, values in report.trend.items()
            ],
        )
    if report.cards:
        yield f"Cards for review: {', '.join(report.cards)}. `prep review` asks them from the next day on.\n"
    yield f"**Next session**: {report.next_session}.\n"


def table(head: list[str], rows: list[list[Any]]) -> Iterator[str]:
    """Yield a table, followed by an empty line."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(_cell(value) for value in row)} |"
    yield ""


def _cell(value: Any) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", str(value)).replace("\n", " ")


def command(name: str) -> str:
    """Return the command that leads to what a gap names: a lesson, a lab, a claim, a question."""
    if re.fullmatch(r"L\d\d", name):
        return f"prep lesson open {name[1:]}"
    if re.fullmatch(r"[a-z-]+", name):  # ids of questions have a dot
        return f"prep lab new {name}"
    return f"prep claims vote {name}" if re.match(r"[A-Z]", name) else f"prep quiz --question {name}"


def _mark(value: int | None) -> str:
    return "not observed" if value is None else str(value)


def _own(value: int | None) -> str:
    return "" if value is None else str(value)


def _stage(step: StepRow) -> str:
    return STAGE_NAMES.get(step.stage, step.stage)


def _probe(right: bool | None) -> str:
    return "" if right is None else "right" if right else "wrong"
