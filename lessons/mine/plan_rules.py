"""Rules of a Plan (lessons/given/scheduling.py), checked before the engine carries it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from lessons.given.scheduling import Seq


class BrokenRule(Exception):
    """Raised with (rule, detail) for the first rule that a plan breaks."""


class Situation(NamedTuple):
    """Arguments of `schedule`, and the limits."""

    running: Sequence[Seq]
    waiting: Sequence[Seq]
    num_free_blocks: int
    token_budget: int
    max_num_seqs: int
    block_size: int


def check_plan(plan: Any, now: Situation) -> tuple[list[tuple[str, int]], list[str]]:
    """Return the plan's rows and victims, or raise BrokenRule."""
    rows, preempted = _read(plan)
    running = {seq.id: seq for seq in now.running}
    waiting = {seq.id: seq for seq in now.waiting}
    tokens = dict(rows)
    _check_names(rows, preempted, running, waiting)
    for name, count in rows:
        seq = running.get(name) or waiting[name]
        if not 1 <= count <= seq.known - seq.computed:
            left = seq.known - seq.computed
            raise BrokenRule(
                "a row computes 1 token to all missing ones", f"{name}: {count} of {left} tokens"
            )
    if (total := sum(tokens.values())) > now.token_budget:
        raise BrokenRule(
            "rows stay within the token budget", f"{total} tokens, the budget is {now.token_budget}"
        )
    admitted = [name for name, _ in rows if name in waiting]
    if (seats := len(running) - len(preempted) + len(admitted)) > now.max_num_seqs:
        raise BrokenRule(
            "at most max_num_seqs requests run", f"{seats} would run, the limit is {now.max_num_seqs}"
        )
    _check_order(rows, preempted, admitted, now)
    _check_blocks(tokens, preempted, now)
    if not rows and (running or waiting):
        head = (now.running or now.waiting)[0]
        need = head.known - head.computed
        raise BrokenRule(
            "every step computes something",
            f"no rows; {head.id} lacks {need} tokens, the budget is {now.token_budget}, "
            f"{now.num_free_blocks} blocks are free",
        )
    return rows, preempted


def _read(plan: Any) -> tuple[list[tuple[str, int]], list[str]]:
    try:
        rows, preempted = plan
        pairs = [(name, count) for name, count in rows]
        victims = list(preempted)
    except (TypeError, ValueError):
        raise BrokenRule("schedule returns Plan(rows, preempted)", f"it returned {plan!r:.80}") from None
    if not all(type(name) is str and type(count) is int for name, count in pairs):
        raise BrokenRule("a row is (id, number of tokens)", f"rows are {pairs!r:.80}")
    return pairs, victims


def _check_names(
    rows: list[tuple[str, int]], preempted: list[str], running: dict[str, Seq], waiting: dict[str, Seq]
) -> None:
    names = [name for name, _ in rows]
    for name in names:
        if name not in running and name not in waiting:
            raise BrokenRule("rows name running or waiting requests", f"there is no request {name!r}")
    for name in preempted:
        if name not in running:
            raise BrokenRule("only running requests are preempted", f"{name!r} does not run")
    if len(set(names)) < len(names) or len(set(preempted)) < len(preempted):
        raise BrokenRule("a request is named once", f"rows {names!r:.80}, preempted {preempted!r:.80}")
    if both := set(names) & set(preempted):
        raise BrokenRule("a preempted request gets no row", f"{min(both)} has a row and is preempted")


def _check_order(
    rows: list[tuple[str, int]], preempted: list[str], admitted: list[str], now: Situation
) -> None:
    """Check victims, running requests, and admissions, each in their order."""
    victims = {seq.id for seq in now.running[len(now.running) - len(preempted) :]}
    if set(preempted) != victims:
        raise BrokenRule(
            "victims are the least important", f"preempted {preempted}, the last are {sorted(victims)}"
        )
    has_row = {name for name, _ in rows}
    skipped: dict[bool, str] = {}
    """Decodes or not -> the first of the kind without a row."""
    for seq in now.running[: len(now.running) - len(preempted)]:
        decodes = seq.known - seq.computed == 1
        if seq.id not in has_row:
            skipped.setdefault(decodes, seq.id)
        elif decodes in skipped:
            raise BrokenRule(
                "running requests go most important first", f"{seq.id} overtakes {skipped[decodes]}"
            )
    if not admitted:
        return
    if preempted:
        raise BrokenRule("a step that preempts admits no request", f"{admitted[0]} is admitted")
    if skipped:
        raise BrokenRule(
            "running requests go first", f"{admitted[0]} is admitted, {min(skipped.values())} gets no row"
        )
    queue = [seq.id for seq in now.waiting[: len(admitted)]]
    if admitted != queue:
        raise BrokenRule(
            "waiting requests are admitted in order", f"{admitted}, the queue starts with {queue}"
        )


def _check_blocks(tokens: dict[str, int], preempted: list[str], now: Situation) -> None:
    free, need = now.num_free_blocks, 0
    for seq in now.running:
        if seq.id in preempted:
            free += seq.blocks
        elif seq.id in tokens:
            need += max(0, -(-(seq.computed + tokens[seq.id]) // now.block_size) - seq.blocks)
    for seq in now.waiting:
        if seq.id in tokens:
            need += -(-seq.known // now.block_size) - seq.blocks
    if need > free:
        raise BrokenRule("blocks suffice", f"rows need {need} blocks, {free} are free after preemptions")
