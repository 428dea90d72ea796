"""Describe a step in one sentence, the most important event first.

sentence(reader, 418)
-> "r61 was preempted: r57 needed 1 block when 0 were free. r61 released 9 blocks (130 computed tokens);
    96 of these tokens were cached when it resumed 12 steps later."
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

from engine.core.sched_output import Reason
from engine.trace.format import shown_name
from engine.trace.preemption_cost import FREEING, PreemptionCost, cost_of, released
from engine.trace.protocol import Trace
from engine.trace.why import Figures, singular
from prep_common.text import counted, join_and

LIMIT = 220  # characters; clauses without a change of a request's state are omitted beyond it
LONGEST_NAME = 24  # characters of a request id; a server's ids are long, and differ at their ends
HASH_DIGITS = 8


def sentence(reader: Trace, step: int, *, ahead: bool = True) -> str:
    """Describe a step in about `LIMIT` characters: requests, causes and costs.

    ahead: also tell what later steps show, such as the cost of a preemption when the request resumes.
    """
    facts = _Facts(reader, step, ahead)
    clauses = [(kind, clause) for kind, tell in _CLAUSES.items() for clause in tell(facts)]
    (_, first), *others = clauses or [("idle", "nothing happened")]
    text = _capital(first)
    kept = [clause for kind, clause in others if kind in _ESSENTIAL]
    room = LIMIT - len(first) - sum(len(f"; {clause}") for clause in kept)
    for kind, clause in others:
        if kind not in _ESSENTIAL:
            if len(f"; {clause}") >= room:
                continue
            room -= len(f"; {clause}")
        text += f". {_capital(clause)}" if text == first and ". " in first else f"; {clause}"
    return text + "."


def main_kind(reader: Trace, step: int) -> str:
    """The first event of a step's sentence: preempt, evict, abort, resume, admit, prefill, finish, swap, decode or
    idle."""
    facts = _Facts(reader, step)
    return next((kind for kind, tell in _CLAUSES.items() if next(tell(facts), None)), "idle")


class _Facts:
    """A step, with its lists by name (empty if the record omits them)."""

    def __init__(self, reader: Trace, step: int, ahead: bool = True) -> None:
        self.ahead = ahead
        self.reader, self.step, self.record = reader, step, reader.record(step)
        self.requests = reader.requests
        self.counters: dict[str, int] = self.record.get("cnt", {})
        self.events, self.reasons, self.preempted = (self.record.get(key, []) for key in ("ev", "why", "pre"))

    def name(self, number: int) -> str:
        return _short(self.requests[number].request_id)

    def names(self, numbers: Iterable[int]) -> str:
        """Join names as "a, b and c"; of four or more, show the first two and a count."""
        names = [self.name(number) for number in numbers]
        if len(names) > 3:
            names[2:] = [f"{len(names) - 2} more"]
        return join_and(names)

    @cached_property
    def rows(self) -> dict[int, int]:
        """Request number -> tokens computed."""
        return dict(zip(self.record.get("q", ()), self.record.get("n", ()), strict=True))

    @cached_property
    def decodes(self) -> list[int]:
        """Requests whose row only continued behind their newest token."""
        rows = zip(*(self.record.get(column, ()) for column in ("q", "n", "tok")), strict=True)
        return [number for number, count, tokens in rows if self._is_decode(number, count, tokens)]

    def _is_decode(self, number: int, count: int, tokens: Any) -> bool:
        request = self.requests[number]
        outputs = request.num_outputs_at(self.step - 1)
        if not outputs or tokens is None:
            return False
        # A single token that produced output was the newest one: no need to look up its position.
        return count == 1 or request.position_before(self.step) == request.num_prompt_tokens + outputs - 1

    def used(self, tokens: int) -> str:
        """Describe a share of the step's budget, if the header holds the budget."""
        budget = self.reader.header.get("config", {}).get("scheduler", {}).get("max_num_batched_tokens")
        return f"{tokens} of the budget of {budget}" if isinstance(budget, int) else counted(tokens, "token")

    def reason_of(self, number: int) -> tuple[str, dict[str, int]]:
        """Reason and figures of a request that was not scheduled; empty without an entry for it."""
        return next(((name, figures) for q, name, figures in self.reasons if q == number), ("", {}))


# ---------------------------------------------------------------------- clauses, in the order of _CLAUSES


def _preemptions(facts: _Facts) -> Iterator[str]:
    victims: list[int] = facts.preempted
    if not victims:
        return
    costs = [cost_of(facts.reader, facts.requests[number], facts.step, facts.record) for number in victims]
    tokens = counted(sum(cost.tokens_lost for cost in costs), "computed token")
    lost = f"{counted(sum(cost.blocks for cost in costs), 'block')} ({tokens})"
    cause = _cause(facts, victims[0])
    if len(victims) > 1:
        yield (
            f"{counted(len(victims), 'request')} were preempted, {facts.names(victims)}: {cause}. They "
            f"released {lost}"
        )
    else:
        name = facts.name(victims[0])
        who = "It" if cause.startswith("it ") else name
        yield f"{name} was preempted: {cause}. {who} released {lost}{_return(costs[0]) if facts.ahead else ''}"


def _cause(facts: _Facts, victim: int) -> str:
    """The request that needed blocks, how many it needed, and how many were free."""
    reason, figures = facts.reason_of(victim)
    if not reason:
        return "its blocks were needed"
    needy = _needy(facts, victim)
    who = "it" if needy == victim else "another request" if needy is None else facts.name(needy)
    if "need" not in figures or "free" not in figures:
        return f"{who} needed blocks"
    were = "was" if figures["free"] == 1 else "were"
    return f"{who} needed {counted(figures['need'], 'block')} when {figures['free']} {were} free"


def _needy(facts: _Facts, victim: int) -> int | None:
    """The request for which a victim was preempted: the next to allocate blocks, or the last victim, which preempted
    itself; None if unknown."""
    has_released = False
    for kind, number, *_ in facts.events:
        has_released = has_released or (number == victim and kind in FREEING)
        if has_released and kind == "alloc" and number is not None:
            return int(number)
    last: int = facts.preempted[-1]
    return last if facts.reason_of(last)[0] == Reason.NO_BLOCKS else None


def _return(cost: PreemptionCost) -> str:
    if cost.steps_waited is None or cost.tokens_found is None:
        return ""
    when = f"when it resumed {counted(cost.steps_waited, 'step')} later"
    if not cost.tokens_found:
        return f"; it recomputed them {when}"
    how = "cached or on the host" if cost.tokens_swapped_in else "cached"
    if (cost.tokens_swapped_in or 0) >= cost.tokens_found:
        how = "on the host"
    return f"; {min(cost.tokens_found, cost.tokens_lost)} of these tokens were {how} {when}"


def _evictions(facts: _Facts) -> Iterator[str]:
    evicted = list(evicted_blocks(facts.record))
    if not evicted:
        if forgotten := sum(len(blocks) for kind, _, blocks, *_ in facts.events if kind == "evict"):
            yield f"the prefix cache was reset: {counted(forgotten, 'cached block')} dropped"
        return
    takers = facts.names(dict.fromkeys(taker for _, taker in evicted if taker is not None))
    for_whom = f" for {takers}" if takers else ""
    block = evicted[0][0]
    content = facts.reader.content_before(block, facts.step)
    owner = f"{facts.name(content.request)}'s" if content else "of unknown content"
    if len(evicted) > 1:
        yield f"{len(evicted)} cached blocks were evicted{for_whom}, first block {block} ({owner})"
    else:
        what = f" (hash {content.hash_hex[:HASH_DIGITS]}, {owner})" if content else ""
        yield f"cached block {block}{what} was evicted{for_whom}"


def evicted_blocks(record: dict[str, Any]) -> Iterator[tuple[int, int | None]]:
    """Yield (block, request that allocated it). Hashes dropped by a reset of the cache are not included."""
    events = record.get("ev", ())
    for (kind, _, blocks, *_), following in zip(events, events[1:], strict=False):
        if kind == "evict" and following[0] == "alloc" and following[2][0] == blocks[-1]:
            yield blocks[-1], following[1]


def _finishes(facts: _Facts) -> Iterator[str]:
    finished = facts.record.get("fin", ())
    if not finished:
        return
    numbers = [number for number, _ in finished]
    blocks = sum(released(facts.record, number)[0] for number in numbers)
    reason = f" ({finished[0][1]})" if len(finished) == 1 else ""
    yield f"{facts.names(numbers)} finished{reason} and released {counted(blocks, 'block')}"


def _aborts(facts: _Facts) -> Iterator[str]:
    events = facts.reader.lifecycle_at("abort", facts.step)
    if not events:
        return
    names = [_short(str(event.request_id)) for event in events[:2]]
    if len(events) > 1:
        more = [f"{len(events) - 2} more"] if len(events) > 2 else []
        yield f"{join_and(names + more)} were aborted"
        return
    request = facts.reader.find(str(events[0].request_id), facts.step - 1)
    blocks, _ = released(facts.record, request.number)
    freed = f" and released {counted(blocks, 'block')}" if blocks and request.ended == facts.step else ""
    yield f"{names[0]} was aborted{freed}"


def _resumes(facts: _Facts) -> Iterator[str]:
    resumed = [(facts.requests[number], start) for number, start, *_ in facts.record.get("res", ())]
    if not resumed:
        return
    known = sum(request.num_prompt_tokens + request.num_outputs_at(facts.step - 1) for request, _ in resumed)
    waits = [
        facts.step - before[-1]
        for request, _ in resumed
        if (before := _before(request.preempted, facts.step))
    ]
    after = f" after {join_and(list(map(str, waits)))} {'step' if waits == [1] else 'steps'}" if waits else ""
    its = "its" if len(resumed) == 1 else "their"
    num_cached = sum(start for _, start in resumed)
    hit = f"{num_cached} of {its} {known} tokens cached" if num_cached else "no prefix cached"
    used = facts.used(sum(facts.rows.get(request.number, 0) for request, _ in resumed))
    yield f"{facts.names(request.number for request, _ in resumed)} resumed{after} ({hit}) and used {used}"


def _before(steps: Iterable[int], step: int) -> list[int]:
    return [earlier for earlier in steps if earlier < step]


def _admissions(facts: _Facts) -> Iterator[str]:
    admitted = facts.record.get("new", ())
    if not admitted:
        return
    used = facts.used(sum(facts.rows.get(number, 0) for number, *_ in admitted))
    hits = sum(start for _, start, *_ in admitted)
    prompts = sum(facts.requests[number].num_prompt_tokens for number, *_ in admitted)
    names = facts.names([number for number, *_ in admitted])
    was, its = ("was", "its") if len(admitted) == 1 else ("were", "their")
    hit = f"{hits} of {its} {counted(prompts, 'prompt token')} cached" if hits else "no prefix cached"
    yield f"{names} {was} admitted ({hit}) and used {used}"


def _prefills(facts: _Facts) -> Iterator[str]:
    """Chunks of requests that were already running; a first chunk is part of its request's admission."""
    started = {number for key in ("new", "res") for number, *_ in facts.record.get(key, ())}
    started.update(facts.decodes)
    chunks = [row for row in facts.rows.items() if row[0] not in started]
    if not chunks:
        return
    used = facts.used(sum(count for _, count in chunks))
    if len(chunks) > 1:
        yield f"{facts.names([number for number, _ in chunks])} used {used} for their prompts"
        return
    request = facts.requests[chunks[0][0]]
    known = request.num_prompt_tokens + request.num_outputs_at(facts.step - 1)
    done = request.position_before(facts.step + 1)
    part = f"{done} of its {known} tokens done" if done < known else f"the rest of its {known} tokens"
    yield f"{_short(request.request_id)} used {used}, {part}"


def _decodes(facts: _Facts) -> Iterator[str]:
    rows = facts.decodes
    if not rows:
        return
    who = facts.name(rows[0]) if len(rows) == 1 else counted(len(rows), "request")
    if drafted := facts.counters.get("num_draft_tokens", 0):
        accepted = facts.counters.get("num_accepted_tokens", 0)
        yield f"{who} decoded, {accepted} of {counted(drafted, 'drafted token')} accepted"
    else:
        yield f"{who} decoded one token{' each' if len(rows) > 1 else ''}"


def _swaps(facts: _Facts) -> Iterator[str]:
    said = {
        "num_blocks_swapped_out": ("block", "swapped out to the host"),
        "num_blocks_offloaded": ("evicted block", "kept on the host"),
        "num_blocks_copied_in": ("block", "copied back from the host"),
    }
    counts = {name: facts.counters.get(name, 0) for name in said}
    moved = [f"{counted(count, said[name][0])} {said[name][1]}" for name, count in counts.items() if count]
    if moved:
        yield ", ".join(moved)


def _starved(facts: _Facts) -> Iterator[str]:
    """Running requests for which no budget was left."""
    starved = [
        number
        for number, reason, _ in facts.reasons
        if number is not None
        and reason == Reason.BUDGET_EXHAUSTED
        and facts.requests[number].stay_at(facts.step) is not None
    ]
    if starved:
        yield f"no budget was left for {facts.names(starved)}"


def _waiting(facts: _Facts) -> Iterator[str]:
    """The reason for which the head of the queue waits."""
    waiting = facts.record["wait"]
    for number, name, figures in facts.reasons if waiting else ():
        if number is None:
            who = f"{waiting} {'waits' if waiting == 1 else 'wait'}"
        elif number in facts.preempted or facts.requests[number].stay_at(facts.step) is not None:
            continue
        else:
            who = f"{facts.name(number)} waits{f' first of {waiting}' if waiting > 1 else ''}"
        yield f"{who}: {_short_cause(facts, Reason(name), figures)}"
        return


def _short_cause(facts: _Facts, reason: Reason, figures: dict[str, int]) -> str:
    if reason is Reason.BUDGET_EXHAUSTED and figures.get("left") == 0:
        return "the budget is used up"
    cause = singular(_SHORT_CAUSES[reason].format_map(Figures(figures)))
    # Free blocks when requests were admitted: without those that finished rows released at the end of the step. With
    # aborts, which release blocks before, this is a lower bound.
    freed = sum(len(blocks) for kind, _, blocks, *_ in facts.events if kind == "free")
    planned = facts.record["free"] - freed
    if reason is Reason.NO_BLOCKS and figures.get("free", 0) < planned:
        cause = cause.replace(" free", " free beside its cached prefix")
    return cause


def _idle(facts: _Facts) -> Iterator[str]:
    if not facts.rows:
        idle = "nothing to compute: no request runs or waits"
        yield "nothing was computed" if facts.record["wait"] else idle


_CLAUSES: dict[str, Callable[[_Facts], Iterator[str]]] = {
    "preempt": _preemptions,
    "evict": _evictions,
    "abort": _aborts,
    "resume": _resumes,
    "admit": _admissions,
    "prefill": _prefills,
    "finish": _finishes,
    "swap": _swaps,
    "decode": _decodes,
    "idle": _idle,
    "starved": _starved,
    "waiting": _waiting,
}

_ESSENTIAL = ("preempt", "abort", "resume", "admit", "finish")
"""Kinds of clauses that are never omitted: a request's state changes."""

_SHORT_CAUSES = {
    Reason.BUDGET_EXHAUSTED: "{need} tokens to compute, {left} of the budget left",
    Reason.MAX_NUM_SEQS: "max_num_seqs allows {running} running",
    Reason.NO_BLOCKS: "it needs {need} blocks with {free} free",
    Reason.BEHIND_IN_QUEUE: "a request ahead of it could not start",
    Reason.LOWER_PRIORITY: "it was preempted for a more important request",
    Reason.PREFIX_IN_FLIGHT: "its block {block} is being computed by another request",
    Reason.GRAMMAR_COMPILING: "its grammar is being compiled",
    Reason.KV_TRANSFER: "{loads} loads of its KV are unfinished",
    Reason.OTHER_BATCH: "another step in flight computes it",
    Reason.NO_LORA_SLOT: "no slot for its adapter, {slots} in use",
    Reason.PREEMPTING: "no request is admitted in a step that preempts",
}


def _short(name: str) -> str:
    name = shown_name(name)
    return name if len(name) <= LONGEST_NAME else f"{name[:8]}…{name[-8:]}"


def _capital(text: str) -> str:
    """Capitalise a sentence that begins with a word; a request id stays as it is."""
    if text.startswith(("cached block ", "the prefix cache ", "nothing ", "no budget ")):
        return text[0].upper() + text[1:]
    return text
