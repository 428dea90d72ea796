"""Parts of the page as HTML: bars of good requests, tables of figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from app.debugger.page_frame import told
from interview.drills.debrief import Line


class Bar(NamedTuple):
    """A share from 0 to 1."""

    name: str
    share: float
    kind: str = ""
    """"yesterday", "met" or none: the colour."""
    words: str = ""
    """The figure at its end; by default the share."""
    note: str = ""


def bars(entries: Iterable[Bar], *, mark: float | None = None, kind: str = "") -> str:
    """Return bars, with a line at `mark`. kind "fixes": the name stands above its bar."""
    lines = []
    line = "" if mark is None else f'<s style="left:{100 * mark:.1f}%"></s>'
    for name, share, colour, words, note in entries:
        wide = 100 * min(1.0, max(0.0, share))
        told = f"<small>{escape(note)}</small>" if note else ""
        lines.append(
            f'<div class="{colour}"><span>{escape(name)}</span><i aria-hidden="true"><u style="width:{wide:.1f}%"></u>'
            f"{line}</i><b>{escape(words or f'{share:.0%}')}</b>{told}</div>"
        )
    return f'<div class="drill-bars {kind}">{"".join(lines)}</div>'


def table(lines: Sequence[Line], runs: Iterable[str], decides: Iterable[str] = ()) -> str:
    """Return figures as a table with a column per run; those that decide are marked. A tooltip has the name to type."""
    marked = set(decides)
    rows = [
        f'<tr class="{"decides" if line.figure in marked else ""}"><th scope="row" title="{escape(line.figure)}">'
        f"{escape(line.says)}</th>"
        + "".join(f'<td class="number">{escape(value)}</td>' for value in line.values)
        + "</tr>"
        for line in lines
    ]
    heads = "".join(f'<th scope="col" class="number">{escape(run)}</th>' for run in runs)
    head = f'<thead><tr><th scope="col">figure</th>{heads}</tr></thead>'
    return f'<div class="drill-table"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'


def sentence(error: object) -> str:
    """Return a message as a sentence of Markdown."""
    text = str(error)
    return told(f"{text[:1].upper()}{text[1:].rstrip('.')}.")


KEY = (
    '<div class="drill-key"><span><i></i>today</span>'
    '<span class="yesterday"><i></i>yesterday, the healthy server</span></div>'
)
"""The legend of charts with two runs."""
