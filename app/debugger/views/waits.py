"""The reasons for which requests waited, step by step, and the prefix hits at their admissions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from engine.core.sched_output import Reason
from engine.trace.history import RequestHistory
from engine.trace.protocol import Trace

MAX_STEPS = 2_000
"""Steps whose reasons are read for one chart; the record of each is parsed."""

ARRIVED = "arrived"
"""In place of a reason: the scheduler had not looked at the request."""
WORDS: dict[str, str] = {
    Reason.NO_BLOCKS: "too few free blocks",
    Reason.BUDGET_EXHAUSTED: "token budget used up",
    Reason.MAX_NUM_SEQS: "max_num_seqs requests run",
    Reason.BEHIND_IN_QUEUE: "behind a request that cannot start",
    Reason.LOWER_PRIORITY: "blocks given to a more important request",
    Reason.PREEMPTING: "the step preempted a request",
    Reason.PREFIX_IN_FLIGHT: "its prefix is being computed",
    Reason.GRAMMAR_COMPILING: "its grammar is being compiled",
    Reason.KV_TRANSFER: "its KV is being loaded",
    Reason.NO_LORA_SLOT: "no slot for its adapter",
    Reason.OTHER_BATCH: "another step in flight",
    ARRIVED: "arrived during the step",
}
"""Reason code -> words of the legend."""


class Wait(NamedTuple):
    """Consecutive steps, first and last included, with one reason."""

    reason: str
    """A key of WORDS."""
    first: int
    last: int


class Reasons:
    """The reasons of the steps first .. last."""

    def __init__(self, reader: Trace, first: int, last: int) -> None:
        self.first = first
        self._own: list[dict[int, str]] = []
        self._rest: list[str] = []
        for step in range(first, last + 1):
            own: dict[int, str] = {}
            rest = ARRIVED
            for number, reason, _ in reader.record(step).get("why", ()):
                if number is None:
                    rest = reason
                else:
                    own[number] = reason
            self._own.append(own)
            self._rest.append(rest)

    def waits(self, number: int, first: int, last: int) -> list[Wait]:
        """The reasons of a request that waited in the steps first .. last, which this object covers."""
        waits: list[Wait] = []
        for step in range(first, last + 1):
            at = step - self.first
            reason = self._own[at].get(number) or self._rest[at]
            if waits and waits[-1].reason == reason:
                waits[-1] = waits[-1]._replace(last=step)
            else:
                waits.append(Wait(reason, step, step))
        return waits


class Hit(NamedTuple):
    """A prefix found at an admission or a resumption."""

    step: int
    tokens: int
    of: int
    """Tokens that the request knew then."""


def hits(request: RequestHistory) -> list[Hit]:
    """The hits of a request, in order."""
    all_hits = []
    for stay in request.stays:
        if stay.start:
            known = request.num_prompt_tokens + request.num_outputs_at(stay.admitted - 1)
            all_hits.append(Hit(stay.admitted, stay.start, known))
    return all_hits


def reasons_in(waits: Iterable[Wait]) -> list[str]:
    """The reasons that occur, in the order of WORDS."""
    present = {wait.reason for wait in waits}
    return [reason for reason in WORDS if reason in present]
