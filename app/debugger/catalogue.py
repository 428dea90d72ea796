"""The recorded runs' titles and stories (`recorded/catalogue.yaml`), and the summary of a run.

Nothing here knows Streamlit.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

from app.debugger.runs import RECORDED, Run
from app.debugger.thumbnail import thumbnail
from app.debugger.trace_index import TraceIndex
from engine.core.sched_output import Reason
from prep_common.text import counted

EventKind = Literal["add", "admit", "hit", "preempt", "resume", "finish", "abort", "evict"]
HERO = "Watch memory run out"
"""The group of the run with which to begin."""
HERO_HEIGHT, CARD_HEIGHT = 130, 64


class Look(BaseModel):
    """A step of a run, named by an event or a reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    event: EventKind | None = None
    reason: Reason | None = None
    nth: int = 1

    @model_validator(mode="after")
    def _one_of_both(self) -> Look:
        if (self.event is None) == (self.reason is None) or self.nth < 1:
            raise ValueError("give either an event or a reason; nth counts from 1")
        return self

    def step(self, index: TraceIndex) -> int | None:
        """The step; None if the event does not happen in this run."""
        steps = index.reason_steps(self.reason) if self.reason else index.event_steps(str(self.event))
        return int(steps[self.nth - 1]) if len(steps) >= self.nth else None


class Entry(BaseModel):
    """A recorded run as the page Runs presents it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    group: str
    title: str
    story: str
    look: Look
    topics: list[str]


@cache
def load_catalogue() -> dict[str, Entry]:
    """The recorded runs by id, in recommended order."""
    entries = yaml.safe_load((RECORDED / "catalogue.yaml").read_text(encoding="utf-8"))
    return {entry.id: entry for entry in map(Entry.model_validate, entries)}


def title_of(run_id: str) -> str | None:
    """The title of a shipped run; None for any other."""
    entry = load_catalogue().get(run_id)
    return entry.title if entry else None


class Glance(NamedTuple):
    """The summary of a run."""

    counts: dict[str, int]
    """Number of steps, requests and events, by noun."""
    num_blocks: int
    min_free_blocks: int
    picture: str
    """Its `thumbnail`."""
    step: int
    """The step at which to open the run."""
    warnings: tuple[str, ...]

    @property
    def in_words(self) -> str:
        """The summary in one line."""
        parts = [counted(count, noun) for noun, count in self.counts.items() if count]
        return " · ".join([*parts, f"fewest free blocks {self.min_free_blocks:,} of {self.num_blocks:,}"])


INTERESTING: tuple[EventKind, ...] = ("preempt", "evict", "abort", "hit", "finish")
"""A user's run opens at the first of these events that it has."""


def glance(run: Run) -> Glance:
    """The figures of a run, and the step to open it at."""
    index = run.index
    entry = load_catalogue().get(run.run_id)
    looks = [entry.look] if entry else [Look(event=kind) for kind in INTERESTING]
    step = next((step for look in looks if (step := look.step(index)) is not None), 0)
    free = index.series.free_blocks
    usable = max(1, index.num_blocks - 1)
    counts = {"step": index.num_steps, "request": len(index.requests)}
    for noun, kind in (("preemption", "preempt"), ("prefix hit", "hit"), ("eviction", "evict")):
        counts[noun] = len(index.event_steps(kind))
    least = int(free.min()) if len(free) else usable
    words = f"the lives of its requests; free blocks over the run: at least {least} of {usable}"
    is_hero = entry is not None and entry.group == HERO
    return Glance(
        counts,
        usable,
        least,
        thumbnail(index, words, HERO_HEIGHT if is_hero else CARD_HEIGHT),
        step,
        tuple(run.warnings),
    )
