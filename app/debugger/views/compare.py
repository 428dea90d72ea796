"""The data of the page Compare: aligned steps, tables, bars, maps. Pure functions."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import ceil, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.debugger import colours
from app.debugger.trace_index import BLOCK_STATES, TraceIndex
from app.debugger.views.waits import WORDS
from engine.trace.diff import Figure, RequestDelta, TraceDiff
from engine.trace.protocol import Trace
from prep_common.text import counted, join_and

COLOURS = (colours.FREE, colours.CACHED, colours.USED, colours.SHARED)
"""Colours by block state, as on the page Step: free, cached, used, shared."""
SAME = 0.38
"""Brightness of cells whose state is the same in both runs."""

FIGURES: dict[str, str] = {
    "end_step": "last step",
    "first_token_step": "first token, step",
    "waiting_steps": "steps waited",
    "computed_tokens": "tokens computed",
    "preemptions": "preempted, times",
    "cached_tokens": "prefix hit, tokens",
    "recomputed_tokens": "recomputed, tokens",
}
"""The figures of a request, by field of RequestDelta."""


def figure_rows(figures: Sequence[Figure], same_workload: bool = True) -> list[dict[str, Any]]:
    """One row per figure; better or worse only for runs of the same workload."""
    return [
        {
            "figure": figure.name,
            "A": figure.a,
            "B": figure.b,
            "B − A": figure.delta,
            "unit": figure.unit,
            **({"B is": _verdict(figure)} if same_workload else {}),
        }
        for figure in figures
    ]


def _verdict(figure: Figure) -> str:
    if figure.delta == 0:
        return "same"
    if figure.delta is None:
        return ""
    if not figure.better:
        return "more" if figure.delta > 0 else "less"
    return "▲ better" if (figure.delta < 0) == (figure.better == "lower") else "▼ worse"


def request_table(deltas: Sequence[RequestDelta], with_equal: bool = True) -> list[dict[str, Any]]:
    """One row per request, both runs side by side, with no figures for a run without it. Without the equal ones: the
    requests that differ, and of their figures those that differ for one of them."""
    shown = [delta for delta in deltas if with_equal or not delta.is_equal]
    names = [
        name for name in FIGURES if with_equal or any(len(set(getattr(delta, name))) > 1 for delta in shown)
    ]
    rows = []
    for delta in shown:
        row: dict[str, Any] = {"request": delta.request_id}
        for name in names:
            for run, value in zip("AB", getattr(delta, name), strict=True):
                is_missing = delta.tokens == f"missing in {run.lower()}"
                row[f"{FIGURES[name]} {run}"] = None if is_missing else value
        if with_equal or any(delta.tokens != "same" for delta in shown):
            row["output"] = delta.tokens
        if with_equal or any(len(set(delta.ends)) > 1 for delta in shown):
            row["end"] = delta.ends[0] if len(set(delta.ends)) == 1 else " / ".join(delta.ends)
        rows.append(row)
    return rows


def summary(difference: TraceDiff) -> str:
    """The result of a comparison in one or two sentences."""
    if difference.first is None:
        if difference.first_blocks is None:
            return f"The runs are identical: every decision and every block id.{_why_equal(difference)}"
        return f"Every decision is the same; block events differ from step {difference.first_blocks}."
    nouns = {"steps with rows": "step", "preemptions": "preemption", "recomputed": "recomputed token"}
    changes = {figure.name: round(figure.delta or 0) for figure in difference.figures if figure.name in nouns}
    words = [
        counted(abs(change), f"{'more' if change > 0 else 'fewer'} {noun}")
        for name, noun in nouns.items()
        if (change := changes[name])
    ]
    same = "Both have as many steps, preemptions and recomputed tokens."
    result = f"B has {join_and(words)}." if words else same
    return f"The first different decision is in step {difference.first.step}. {result}"


def _why_equal(difference: TraceDiff) -> str:
    """Say what limited the batch instead, if only the settings differ."""
    changed = [name for name, *_ in difference.settings if name != "changed from step"]
    if not changed:
        return ""
    waits = [f"{WORDS[reason]} ({counted(count, 'step')})" for reason, count in difference.waits]
    limits = (
        f"The requests waited for other reasons: {join_and(waits)}." if waits else "No request ever waited."
    )
    return f" Another {join_and(changed)} changed nothing in this run. {limits}"


def aligned_step(how: str, step: int, a: Trace, b: Trace, request: str | None) -> tuple[int | None, str]:
    """The step of B that corresponds to a step of A, or None, and an explanation."""
    if how == "token":
        return _by_token(step, a, b, request)
    if how == "time":
        moment = a.series.time_s[step] + a.series.duration_s[step]
        there = bisect_right(b.series.time_s, moment) - 1
        after = f"{moment * 1e3:.1f} ms after"
        if there < 0:
            return None, f"B has not begun {after} its start"
        return there, f"step {there} of B runs {after} the start"
    if step < b.num_steps:
        return step, f"after step {step:,}, too"
    return None, f"B ended in step {b.num_steps - 1}"


def _by_token(step: int, a: Trace, b: Trace, request: str | None) -> tuple[int | None, str]:
    names = {r.request_id for r in b.requests}
    if request is None or request not in names:
        return None, f"{request or 'no request'} is not in B"
    count = a.find(request, step).num_outputs_at(step)
    other = b.find(request)
    if count == 0:
        return (
            other.added if other.added < b.num_steps else None,
            f"{request} has no token yet; in B it arrives here",
        )
    place = bisect_left(other.row_outputs, count)
    if place >= len(other.row_steps):
        return None, f"{request} never has {counted(count, 'token')} in B"
    there = other.row_steps[place]
    return there, f"{request} has its token {count} in step {there} of B"


class BlockMap(NamedTuple):
    """A picture of all blocks, one cell each, row by row in the order of their ids."""

    png: str
    """A data: URL, one pixel per block."""
    width: int
    height: int
    counts: dict[str, int]
    """Blocks by state; the null block is not counted."""

    @property
    def words(self) -> str:
        return ", ".join(f"{count:,} {state}" for state, count in reversed(self.counts.items()))


def block_map(index: TraceIndex, step: int, beside: NDArray[np.uint8] | None = None) -> BlockMap:
    """Draw the blocks after a step. `beside`: the states of another run's blocks; equal ones are dimmed."""
    states = index.block_states(step)
    width = max(1, ceil(sqrt(2 * len(states))))  # about twice as wide as high
    height = ceil(len(states) / width)
    pixels = np.zeros((width * height, 3))
    pixels[: len(states)] = np.array([list(bytes.fromhex(colour[1:])) for colour in COLOURS])[states]
    if beside is not None:
        pixels[: len(states)][~unlike(states, beside)] *= SAME
    counts = np.bincount(states[1:], minlength=len(BLOCK_STATES))
    return BlockMap(
        f"data:image/png;base64,{b64encode(png(pixels.astype(np.uint8).reshape(height, width, 3))).decode()}",
        width,
        height,
        {name: int(count) for name, count in zip(BLOCK_STATES, counts, strict=True)},
    )


def unlike(states: NDArray[np.uint8], beside: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Per block, whether its state differs in another run, or the other run does not have it."""
    shared = min(len(states), len(beside))
    differ = np.ones(len(states), bool)
    differ[:shared] = states[:shared] != beside[:shared]
    return differ


def num_different(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> int:
    """The number of blocks whose state differs, including those that only one run has."""
    return int(unlike(a, b).sum()) + max(0, len(b) - len(a))


def png(pixels: NDArray[np.uint8]) -> bytes:
    """An RGB image [height, width, 3] as a file. Source: W3C PNG, sections 5 and 11."""
    height, width, _ = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines.tobytes(), 6)),
        (b"IEND", b""),
    )
    body = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)
