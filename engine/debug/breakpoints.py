"""Breakpoints: conditions on the trace record of a step that pause the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

EVENTS = ("preempt", "evict", "hit", "oom", "finish", "admit")
"""preempt: a running request lost its blocks. evict: a cached block was evicted. hit: a prefix was found in the cache.
oom: a request was not scheduled for lack of free blocks. admit, finish: a request's first row and its end."""


class DebugError(ValueError):
    """A debug command that cannot be carried out; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """Stop after a step in which an event happened, to this request if one is named; or with few free blocks."""

    event: str | None = None
    """One of EVENTS; None with a request: any of them."""
    request: str | None = None
    free_below: int | None = None

    @classmethod
    def parse(cls, wish: Any) -> Breakpoint:
        """`{"event": "preempt"}`, `{"event": "finish", "request": "r3"}`, `{"request": "r3"}`, `{"free_below": 4}`."""
        if not isinstance(wish, dict) or not wish or wish.keys() - {"event", "request", "free_below"}:
            example = '{"event": "preempt"}'
            raise DebugError(
                f"a breakpoint is an object with event, request or free_below, got {wish!r}; for example {example}"
            )
        parsed = cls(wish.get("event"), wish.get("request"), wish.get("free_below"))
        if parsed == cls():
            raise DebugError(f"a breakpoint needs an event, a request or free_below to stop at, got {wish!r}")
        if parsed.event is not None and parsed.event not in EVENTS:
            raise DebugError(f"there is no event {parsed.event!r} to stop at; there are {', '.join(EVENTS)}")
        if parsed.request is not None and not isinstance(parsed.request, str):
            raise DebugError(f"a breakpoint's request is a request id, got {parsed.request!r}")
        if parsed.free_below is not None and (type(parsed.free_below) is not int or parsed.free_below < 1):
            raise DebugError(f"free_below is a number of blocks of at least 1, got {parsed.free_below!r}")
        return parsed

    def describe(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def hit_by(self, record: dict[str, Any], names: dict[int, str]) -> str | None:
        """Describe what in this step's record matches; None if nothing does.

        names: request number -> id.
        """
        if self.free_below is not None and record["free"] < self.free_below:
            return f"{record['free']} free blocks are left, fewer than {self.free_below}"
        if self.event is None and self.request is None:
            return None
        for event in EVENTS if self.event is None else (self.event,):
            for number in _whom(event, record):
                name = None if number is None else names.get(number)
                if self.request is None or name == self.request:
                    return f"{event}{f' of {name}' if name else ''}"
        return None


def _whom(event: str, record: dict[str, Any]) -> Sequence[int | None]:
    """Return the numbers of the requests that an event happened to; None for events without a request."""
    if event == "preempt":
        return record.get("pre", ())
    if event == "finish":
        return [number for number, _ in record.get("fin", ())]
    if event == "admit":
        return [number for number, *_ in record.get("new", ())]
    if event == "hit":
        return [entry[0] for name in ("new", "res") for entry in record.get(name, ()) if entry[1]]
    if event == "oom":
        return [number for number, reason, _ in record.get("why", ()) if reason == "no_blocks"]
    return [number for kind, number, *_ in record.get("ev", ()) if kind == "evict"]
