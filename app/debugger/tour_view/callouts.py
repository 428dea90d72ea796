"""Call-outs of a stop: what happened to which blocks, or to which request, computed from the trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from app.debugger.runs import Run
from engine.core.sched_output import Reason
from engine.trace.records import StepRecord, TraceState
from engine.trace.why import why
from prep_common.text import counted, join_and

MOST = 4
"""Call-outs of a stop."""


class Callout(NamedTuple):
    """A statement about the step, and where it points: at blocks, or at the lane of a request."""

    text: str
    blocks: Sequence[int] = ()
    lane: str = ""


def callouts(run: Run, step: int, request: str | None) -> list[Callout]:
    """Return what to point at in a step, most important first. request: the selected one."""
    at = _Step(run, step)
    shown = [*at.preemptions(), *at.hits(), *at.evictions(), *at.ends(), *at.waits(request)]
    if not shown and request is not None:
        shown = list(at.blocks_of(request))
    if not shown:
        shown = [*at.shared(), *at.shares_of_the_budget()]
    return shown[:MOST]


class _Step:
    """A step with the states before and after it."""

    def __init__(self, run: Run, step: int) -> None:
        reader = run.reader(step)
        self.reader, self.step, self.size = reader, step, run.index.block_size
        self.record: StepRecord = reader.step(step)
        self.after: TraceState = reader.state_at(step)
        self.before: TraceState | None = reader.state_at(step - 1) if step else None
        self.tables = self.after.block_tables
        self.old_tables = self.before.block_tables if self.before is not None else {}

    def preemptions(self) -> Iterator[Callout]:
        for victim in self.record.preempted:
            table = self.old_tables.get(victim, [])
            others = {block for name, held in self.old_tables.items() if name != victim for block in held}
            kept = [block for block in table if block in others and self._is_held(block)]
            free = [block for block in table if not self._is_held(block)]
            taken = [block for block in table if block not in kept and block not in free]
            if free:
                yield Callout(f"released by {victim}, free now: {counted(len(free), 'block')}", free)
            if kept:
                yield Callout(f"of {victim}, still held by others: {counted(len(kept), 'block')}", kept)
            if taken:
                who = join_and([name for name, held in self.tables.items() if set(held) & set(taken)])
                yield Callout(f"released by {victim}, taken by {who}: {counted(len(taken), 'block')}", taken)

    def _is_held(self, block: int) -> bool:
        return self.after.blocks.ref[block] > 0

    def hits(self) -> Iterator[Callout]:
        """Admissions and resumptions: what they found in the prefix cache, and what they allocated."""
        for name in (*self.record.admitted, *self.record.resumed):
            table = self.tables.get(name, [])
            stay = self.reader.find(name, self.step).last_stay(self.step)
            num_cached = 0 if stay is None else stay.start // self.size
            if num_cached:
                tokens = counted(num_cached * self.size, "token")
                yield Callout(
                    f"found by {name}: {counted(num_cached, 'block')}, {tokens}", table[:num_cached]
                )
            if table[num_cached:]:
                words = counted(len(table) - num_cached, "block")
                yield Callout(f"allocated for {name}: {words}", table[num_cached:])

    def evictions(self) -> Iterator[Callout]:
        if self.before is None:
            return
        old, new = self.before.blocks, self.after.blocks
        lost = [
            block
            for block in range(1, len(new.ref))
            if old.hash[block]
            and not old.ref[block]
            and new.ref[block]
            and new.hash[block] != old.hash[block]
        ]
        if lost:
            yield Callout(f"evicted, their cached content is lost: {counted(len(lost), 'block')}", lost)

    def ends(self) -> Iterator[Callout]:
        for name, _ in self.record.finished:
            table = [block for block in self.old_tables.get(name, []) if not self._is_held(block)]
            cached = [block for block in table if self.after.blocks.hash[block]]
            if cached:
                yield Callout(
                    f"free, content of {name} still cached: {counted(len(cached), 'block')}", cached
                )

    def waits(self, request: str | None) -> Iterator[Callout]:
        """The first waiting request, or the selected one, with its reason."""
        waiting = [entry for entry in self.record.not_scheduled if entry.request_id in self.after.waiting]
        first = next(
            (entry for entry in waiting if entry.request_id == request), waiting[0] if waiting else None
        )
        if first is None or first.request_id is None:
            return
        text = why(self.reader, first.request_id, self.step).sentence.partition(". ")[0].removesuffix(".")
        yield Callout(text, lane=first.request_id)
        free = [block for block in range(1, len(self.after.blocks.ref)) if not self._is_held(block)]
        if first.reason == Reason.NO_BLOCKS and free:
            yield Callout(f"free: {counted(len(free), 'block')}", free)

    def blocks_of(self, name: str) -> Iterator[Callout]:
        """The blocks of a running request that hold keys and values, and those without any."""
        table, computed = self.tables.get(name, []), self.after.num_computed.get(name, 0)
        full, rest = divmod(computed, self.size)
        if table[:full]:
            yield Callout(f"full: {counted(full, 'block')} of {name}", table[:full])
        if rest and table[full : full + 1]:
            left = counted(self.size - rest, "empty slot")
            yield Callout(f"holds {counted(rest, 'token')}, {left}", table[full : full + 1])
        if empty := table[full + bool(rest) :]:
            yield Callout(f"allocated, empty: {counted(len(empty), 'block')}", empty)

    def shared(self) -> Iterator[Callout]:
        refs = self.after.blocks.ref
        blocks = [block for block in range(1, len(refs)) if refs[block] > 1]
        if blocks:
            most = max(refs[block] for block in blocks)
            yield Callout(f"shared, by up to {most} requests: {counted(len(blocks), 'block')}", blocks)

    def shares_of_the_budget(self) -> Iterator[Callout]:
        for row in sorted(self.record.rows, key=lambda row: -row.num_tokens)[:MOST]:
            yield Callout(
                f"{row.request_id} computes {counted(row.num_tokens, 'token')}", lane=row.request_id
            )
