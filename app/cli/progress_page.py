"""The page of `prep progress --html`: one self-contained file without scripts or external links."""

from __future__ import annotations

import datetime as dt
from html import escape

from quizzes.learning.calibration import LEAST, Calibration
from quizzes.learning.progress import FORMULA, Progress, TopicProgress
from quizzes.state import Settings

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b;
       background: #fff; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .5rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
.big { font-size: 2.5rem; font-weight: 600; }
.dim { color: #595959; }
svg text { font: 12px system-ui, sans-serif; fill: #1b1b1b; }
"""
BLUE, VERMILLION, GREY = "#0072b2", "#d55e00", "#d9d9d9"
"""Colour-blind safe; source: Okabe and Ito."""
SIDE, MARGIN = 260, 36


def page(progress: Progress, calibrated: Calibration | None, settings: Settings) -> str:
    """Return the HTML document."""
    who = ", ".join(filter(None, (settings.role, settings.level))) or "all roles"
    until = f", interview on {settings.interview_date.isoformat()}" if settings.interview_date else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>prep: progress</title><style>{STYLE}</style></head><body>
<h1>Progress</h1>
<p class="dim">{escape(who + until)}; {dt.date.today().isoformat()}</p>
<p><span class="big">{progress.readiness:.0f}</span> of 100 readiness</p>
<p class="dim">{escape(FORMULA)}</p>
<h2>Topics</h2>
<table><thead><tr><th>topic<th>seen<th>right<th>recall now<th>surprises<th>due<th>readiness</tr></thead>
<tbody>
{"".join(_topic(topic) for topic in progress.topics)}</tbody></table>
<h2>Calibration</h2>
{_calibration(calibrated)}
</body></html>
"""


def _topic(topic: TopicProgress) -> str:
    cells = (
        f"{topic.seen}/{topic.available}",
        _percent(topic.accuracy),
        _percent(topic.retention),
        str(topic.surprises),
        str(topic.due),
        _bar(topic.readiness),
    )
    name = escape(topic.topic.replace("_", " "))
    return f"<tr><td>{name}{''.join(f'<td>{cell}' for cell in cells)}</tr>\n"


def _bar(value: float) -> str:
    return (
        f'<svg width="140" height="16" role="img" aria-label="{value:.0f} of 100">'
        f'<rect width="100" height="12" y="2" fill="{GREY}"/>'
        f'<rect width="{value:.1f}" height="12" y="2" fill="{BLUE}"/>'
        f'<text x="106" y="13">{value:.0f}</text></svg>'
    )


def _calibration(calibration: Calibration | None) -> str:
    if calibration is None:
        return "<p>You have not given a confidence yet.</p>"
    words = (
        f"<p>Mean confidence {calibration.said:.0%}, right {calibration.was:.0%} (n={calibration.n}). "
        f"Brier score {calibration.brier:.2f}: 0 is perfect; always answering 50 % scores 0.25.</p>"
    )
    for interval in calibration.intervals:
        widen = (
            ""
            if interval.widen is None
            else f"; intervals {interval.widen:.1f} times as wide would have reached that"
        )
        held = f"{interval.level:.0%} intervals contained {interval.hit_rate:.0%} of the answers (n={interval.n})"
        words += f"<p>{held}{widen}.</p>"
    if not calibration.bins:
        return words + f'<p class="dim">The curve appears once a level of confidence has {LEAST} answers.</p>'
    return words + _curve(calibration)


def _curve(calibration: Calibration) -> str:
    """Draw accuracy over confidence. Perfect calibration lies on the diagonal."""
    total = SIDE + 2 * MARGIN
    points = [(MARGIN + SIDE * b.said, MARGIN + SIDE * (1 - b.was), b) for b in calibration.bins]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{VERMILLION}"/>'
        f'<text x="{x + 8:.1f}" y="{y + 14:.1f}">n={b.n}</text>'
        for x, y, b in points
    )
    told = "; ".join(f"confidence {b.said:.0%}, right {b.was:.0%}, n={b.n}" for b in calibration.bins)
    bottom = MARGIN + SIDE
    return (
        f'<svg width="{total}" height="{total}" role="img" aria-label="{escape(told)}">'
        f'<rect x="{MARGIN}" y="{MARGIN}" width="{SIDE}" height="{SIDE}" fill="none" stroke="{GREY}"/>'
        f'<line x1="{MARGIN}" y1="{bottom}" x2="{bottom}" y2="{MARGIN}" stroke="{GREY}" stroke-dasharray="4"/>'
        f'<polyline points="{line}" fill="none" stroke="{VERMILLION}"/>{dots}'
        f'<text x="{MARGIN}" y="{bottom + 18}">0 %</text><text x="{bottom - 34}" y="{bottom + 18}">100 %</text>'
        f'<text x="{MARGIN + SIDE / 2 - 14}" y="{bottom + 18}">confidence</text>'
        f'<text x="2" y="{MARGIN + 10}">right</text></svg>'
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
