"""Components of the page: the clock, the script for drafts, focus and the word count; the whiteboard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamlit as st

from app.debugger.charts import mount
from app.debugger.charts.clock import clock as show_clock
from app.debugger.mock.held import Held
from app.debugger.mock.sending import panel_name
from app.debugger.page_frame import in_words
from interview.mock.turns import Continue, Mark, Menu, Prose, RunExperiment, Want

HERE = Path(__file__).parent
MOST_POINTS = 20_000
"""Points on the whiteboard that are kept."""


def clock(held: Held) -> None:
    """Show the time of the interview and of the step. It ticks in the browser and is measured here."""
    turn = held.turn
    here = held.clock.seconds if held.is_timed else 0.0
    step = None
    if turn.minutes and turn.stage not in ("open", "self"):
        step = (held.asked.seconds + here, 60 * turn.minutes)
    show_clock(
        "Interview",
        held.session.elapsed + here,
        60 * held.session.spec.minutes,
        key="mock clock",
        step=step,
        runs=held.is_timed and not held.clock.is_paused,
        why="paused" if held.clock.is_paused else "" if held.is_timed else "this turn takes no time",
    )


def desk(held: Held) -> None:
    """Run the script that keeps drafts through a reload, sets the focus, and counts words."""
    is_prose = isinstance(held.turn.want, Prose)
    data = {
        "session": held.session.spec.id,
        "draft": held.asked.key if is_prose else held.turn.id,
        "first": _first(held.turn.want),
        "fields": "textarea" if is_prose else "textarea, input[type=text]",
        "turn": held.turn.id,
        "panel": panel_name(held),
    }
    run_desk(data)


def run_desk(data: Mapping[str, object]) -> None:
    """Run the script of `desk.js`."""
    with st.container(key="mock_desk"):
        mount("mock_desk", HERE / "desk", data, "mock desk", html="<span></span>")


def _first(want: Want) -> str:
    """Return a selector of what gets the focus; "" for nothing."""
    if isinstance(want, RunExperiment):
        return ""
    return "button" if isinstance(want, Continue | Menu | Mark) else "textarea, input"


@st.fragment
@in_words
def whiteboard(held: Held) -> None:
    """Show the whiteboard; the log keeps its drawing with the turn."""
    data = {"session": held.session.spec.id, "strokes": held.drawing}
    said = mount("mock_board", HERE / "board", data, "mock board", ["drawn"])
    strokes = said.drawn
    if strokes is not None and (kept := strokes_of(strokes)) != held.drawing:
        held.drawing, held.is_drawing_new = kept, True


def strokes_of(value: Any) -> list[list[int]]:
    """Return the strokes that a browser sent: lists of x, y, x, y ... in whole units, not too many."""
    kept, left = [], MOST_POINTS
    for stroke in value if isinstance(value, list) else ():
        if not isinstance(stroke, list) or not all(isinstance(number, int | float) for number in stroke):
            continue
        points = [int(min(max(number, -10_000), 10_000)) for number in stroke[: 2 * left]]
        left -= len(points) // 2
        if len(points) >= 2:
            kept.append(points[: len(points) // 2 * 2])
    return kept
