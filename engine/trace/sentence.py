"""What happened in a step, in one plain sentence, the most important thing first.

    sentence(reader, 418)
    -> "r61 was preempted: r57 needed 1 block with 0 free. It gave back 9 blocks (130 computed tokens)
        and found 96 of them cached when it resumed 12 steps later."

The figures are the trace's own: `preemption_cost` counts block events and rows, it estimates nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engine.core.sched_output import Reason
from engine.trace.format import TraceError
from engine.trace.reader import TraceReader
from engine.trace.replay import RequestHistory
from engine.trace.why import singular

LIMIT = 220
"""Characters. What does not fit is left out, the least important first."""
LONGEST_NAME = 24
"""Characters of a request's name; a server's names are long, and their ends differ."""
HASH_DIGITS = 8

_LETS_GO = ("free", "unref")


@dataclass(frozen=True)
class PreemptionCost:
    """What a request lost when its blocks were taken, and what it found again when it came back."""

    request_id: str
    step: int
    """In which it lost its blocks."""
    blocks: int
    """Entries of its block table that it gave back."""
    blocks_shared: int
    """Of these, blocks that others still held: giving them back freed nothing."""
    tokens_lost: int
    """Tokens whose KV had been computed."""
    tokens_found: int | None
    """Tokens whose KV it did not compute again, because a prefix hit or a copy from the host brought it.
    None: it has not come back yet, as far as this trace goes."""
    tokens_swapped_in: int | None
    """Of these, tokens that were copied back from the host."""
    steps_waited: int | None
    """From the preemption to the step that admitted it again; None: not yet."""

    @property
    def tokens_recomputed(self) -> int | None:
        """Computed twice. A hit can be longer than what was lost: others may have computed more of it."""
        return None if self.tokens_found is None else max(0, self.tokens_lost - self.tokens_found)


def preemption_cost(reader: TraceReader, request_id: str, step: int) -> PreemptionCost:
    """The cost of a preemption. Raises TraceError if the request was not preempted in that step."""
    request = reader.find(request_id, step)
    record = reader.record(step)
    if request.number not in record.get("pre", ()):
        raise TraceError(f"{request_id} was not preempted in step {step}")
    return _cost(reader, request, step, record)


def sentence(reader: TraceReader, step: int) -> str:
    """What happened in a step: who, why and what it cost, in about `LIMIT` characters."""
    facts = _Facts(reader, step, reader.record(step))
    first, *others = [clause for tell in _CLAUSES.values() for clause in tell(facts)] or ["nothing happened"]
    text = _capital(first)
    for clause in others:
        more = f". {_capital(clause)}" if text == first and ". " in first else f"; {clause}"
        if len(text) + len(more) < LIMIT:
            text += more
    return text + "."


def main_kind(reader: TraceReader, step: int) -> str:
    """What the sentence of a step tells first: preempt, evict, abort, resume, admit, prefill, finish, swap, decode
    or idle."""
    facts = _Facts(reader, step, reader.record(step))
    return next((kind for kind, tell in _CLAUSES.items() if next(tell(facts), None)), "idle")


@dataclass
class _Facts:
    reader: TraceReader
    step: int
    record: dict[str, Any]

    def name(self, number: int) -> str:
        return _short(self.reader.requests[number].request_id)

    def names(self, numbers: Iterable[int]) -> str:
        """a, b and c; from four on only the first two."""
        names = [self.name(number) for number in numbers]
        if len(names) > 3:
            names[2:] = [f"{len(names) - 2} more"]
        return _and(names)

    @cached_property
    def rows(self) -> dict[int, int]:
        """request -> tokens computed"""
        return dict(zip(self.record.get("q", ()), self.record.get("n", ()), strict=True))

    @cached_property
    def decodes(self) -> list[int]:
        """Requests whose row only continued behind their newest token."""
        columns = zip(
            self.record.get("q", ()), self.record.get("n", ()), self.record.get("tok", ()), strict=True
        )
        return [number for number, count, tokens in columns if self._is_decode(number, count, tokens)]

    def _is_decode(self, number: int, count: int, tokens: Any) -> bool:
        request = self.reader.requests[number]
        outputs = request.num_outputs_at(self.step - 1)
        if not outputs or tokens is None:
            return False
        # A single token that gave output was the last known one: no need to look up where it stood.
        return count == 1 or _position(request, self.step) == request.num_prompt_tokens + outputs - 1

    def let_go(self, number: int) -> tuple[int, int]:
        """Blocks that a request gave back in this step: (all, those of them that others still hold)."""
        return _let_go(self.record, number)

    @property
    def budget(self) -> int | None:
        """Tokens per step, if the header says so."""
        found = self.reader.header.get("config", {}).get("scheduler", {}).get("max_num_batched_tokens")
        return found if isinstance(found, int) else None


# ---------------------------------------------------------------------- what to tell, in this order


def _preemptions(facts: _Facts) -> Iterator[str]:
    victims: list[int] = facts.record.get("pre", [])
    if not victims:
        return
    requests = facts.reader.requests
    costs = [_cost(facts.reader, requests[number], facts.step, facts.record) for number in victims]
    lost = f"{_count(sum(cost.blocks for cost in costs), 'block')} ({_lost_tokens(costs)})"
    cause = _cause(facts, victims[0])
    if len(victims) > 1:
        yield f"{len(victims)} requests were preempted, {facts.names(victims)}: {cause}. They gave back {lost}"
    else:
        name = facts.name(victims[0])
        yield f"{name} was preempted: {cause}. It gave back {lost}{_return(costs[0])}"


def _lost_tokens(costs: list[PreemptionCost]) -> str:
    return _count(sum(cost.tokens_lost for cost in costs), "computed token")


def _cause(facts: _Facts, victim: int) -> str:
    """Who needed how many blocks, with how many free."""
    entry = next((entry for entry in facts.record.get("why", ()) if entry[0] == victim), None)
    if entry is None:
        return "its blocks were needed"
    needy = _needy(facts.record, victim)
    who = "it" if needy == victim else "another request" if needy is None else facts.name(needy)
    figures = entry[2]
    if "need" not in figures or "free" not in figures:
        return f"{who} needed blocks"
    return f"{who} needed {_count(figures['need'], 'block')} with {figures['free']} free"


def _needy(record: dict[str, Any], victim: int) -> int | None:
    """For whom a victim lost its blocks: who takes the next ones, or loses its own because it is last in line."""
    gave_back = False
    for kind, number, *_ in record.get("ev", ()):
        gave_back = gave_back or (number == victim and kind in _LETS_GO)
        if gave_back and kind == "alloc" and number is not None:
            return int(number)
    last: int = record["pre"][-1]
    reason = next((entry[1] for entry in record.get("why", ()) if entry[0] == last), None)
    return last if reason == Reason.NO_BLOCKS else None


def _return(cost: PreemptionCost) -> str:
    if cost.steps_waited is None or cost.tokens_found is None:
        return ""
    when = f"when it resumed {_count(cost.steps_waited, 'step')} later"
    if not cost.tokens_found:
        return f", and had to compute them again {when}"
    how = "cached"
    if cost.tokens_swapped_in:
        how = "on the host" if cost.tokens_swapped_in >= cost.tokens_found else "cached or on the host"
    return f", and found {min(cost.tokens_found, cost.tokens_lost)} of them {how} {when}"


def _evictions(facts: _Facts) -> Iterator[str]:
    evicted = list(evicted_blocks(facts.record))
    if not evicted:
        forgotten = sum(len(blocks) for kind, _, blocks, *_ in facts.record.get("ev", ()) if kind == "evict")
        if forgotten:
            yield f"the prefix cache was reset: {_count(forgotten, 'cached block')} forgotten"
        return
    takers = facts.names(dict.fromkeys(taker for _, taker in evicted if taker is not None))
    for_whom = f" for {takers}" if takers else ""
    block = evicted[0][0]
    content = facts.reader.content_before(block, facts.step)
    owner = f"{facts.name(content.request)}'s" if content else "of unknown content"
    if len(evicted) > 1:
        yield f"{len(evicted)} cached blocks were evicted{for_whom}, first block {block} ({owner})"
        return
    what = f" (hash {content.hash_hex[:HASH_DIGITS]}, {owner})" if content else ""
    yield f"cached block {block}{what} was evicted{for_whom}"


def evicted_blocks(record: dict[str, Any]) -> Iterator[tuple[int, int | None]]:
    """(block, who took it). A reset of the cache also drops hashes, but hands the blocks to nobody."""
    events = record.get("ev", ())
    for (kind, _, blocks, *_), following in zip(events, events[1:], strict=False):
        if kind == "evict" and following[0] == "alloc" and following[2][0] == blocks[-1]:
            yield blocks[-1], following[1]


def _finishes(facts: _Facts) -> Iterator[str]:
    finished = facts.record.get("fin", ())
    if not finished:
        return
    numbers = [number for number, _ in finished]
    returned = sum(facts.let_go(number)[0] for number in numbers)
    if len(finished) == 1:
        yield f"{facts.name(numbers[0])} finished ({finished[0][1]}) and returned {_count(returned, 'block')}"
    else:
        yield f"{facts.names(numbers)} finished and returned {_count(returned, 'block')}"


def _aborts(facts: _Facts) -> Iterator[str]:
    events = facts.reader.lifecycle_at("abort", facts.step)
    if not events:
        return
    names = _and([_short(str(event.request_id)) for event in events[:2]] + _more(len(events) - 2))
    gave_back = ""
    if len(events) == 1:
        request = facts.reader.find(str(events[0].request_id), facts.step - 1)
        blocks, _ = facts.let_go(request.number)
        gave_back = (
            f" and gave back {_count(blocks, 'block')}" if blocks and request.ended == facts.step else ""
        )
    yield f"{names} {'was' if len(events) == 1 else 'were'} aborted{gave_back}"


def _resumes(facts: _Facts) -> Iterator[str]:
    computed = facts.rows
    for number, start, *_ in facts.record.get("res", ()):
        request = facts.reader.requests[number]
        known = request.num_prompt_tokens + request.num_outputs_at(facts.step - 1)
        before = [step for step in request.preempted if step < facts.step]
        waited = f" after {_count(facts.step - before[-1], 'step')}" if before else ""
        hit = f"{start} of its {known} tokens found again" if start else "nothing of it cached"
        yield f"{facts.name(number)} resumed{waited} ({hit}) and took {_took(facts, computed.get(number, 0))}"


def _admissions(facts: _Facts) -> Iterator[str]:
    admitted = facts.record.get("new", ())
    if not admitted:
        return
    computed = facts.rows
    took = _took(facts, sum(computed.get(number, 0) for number, *_ in admitted))
    hits = sum(start for _, start, *_ in admitted)
    prompts = sum(facts.reader.requests[number].num_prompt_tokens for number, *_ in admitted)
    names = facts.names([number for number, *_ in admitted])
    was, its = ("was", "its") if len(admitted) == 1 else ("were", "their")
    hit = f"{hits} of {its} {_count(prompts, 'prompt token')} cached" if hits else "no prefix cached"
    yield f"{names} {was} admitted ({hit}) and took {took}"


def _prefills(facts: _Facts) -> Iterator[str]:
    """Chunks of those who were already running; a newcomer's first chunk is part of its admission."""
    started = {number for key in ("new", "res") for number, *_ in facts.record.get(key, ())}
    started.update(facts.decodes)
    chunks = [row for row in facts.rows.items() if row[0] not in started]
    if not chunks:
        return
    took = _took(facts, sum(count for _, count in chunks))
    if len(chunks) > 1:
        yield f"{facts.names([number for number, _ in chunks])} took {took} for their prompts"
        return
    request = facts.reader.requests[chunks[0][0]]
    known = request.num_prompt_tokens + request.num_outputs_at(facts.step - 1)
    done = _position(request, facts.step + 1)
    part = f"{done} of its {known} tokens done" if done < known else f"the rest of its {known} tokens"
    yield f"{_short(request.request_id)} took {took}, {part}"


def _took(facts: _Facts, tokens: int) -> str:
    if facts.budget is None:
        return _count(tokens, "token")
    return f"{tokens} of {facts.budget} budget"


def _decodes(facts: _Facts) -> Iterator[str]:
    rows = facts.decodes
    if not rows:
        return
    who = facts.name(rows[0]) if len(rows) == 1 else f"{len(rows)} requests"
    counters = facts.record.get("cnt", {})
    drafted = counters.get("num_draft_tokens", 0)
    if drafted:
        accepted = counters.get("num_accepted_tokens", 0)
        yield f"{who} decoded, {accepted} of {_count(drafted, 'drafted token')} accepted"
    else:
        yield f"{who} decoded one token{' each' if len(rows) > 1 else ''}"


def _position(request: RequestHistory, step: int) -> int:
    """Tokens whose KV existed just before its row of a step was computed."""
    stay = request.last_stay(step)
    if stay is None:
        return 0
    row = request.row_before(step - 1)
    ran = row >= 0 and request.row_steps[row] >= stay.admitted
    return request.row_computed[row] if ran else stay.start


def _swaps(facts: _Facts) -> Iterator[str]:
    counters = facts.record.get("cnt", {})
    moved = []
    if out := counters.get("num_blocks_swapped_out", 0):
        moved.append(f"{_count(out, 'block')} swapped out to the host")
    if offloaded := counters.get("num_blocks_offloaded", 0):
        moved.append(f"{_count(offloaded, 'evicted block')} kept on the host")
    if back := counters.get("num_blocks_copied_in", 0):
        moved.append(f"{_count(back, 'block')} copied back from the host")
    if moved:
        yield ", ".join(moved)


def _starved(facts: _Facts) -> Iterator[str]:
    """Running requests that got no share of the budget."""
    starved = [
        number
        for number, reason, _ in facts.record.get("why", ())
        if number is not None
        and reason == Reason.BUDGET_EXHAUSTED
        and facts.reader.requests[number].stay_at(facts.step) is not None
    ]
    if starved:
        yield f"{facts.names(starved)} ran out of budget"


def _waiting(facts: _Facts) -> Iterator[str]:
    """Why the head of the queue waits."""
    record, victims = facts.record, set(facts.record.get("pre", ()))
    if not record["wait"]:
        return
    for number, name, figures in record.get("why", ()):
        if number in victims:
            continue
        cause = _short_cause(facts, Reason(name), figures)
        if number is None:
            yield f"{record['wait']} {'waits' if record['wait'] == 1 else 'wait'}: {cause}"
            return
        if facts.reader.requests[number].stay_at(facts.step) is None:
            place = f" first of {record['wait']}" if record["wait"] > 1 else ""
            yield f"{facts.name(number)} waits{place}: {cause}"
            return


def _short_cause(facts: _Facts, reason: Reason, figures: dict[str, int]) -> str:
    if reason is Reason.BUDGET_EXHAUSTED and figures.get("left") == 0:
        return "the budget is used up"
    cause = singular(_SHORT_CAUSES[reason].format_map(_Figures(figures)))
    if reason is Reason.NO_BLOCKS and figures.get("free", 0) < _free_when_planned(facts):
        cause = cause.replace(" free", " free beside its cached prefix")
    return cause


def _free_when_planned(facts: _Facts) -> int:
    """Free blocks when the queue was served: what rows gave back at the end of the step came later.

    Where somebody was aborted, blocks came back before that, too: then the smaller number, which claims nothing.
    """
    freed = sum(len(blocks) for kind, _, blocks, *_ in facts.record.get("ev", ()) if kind == "free")
    planned: int = facts.record["free"] - freed
    return planned


def _idle(facts: _Facts) -> Iterator[str]:
    if not facts.record.get("q") and not facts.record["wait"]:
        yield "nothing to compute: no request runs or waits"
    elif not facts.record.get("q"):
        yield "nothing was computed"


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

_SHORT_CAUSES = {
    Reason.BUDGET_EXHAUSTED: "{need} tokens to compute, {left} of the budget left",
    Reason.MAX_NUM_SEQS: "max_num_seqs allows {running} running",
    Reason.NO_BLOCKS: "it needs {need} blocks with {free} free",
    Reason.BEHIND_IN_QUEUE: "somebody ahead could not start",
    Reason.LOWER_PRIORITY: "it gave its blocks to a more important request",
    Reason.PREFIX_IN_FLIGHT: "its block {block} is being computed by another request",
    Reason.GRAMMAR_COMPILING: "its grammar is being compiled",
    Reason.KV_TRANSFER: "{loads} loads of its KV have not ended",
    Reason.OTHER_BATCH: "another step under way has its turn",
    Reason.NO_LORA_SLOT: "no slot for its adapter, {slots} in use",
    Reason.PREEMPTING: "nobody is admitted in a step that preempts",
}


# ---------------------------------------------------------------------- figures


def _cost(reader: TraceReader, request: RequestHistory, step: int, record: dict[str, Any]) -> PreemptionCost:
    blocks, shared = _let_go(record, request.number)
    lost = _position(request, step)
    back = next((later for later in request.stays if later.admitted > step), None)
    if back is None:
        return PreemptionCost(request.request_id, step, blocks, shared, lost, None, None, None)
    copied = {block for _, block in reader.record(back.admitted).get("in", ())}
    swapped_in = sum(block in copied for block in back.table_at(back.admitted)) * reader.block_size
    waited = back.admitted - step
    return PreemptionCost(request.request_id, step, blocks, shared, lost, back.start, swapped_in, waited)


def _let_go(record: dict[str, Any], number: int) -> tuple[int, int]:
    """Blocks that a request gave back in a step: (all, those of them that others still hold)."""
    counts = dict.fromkeys(_LETS_GO, 0)
    for kind, owner, blocks, *_ in record.get("ev", ()):
        if owner == number and kind in counts:
            counts[kind] += len(blocks)
    return sum(counts.values()), counts["unref"]


# ---------------------------------------------------------------------- words


class _Figures(dict[str, int]):
    """Lets a sentence stand where a scheduler of one's own gave no figure."""

    def __missing__(self, key: str) -> str:
        return "?"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _more(count: int) -> list[str]:
    return [f"{count} more"] if count > 0 else []


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[:8]}…{name[-8:]}"


def _capital(text: str) -> str:
    """A capital for a sentence that begins with a word; a request's name stays as it is."""
    if text.startswith(("cached block ", "the prefix cache ", "nothing ")):
        return text[0].upper() + text[1:]
    return text
