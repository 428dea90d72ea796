"""Looks at the faulty server: their cost, and each one as charts, a table or text."""

from __future__ import annotations

import streamlit as st

from app.debugger.charts.lines import run_charts
from app.debugger.drill.held import Held
from app.debugger.drill.parts import KEY, sentence, table
from app.debugger.page_frame import row_table
from app.debugger.views.drill_looks import charts_of, request_rows
from engine.config import ConfigError
from interview.drills import looks
from interview.drills.applies import NOTHING, figures_of_drill
from interview.drills.debrief import Line
from interview.drills.figures import LOOKS
from interview.drills.looks import Row

TEXT = ("clients", "log", "replicas", "config")
"""Looks with lines of text above their figures."""


def choose(held: Held) -> None:
    """Show a button per look, grouped by cost; a look is paid once."""
    session = held.session
    with st.container(horizontal=True, gap="small", key="drill_looks"):
        for name, look in LOOKS.items():
            is_paid = name in session.looked
            label = f"✓ {name}" if is_paid else f"{name} · {look.cost}"
            kind = "primary" if name == held.shown else "secondary"
            cost = "paid" if is_paid else f"cost {look.cost}"
            if st.button(label, key=f"drill_look_{name}", type=kind, help=f"{look.shows}; {cost}"):  # type: ignore[arg-type]
                try:
                    session.look(name)
                except ConfigError as error:
                    st.error(sentence(error))
                else:
                    held.shown = name
                    st.rerun()


def show(held: Held) -> None:
    """Show the chosen look."""
    name, session = held.shown, held.session
    if not name:
        st.caption("No look yet. The number is its cost; a look that you took stays free.")
        return
    assert session.record and session.before and session.faulty and session.healthy
    st.header(f"{name}: {LOOKS[name].shows}")
    charts = charts_of(name, session.record, session.before)
    among = figures_of_drill(session.drill.id)
    rows = looks.rows(name, session.faulty.figures, session.healthy.figures, among)
    if not rows and name in NOTHING:
        st.caption(sentence(NOTHING[name]))
        return
    if charts.pairs:
        st.html(KEY)
        run_charts(
            charts,
            alt=f"{name}, today and yesterday over {charts.num_columns * charts.width:.0f} seconds: "
            + ", ".join(pair.title for pair in charts.pairs)
            + ". Arrow keys read the figures.",
            hint="Seconds since the load began. Point at a chart, or focus the charts and press an arrow key.",
            key=f"drill_charts_{name}",
        )
    if name in TEXT:
        lines = looks.details(name, session.record)
        with st.container(key=f"drill_text_{name}"):
            st.code("\n".join(lines) or "nothing", language=None, wrap_lines=True)
    if rows:
        st.html(
            table([Line(row.figure, row.says, (row.now, row.before)) for row in rows], ("today", "yesterday"))
        )
    if name == "requests":
        alt = "The request log of today, one row per request"
        row_table(request_rows(session.record), "drill_requests", alt, max_height=260)


def figures(held: Held) -> list[Row]:
    """Return the figures of all looks so far."""
    session = held.session
    assert session.faulty and session.healthy
    among = figures_of_drill(session.drill.id)
    return [
        row
        for name in session.looked
        for row in looks.rows(name, session.faulty.figures, session.healthy.figures, among)
    ]
