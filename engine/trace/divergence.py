"""Find and describe the steps in which two runs decide differently, with each side's reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.trace.format import TraceError
from engine.trace.protocol import Trace
from engine.trace.run_totals import Copies, Mark, budgets_of, copies_of, keys_by_name, name_of
from engine.trace.why import why
from prep_common.text import counted

MOST_REASONS = 4  # requests whose reasons a divergence holds: preempted ones first, then admitted ones


class Decision(NamedTuple):
    """The decision of one step, by request key (`run_totals.keys_of`)."""

    rows: dict[str, tuple[int, int]]  # (position of the first token, number of tokens)
    admitted: frozenset[str]
    preempted: frozenset[str]
    copies: Copies


@dataclass(frozen=True)
class Side:
    """One run's decision in a step in which the other decided differently."""

    decided: str  # a sentence about what only this run did
    reasons: list[str]  # why the requests concerned ran or did not run, in the same order on both sides


@dataclass(frozen=True)
class Divergence:
    """A step in which two runs decide differently."""

    step: int
    kinds: list[str]  # the differences: preempted, copies, admitted, rows, or end (one run has ended)
    requests: list[str]  # the requests concerned
    a: Side
    b: Side


def describe(a: Trace, b: Trace, step: int) -> Divergence:
    """Describe what two runs decided in a step, and why. The decisions may be equal."""
    one, other = decision_at(a, step), decision_at(b, step)
    if one is None or other is None:
        return Divergence(step, ["end"], [], _over(a, one, step), _over(b, other, step))
    concerned = _concerned(one, other)
    names = ("preempted", "copies", "admitted", "rows")
    kinds = [name for name in names if getattr(one, name) != getattr(other, name)]
    shown = concerned[:MOST_REASONS]
    ours = Side(_decided(one, other, budgets_of(a)(step)), [_reason(a, key, step) for key in shown])
    theirs = Side(_decided(other, one, budgets_of(b)(step)), [_reason(b, key, step) for key in shown])
    return Divergence(step, kinds, concerned, ours, theirs)


def decision_at(reader: Trace, step: int) -> Decision | None:
    """The decision of a step; None after the end of the run."""
    if step >= reader.num_steps:
        return None
    record = reader.step(step)
    keys = keys_by_name(reader, step)
    return Decision(
        {keys[row.request_id]: (row.start, row.num_tokens) for row in record.rows},
        frozenset(keys[name] for name in (*record.admitted, *record.resumed)),
        frozenset(keys[name] for name in record.preempted),
        copies_of(reader.record(step)),
    )


def divergences_of(a: Sequence[Mark], b: Sequence[Mark]) -> tuple[list[int], int]:
    steps, num_different, was_same = [], 0, True
    for step in range(max(len(a), len(b))):
        if step >= min(len(a), len(b)):
            longer = a if len(a) > len(b) else b
            left = [later for later in range(step, len(longer)) if longer[later].rows]
            if left:
                steps.append(left[0])
            return steps, num_different + len(left)
        one, other = a[step], b[step]
        if one == other:
            was_same = True
            continue
        num_different += 1
        swaps = one.copies.swapped_out != other.copies.swapped_out
        if was_same or swaps or one.preempted != other.preempted or one.admitted != other.admitted:
            steps.append(step)
        was_same = False
    return steps, num_different


def first_difference(a: Sequence[object], b: Sequence[object]) -> int | None:
    pairs = enumerate(zip(a, b, strict=False))
    return next((step for step, (one, other) in pairs if one != other), None)


def _concerned(a: Decision, b: Decision) -> list[str]:
    """The requests with different decisions: preempted, admitted, then rows in the order of the batch."""
    rows = [key for key in {**a.rows, **b.rows} if a.rows.get(key) != b.rows.get(key)]
    swapped = a.copies.swapped_out != b.copies.swapped_out
    victims = a.preempted | b.preempted if swapped else a.preempted ^ b.preempted
    parts = (sorted(victims), sorted(a.admitted ^ b.admitted), rows)
    return list(dict.fromkeys(key for part in parts for key in part))


def _decided(mine: Decision, other: Decision, budget: int) -> str:
    """Describe what only one run did, and how full its step was."""
    said = []
    if lost := sorted(mine.preempted - other.preempted):
        said.append(f"preempted {_requests(lost)}")
    said += _copies(mine, other)
    if began := sorted(mine.admitted - other.admitted):
        said.append(f"started {_requests([f'{key} ({_tokens(mine.rows.get(key))})' for key in began])}")
    shorter = [
        f"{key} ({_tokens(row)} instead of {_tokens(other.rows[key])})"
        for key, row in mine.rows.items()
        if key in other.rows and row != other.rows[key]
    ]
    if shorter:
        said.append(f"computed {_requests(shorter)}")
    if alone := [key for key in mine.rows if key not in other.rows and key not in mine.admitted]:
        said.append(f"computed {_requests([f'{key} ({_tokens(mine.rows[key])})' for key in alone])}")
    if left_out := [key for key in other.rows if key not in mine.rows and key not in mine.preempted]:
        said.append(f"left out {_requests(left_out)}")
    total = sum(num_tokens for _, num_tokens in mine.rows.values())
    words = "; ".join(said) or "no other action than the other run"
    share = f"{total} of at most {budget} tokens" if budget else counted(total, "token")
    return f"{words[:1].upper()}{words[1:]}. {counted(len(mine.rows), 'row')}, {share}."


def _copies(mine: Decision, other: Decision) -> list[str]:
    """Describe copies between device and host that only one run made, on the side without them too."""
    ours, theirs, said = mine.copies, other.copies, []
    if ours.swapped_out > theirs.swapped_out:
        who = _requests(sorted(mine.preempted))
        said.append(f"swapped {counted(ours.swapped_out, 'block')} of {who} to the host")
    elif ours.swapped_out < theirs.swapped_out and mine.preempted & other.preempted:
        who = _requests(sorted(mine.preempted))
        copied = counted(ours.swapped_out, "block") if ours.swapped_out else "no block"
        said.append(f"released the blocks of {who} and copied {copied} to the host")
    if ours.kept > theirs.kept:
        said.append(f"copied {counted(ours.kept, 'evicted block')} to the host")
    if ours.copied_in > theirs.copied_in:
        said.append(f"copied {counted(ours.copied_in, 'block')} back from the host")
    return said


def _tokens(row: tuple[int, int] | None) -> str:
    if row is None:
        return "no tokens"
    start, num_tokens = row
    return f"{counted(num_tokens, 'token')} from position {start}"


def _reason(reader: Trace, key: str, step: int) -> str:
    try:
        return why(reader, name_of(key), step).sentence
    except TraceError:
        return f"Request {key} is not in this run."


def _over(reader: Trace, decision: Decision | None, step: int) -> Side:
    if decision is None:
        failed = f": {reader.error}" if reader.error else ""
        return Side(f"This run ended in step {reader.num_steps - 1}{failed}.", [])
    total = sum(num_tokens for _, num_tokens in decision.rows.values())
    verb = "computes" if len(decision.rows) == 1 else "compute"
    return Side(
        f"Continues: {join_names(list(decision.rows))} {verb} {counted(total, 'token')} in step {step}.", []
    )


def _requests(names: Sequence[str]) -> str:
    return f"{'request' if len(names) == 1 else 'requests'} {join_names(names)}"


def join_names(words: Sequence[str], most: int = 4) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
