"""The report as one HTML page: its Markdown, with drawings, without scripts or links to other files."""

from __future__ import annotations

from html import escape

from markdown_it import MarkdownIt

from interview.mock.assessment import titles
from interview.mock.report.markdown import AXES_CHART, TREND_CHART, as_markdown
from interview.mock.report.model import Report

STYLE = """
:root { color-scheme: light dark; --ink: light-dark(#1b1b1b, #e8e8e4); --ground: light-dark(#fff, #16181c);
        --dim: light-dark(#595959, #a9a9a4); --line: light-dark(#ddd, #3a3d44); --soft: light-dark(#f4f4f1, #20232a); }
:root[data-theme=light] { color-scheme: light; } :root[data-theme=dark] { color-scheme: dark; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem;
       color: var(--ink); background: var(--ground); }
h1 { line-height: 1.2; } h2 { margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .93rem; }
th, td { padding: .3rem .5rem; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; }
blockquote { margin: .8rem 0; padding: .4rem 1rem; border-left: 3px solid var(--dim); background: var(--soft);
             overflow-wrap: anywhere; }
code { background: var(--soft); padding: .1rem .3rem; overflow-wrap: anywhere; }
svg text { font: 13px system-ui, sans-serif; fill: var(--ink); } svg .dim { fill: var(--dim); }
@media print { body { max-width: none; } h3 { break-after: avoid; } }
"""
BLUE, VERMILLION, GREEN = "#0072b2", "#d55e00", "#009e73"
"""Colour-blind safe; source: Okabe and Ito."""
ROW, LEFT, WIDTH = 30, 130, 560


def as_html(report: Report, *, theme: str | None = None) -> str:
    """Return the page. theme: light or dark; without one, what the reader's system prefers."""
    chosen = f' data-theme="{theme}"' if theme in ("light", "dark") else ""
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(as_markdown(report, charts=True))
    body = body.replace(f"<p>{AXES_CHART}</p>", _axes(report)).replace(
        f"<p>{TREND_CHART}</p>", _trend(report)
    )
    return (
        f'<!doctype html>\n<html lang="en"{chosen}><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Mock interview: {escape(report.title)}</title><style>{STYLE}</style></head><body>\n"
        f"{body}</body></html>\n"
    )


def _axes(report: Report) -> str:
    """Draw the marks: a dot for the machine, a ring for the own rating, a square for a judge."""
    parts = []
    for number in range(1, 6):
        x = _x(number)
        parts.append(
            f'<line x1="{x}" x2="{x}" y1="20" y2="{20 + ROW * len(report.axes)}" stroke="var(--line)"/>'
        )
        parts.append(f'<text class="dim" x="{x}" y="14" text-anchor="middle">{number}</text>')
    for place, row in enumerate(report.axes):
        y = 20 + ROW * place + ROW / 2
        parts.append(f'<text x="0" y="{y + 4}">{escape(row.title)}</text>')
        if row.machine is None:
            parts.append(f'<text class="dim" x="{_x(1)}" y="{y + 4}">not observed</text>')
        else:
            parts.append(f'<circle cx="{_x(row.machine)}" cy="{y}" r="7" fill="{BLUE}"/>')
        if row.own is not None:
            ring = f'fill="none" stroke="{VERMILLION}" stroke-width="2.5"'
            parts.append(f'<circle cx="{_x(row.own)}" cy="{y}" r="10.5" {ring}/>')
        if row.judge is not None:
            parts.append(f'<rect x="{_x(row.judge) - 4}" y="{y - 13}" width="8" height="8" fill="{GREEN}"/>')
    height = 20 + ROW * len(report.axes) + 22
    judged = " · square: judge" if any(row.judge is not None for row in report.axes) else ""
    legend = f"dot: machine · ring: your own rating{judged}"
    parts.append(f'<text class="dim" x="{LEFT}" y="{height - 6}">{legend}</text>')
    told = "; ".join(
        f"{row.title} {row.machine or 'not observed'}, own {row.own or 'none'}" for row in report.axes
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="100%" role="img" aria-label="{escape(told)}">'
        f"{''.join(parts)}</svg>"
    )


def _trend(report: Report) -> str:
    """Draw a line of marks per axis over the sessions."""
    count = max(len(values) for values in report.trend.values())
    parts, height = [], 46
    for place, (axis, values) in enumerate(report.trend.items()):
        top = place * height
        parts.append(f'<text x="0" y="{top + 26}">{escape(titles()[axis])}</text>')
        seen = [(n, value) for n, value in enumerate(values) if value is not None]
        points = [(LEFT + n * (WIDTH - LEFT - 40) / max(1, count - 1), top + 38 - 7 * v, v) for n, v in seen]
        line = " ".join(f"{x:.0f},{y}" for x, y, _ in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{BLUE}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.0f}" cy="{y}" r="3.5" fill="{BLUE}"/>' for x, y, _ in points]
        if points:
            x, y, last = points[-1]
            parts.append(f'<text x="{x + 10:.0f}" y="{y + 4}">{last}</text>')
    told = "; ".join(
        f"{titles()[axis]} {' '.join(str(v or '-') for v in values)}" for axis, values in report.trend.items()
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {height * len(report.trend)}" width="100%" role="img" '
        f'aria-label="{escape(told)}">{"".join(parts)}</svg>'
    )


def _x(value: int) -> float:
    return LEFT + 20 + (value - 1) * (WIDTH - LEFT - 60) / 4
