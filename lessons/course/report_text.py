"""A report of checks as text for terminals and as a table for notebooks."""

from __future__ import annotations

import html
import textwrap

from lessons.course.checking import CheckResult, Report
from lessons.course.lesson_files import find_exercise

WIDTH = 80


def headline(report: Report) -> str:
    """Return one line: the verdict of a report."""
    if report.problem:
        return f"{report.exercise}: {report.problem}"
    good = sum(result.ok for result in report.results)
    verdict = "solved" if report.ok else "not yet"
    return f"{report.exercise}: {good} of {len(report.results)} checks pass, {verdict}"


def explanation(report: Report) -> str:
    """Return how the reference solution works, if the learner's own has passed; else ""."""
    return find_exercise(report.exercise)[1].explain if report.ok else ""


def as_text(report: Report) -> str:
    lines = [headline(report)]
    for result in report.results:
        lines.append(f"{'PASS' if result.ok else 'FAIL'}  {result.says}")
        lines += [f"      {line}" for line in details(result)]
    if report.output and not report.ok:
        lines += ["your code printed:", *(f"  {line}" for line in report.output.splitlines()[-8:])]
    lines += textwrap.wrap(explanation(report), WIDTH)
    return "\n".join(lines)


def details(result: CheckResult) -> list[str]:
    """Return the lines below a failed check: reason, counter-example, trace."""
    found = [result.why] if result.why else []
    if result.example:
        found.append(f"smallest example: {result.example}")
    if result.right_trace:
        found.append(f"compare: prep trace diff {result.trace} {result.right_trace}")
    if result.trace:
        found.append(f"look at it: prep app --trace {result.trace} --step {result.step}")
    return found


def as_html(report: Report) -> str:
    rows = []
    for result in report.results:
        more = "".join(f"<br><code>{html.escape(line)}</code>" for line in details(result))
        mark = "&#10003; pass" if result.ok else "&#10007; fail"
        rows.append(
            f"<tr><td style='white-space:nowrap'>{mark}</td>"
            f"<td style='text-align:left'>{html.escape(result.says)}{more}</td></tr>"
        )
    table = f"<table>{''.join(rows)}</table>" if rows else ""
    printed = html.escape(report.output) if report.output and not report.ok else ""
    said = f"<p>your code printed:</p><pre>{printed}</pre>" if printed else ""
    why = f"<p>{html.escape(explained)}</p>" if (explained := explanation(report)) else ""
    return f"<p><b>{html.escape(headline(report))}</b></p>{table}{said}{why}"
