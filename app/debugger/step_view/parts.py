"""The parts that the browser requests by key.

o               figures and events of every step                    map_data.overview
w:FIRST         the window of block changes that begins at FIRST    map_data.window
d:FIRST         details of the steps from FIRST on                  details.chunk
r:REQUEST       events of a request                _request
b:BLOCK:FIRST   events of a block around window FIRST       _block
y:STEP:REQUEST  why a request did not run in a step, as a sentence  _why
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from app.debugger.runs import Run
from app.debugger.step_view import details, map_data
from app.debugger.step_view.envelope import pack
from app.debugger.views.one_block import history
from engine.trace.format import TraceError
from engine.trace.why import why

LOOKS_BACK = 4
"""Looks."""
MOST_STEPS_BACK = 512
"""Maximum steps of block changes per update; a browser that lacks more requests the window."""


class Sizes(NamedTuple):
    """Sizes of a run's parts, in steps, constant while it is shown."""

    window: int
    chunk: int


def sizes(run: Run) -> Sizes:
    if run.is_live:
        return LIVE
    series = run.index.series
    rows = float(series.running.mean()) if len(series.running) else 1.0
    return Sizes(map_data.window_steps(run), details.chunk_steps(rows))


LIVE = Sizes(map_data.WINDOW_STEPS, details.MIN_CHUNK)
"""Sizes of a live run, whose length and batches are unknown."""


def make(run: Run, cut: Sizes, key: str) -> bytes | None:
    """A part; None if there is none with that key, for example from a damaged link."""
    kind, _, rest = key.partition(":")
    maker = _MAKERS.get(kind)
    try:
        return None if maker is None else maker(run, cut, rest)
    except (TraceError, ValueError, IndexError):
        return None


def first_keys(run: Run, cut: Sizes, step: int) -> list[str]:
    """The keys of the parts that the first picture of a step needs."""
    step = max(0, min(step, run.index.num_steps - 1))
    return ["o", f"w:{step // cut.window * cut.window}", f"d:{step // cut.chunk * cut.chunk}"]


def _window(run: Run, cut: Sizes, rest: str) -> bytes:
    first = _first(run, rest)
    return map_data.window(run, first, min(first + cut.window, run.index.num_steps))


def _details(run: Run, cut: Sizes, rest: str) -> bytes:
    first = _first(run, rest)
    last = min(first + cut.chunk, run.index.num_steps)
    return pack(details.chunk(run.reader(first), run.index, first, last))


def _first(run: Run, rest: str) -> int:
    first = int(rest)
    if not 0 <= first < run.index.num_steps:
        raise ValueError(f"no part begins at step {first}")
    return first


def _request(run: Run, cut: Sizes, rest: str) -> bytes:
    events: list[tuple[int, str]] = []
    for summary in run.index.requests:
        if summary.request_id != rest:
            continue
        events.append((summary.added, "arrived"))
        begins = {"running": "resumed", "preempted": "preempted"}
        for span in run.index.spans(summary.number):
            if span.phase in begins:
                is_first = span.first == summary.admitted
                events.append((span.first, "admitted" if is_first else begins[span.phase]))
        if summary.first_token is not None:
            events.append((summary.first_token, "first token"))
        if summary.ended is not None:
            events.append((summary.ended, f"ended: {summary.finish_reason}"))
    events.sort(key=lambda event: event[0])
    return pack({"request": rest, "events": events})


def _block(run: Run, cut: Sizes, rest: str) -> bytes:
    block, first = map(int, rest.split(":"))
    reader = run.reader(first)
    if not 0 < block < reader.num_blocks:
        raise ValueError(f"no block {block}")
    events, hashes = [], []
    for event in history(reader, block):
        name = None if event.number is None else reader.requests[event.number].request_id
        events.append([event.step, event.kind, name])
        hashes.append([event.step, event.hash_hex])
    return pack({"block": block, "events": events, "hashes": hashes, "whole": True})


def _why(run: Run, cut: Sizes, rest: str) -> bytes:
    step, _, request = rest.partition(":")
    answer = why(run.reader(int(step)), request, int(step))
    return pack({"step": int(step), "request": request, "sentence": answer.sentence})


_MAKERS: dict[str, Callable[[Run, Sizes, str], bytes]] = {
    "o": lambda run, cut, rest: map_data.overview(run),
    "w": _window,
    "d": _details,
    "r": _request,
    "b": _block,
    "y": _why,
}


class Growth:
    """Updates of a live run for one tab: the newest figures, block changes, and details.

    A message may be lost, because only the newest is drawn when several come at once. So each goes back to where the
    run was a few looks ago, the browser skips what it knows, and asks for all figures if more were lost.
    """

    def __init__(self) -> None:
        self._reached: deque[int] = deque([0], maxlen=LOOKS_BACK)
        """Number of steps at the last refreshes."""

    def parts(self, run: Run, cut: Sizes) -> dict[str, bytes]:
        """Parts by key, as in `parts.make`; empty if there was no new step for several refreshes."""
        num_steps = run.index.num_steps
        since = min(self._reached)
        self._reached.append(num_steps)
        if since == num_steps:
            return {}
        window = (num_steps - 1) // cut.window * cut.window
        chunk = (num_steps - 1) // cut.chunk * cut.chunk
        first = max(window, since, num_steps - MOST_STEPS_BACK)
        return {
            "o": map_data.overview(run, since),
            f"w:{window}": map_data.window(run, first, num_steps, grows=True),
            f"d:{chunk}": pack(details.chunk(run.reader(chunk), run.index, chunk, num_steps)),
        }
