"""The chart of the page Compare: the lives of each request in both runs, one above the other, differences shaded."""

from __future__ import annotations

from typing import NamedTuple

import streamlit as st

from app.debugger import session
from app.debugger.charts.rects import Rect, rect_chart
from app.debugger.colours import HERE_SWATCH, PHASE_SWATCHES
from app.debugger.page_frame import choose, legend
from app.debugger.views.paired import Pair, fitting
from app.debugger.views.phases import MAX_BARS, window
from engine.trace.diff import TraceDiff
from engine.trace.divergence import Divergence
from engine.trace.run_totals import name_of
from prep_common.text import counted

LONG = 600
"""Steps; the chart of longer runs shows a window."""
MAX_PAIRS = 30
LANES = ("A", "B")
SWATCHES = [
    (PHASE_SWATCHES["waiting"], "waiting"),
    (PHASE_SWATCHES["prefill"], "prefill: prompt or recomputation"),
    (PHASE_SWATCHES["decode"], "decode"),
    (PHASE_SWATCHES["preempted"], "preempted"),
    ("height:14px;background:color-mix(in srgb,var(--text) 20%,transparent)", "another phase in A than in B"),
    (
        "height:14px;background:color-mix(in srgb,var(--text) 7%,transparent)",
        "same phase, other tokens or copies",
    ),
    ("height:14px;width:0;border-left:2px dashed var(--notice)", "the first different decision"),
    (HERE_SWATCH, "the current step"),
]


class Frame(NamedTuple):
    """The part that is drawn: steps first .. last of some pairs."""

    pairs: list[Pair]
    first: int
    last: int

    def cut(self, first: int, last: int) -> tuple[int, int] | None:
        """The part of the steps first .. last inside, with an exclusive end; None if none is."""
        if first > self.last or last < self.first:
            return None
        return max(first, self.first), min(last, self.last) + 1


def show_lives(difference: TraceDiff, pairs: list[Pair], num_steps: int, step: int, with_equal: bool) -> None:
    """Draw the pairs that differ, or all. A click selects the step and the request."""
    wanted = [pair for pair in pairs if with_equal or not pair.delta.is_equal]
    if not wanted:
        return
    frame = _frame(wanted, num_steps, step)
    rects = chart(frame)
    legend(SWATCHES)
    chosen = session.selection().request
    shown = next(
        (row for row, pair in enumerate(frame.pairs) if name_of(pair.delta.request_id) == chosen), None
    )
    picked = rect_chart(
        rects,
        rows=[(pair.delta.request_id, row) for row, pair in enumerate(frame.pairs)],
        lanes=LANES,
        x=(frame.first, frame.last + 1),
        unit="step",
        alt=f"{counted(len(frame.pairs), 'request')} in A and in B over steps {frame.first} to {frame.last}: "
        + "; ".join(in_words(pair) for pair in frame.pairs[:12]),
        hint="Click a bar or a shaded stretch to open its step below. Arrow keys and Enter do the same.",
        marker=step,
        flag=None if difference.first is None else (difference.first.step, flag(difference.first)),
        chosen=shown,
        row_height=13 if len(frame.pairs) > 12 else 16,
        key="compare_lives",
    )
    if picked is not None:
        names = {"request": name_of(frame.pairs[int(picked.id)].delta.request_id)}
        choose(**names, **({} if picked.x is None else {"step": picked.x}))


def _frame(wanted: list[Pair], num_steps: int, step: int) -> Frame:
    """The steps and pairs to draw, with controls where not all fit."""
    first, last = window(num_steps, step, LONG)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        if num_steps > LONG:
            key = f"compare_window_{first}_{last}_{num_steps}"
            first, last = st.slider("Steps", 0, num_steps - 1, (first, last), key=key, width=360)
        living = [pair for pair in wanted if pair.first <= last and pair.last >= first]
        skip = 0
        if len(living) > MAX_PAIRS:
            now = next((at for at, pair in enumerate(living) if pair.last >= step), 0)
            skip = st.number_input(
                f"From request, of {len(living):,}", 0, len(living) - 1, now, MAX_PAIRS, width=170,
                key=f"compare_skip_{first}_{last}_{now}_{len(living)}",
                help=f"The chart shows {MAX_PAIRS} requests at a time",
            )  # fmt: skip
    shown = fitting(living[int(skip) : int(skip) + MAX_PAIRS], MAX_BARS)
    if len(shown) < len(wanted):
        st.caption(f"{counted(len(shown), 'request')} of {len(wanted):,} in these steps.")
    return Frame(shown, first, last)


def chart(frame: Frame) -> list[Rect]:
    """The rectangles of the frame: shades first, so that the bars lie on them. Pair n has the rows 2n and 2n + 1."""
    shades, bars = [], []
    for row, pair in enumerate(frame.pairs):
        name = pair.delta.request_id
        for kind, first, last, a, b in pair.stretches:
            ways = f"{a} in A, {b} in B" if a != b else f"{a} in both, with other tokens or copies"
            title = f"{name}, {_steps(first, last)}: {ways}"
            if (cut := frame.cut(first, last)) is not None:
                shades.append(Rect(*cut, 2 * row, 2 * row + 2, kind, "", title, row))
        for lane, spans in enumerate(pair.lives):
            for phase, first, last in spans:
                title = f"{name} in {LANES[lane]}: {phase}, {_steps(first, last)}"
                if (cut := frame.cut(first, last)) is not None:
                    top = 2 * row + lane
                    bars.append(Rect(*cut, top, top + 1, phase, "", title, row, pair.colour))
    return [*shades, *bars]


def flag(first: Divergence) -> str:
    """The text at the first divergence, with its main difference."""
    kinds = {"preempted": "preemption", "admitted": "admission", "rows": "tokens", "end": "end of a run"}
    # Only a swap-out has a request: its victim.
    kinds["copies"] = "swap-out" if first.requests else "copy to or from the host"
    return f"▼ first different decision: {kinds[first.kinds[0]]}"


def in_words(pair: Pair) -> str:
    """Describe a pair for readers without the picture."""
    count = sum(stretch.last - stretch.first + 1 for stretch in pair.stretches)
    return f"{pair.delta.request_id} differs in {counted(count, 'step')}"


def _steps(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"steps {first} to {last}"
