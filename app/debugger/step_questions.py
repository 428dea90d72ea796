"""Questions about the next step of a run, answered by the run.

    questions(reader, step=41, seed=7)
    -> Which request is preempted in step 42?   ( ) r3   ( ) r5   ( ) none

Every answer follows from the state after `step` and the scheduler's rules: a question about the next step
is asked only if `next_step` predicts from that state exactly what the run did. Steps whose outcome depends
on unknown tokens (the end of a text, accepted drafts) get no such question.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from app.debugger.next_step import NextStep, next_step, token_limit
from common.text import counted, join_and
from engine.core.sched_output import Reason
from engine.trace.blocks import NULL_BLOCK
from engine.trace.protocol import Trace
from engine.trace.records import TraceState

NO_REQUEST = "none"
MOST_CHOICES = 5
MOST_ROWS = 16
"""Maximum rows of a batch that a learner can add up by hand."""
CLOSE = 3
"""Blocks. "None is preempted" is asked only if at most this many blocks would stay free."""

Form = Literal["number", "choice", "multi"]
Answer = int | str | frozenset[str]


@dataclass(frozen=True)
class Question:
    """A question that the run answers."""

    kind: str
    """Key of KINDS."""
    step: int
    """The question is about the state after this step."""
    revealed: int
    """The step that shows the answer; `step` itself if its state shows it."""
    prompt: str
    form: Form
    choices: tuple[str, ...]
    """Empty for a number."""
    answer: Answer
    """A number, one of the choices, or the set of the correct ones."""
    explanation: str
    """The figures and the rule."""
    look_at: str
    """The part of the page that shows the necessary data."""


class Facts(NamedTuple):
    """The input of the generators."""

    reader: Trace
    step: int
    state: TraceState
    next: NextStep | None
    """None if the state does not determine the next step."""
    rng: random.Random


def questions(reader: Trace, step: int, seed: int = 0) -> list[Question]:
    """One question of each kind that applies to the step, the rarest kind first."""
    if not 0 <= step < reader.num_steps:
        return []
    forecast = next_step(reader, step)
    facts = Facts(reader, step, reader.state_at(step), forecast, random.Random(f"{seed}/{step}"))
    return [question for make in KINDS.values() for question in make(facts)]


def is_right(question: Question, given: object) -> bool:
    """Whether an answer is correct. A number may be text; the choices of `multi` any collection."""
    if question.form == "number":
        text = str(given).strip()
        return text.removeprefix("-").isdecimal() and int(text) == question.answer
    if question.form == "choice":
        return given == question.answer
    return (
        not isinstance(given, str) and isinstance(given, Collection) and frozenset(given) == question.answer
    )


def in_words(answer: object) -> str:
    """An answer as a page shows it."""
    if isinstance(answer, (frozenset, set, list, tuple)):
        return ", ".join(sorted(map(str, answer))) or "none of them"
    return str(answer)


# ---------------------------------------------------------------------- questions about the next step


def _victim(facts: Facts) -> Iterator[Question]:
    """The preempted request; or none, if memory is nearly full."""
    plan, running = facts.next, facts.state.running
    if plan is None or len(running) < 2 or len(plan.losses) > 1:
        return
    wanted = sum(plan.taken.get(name, 0) for name in running)
    if not plan.losses and (not wanted or plan.free_before - wanted > CLOSE):
        return
    last = running[-1]
    if plan.losses:
        loss = plan.losses[0]
        is_own = loss.needy == loss.victim
        who = "and is itself the least important" if is_own else f"and {loss.victim} is the least important"
        because = (
            f"{loss.needy} needs {counted(loss.need, 'block')} more with {loss.free} free, {who}: victims are taken "
            f"from the end of the running requests, the least important first."
        )
    else:
        because = (
            f"The running requests need {counted(wanted, 'block')} more and {plan.free_before} are free, so none is "
            f"preempted. The victim would have been {last}, the least important."
        )
    answer = plan.losses[0].victim if plan.losses else NO_REQUEST
    needy = plan.losses[0].needy if plan.losses else next(iter(plan.taken), last)
    yield _choice(
        facts,
        "victim",
        f"Which request is preempted in step {facts.step + 1}?",
        answer,
        [NO_REQUEST, last, needy, running[0], *facts.rng.sample(running, len(running))],
        because,
        "free blocks, and whether the last block of each running request is full",
    )


def _hit(facts: Facts) -> Iterator[Question]:
    """The prefix hit of a request that starts."""
    plan = facts.next
    hits = (
        [name for name, tokens in plan.hits.items() if tokens and name not in plan.arrivals] if plan else []
    )
    if plan is None or not hits:
        return
    name = facts.rng.choice(hits)
    known, size = facts.state.num_tokens[name], facts.reader.block_size
    blocks = plan.hits[name] // size
    most = (known - 1) // size
    end = (
        "That is the longest possible hit: at least one token must be computed"
        if blocks == most
        else f"Block {blocks} of it is not cached"
    )
    yield _number(
        facts,
        "hit",
        f"{name} has {known} tokens and is admitted in step {facts.step + 1}. How many of them are found in the "
        "prefix cache?",
        plan.hits[name],
        f"{counted(blocks, 'full block')} of {size} tokens from the start without a gap are cached: "
        f"{blocks} x {size} = {plan.hits[name]}. {end}.",
        "Blocks & prefix tree: the chain of its prompt, and which of its blocks are cached",
    )


def _admitted(facts: Facts) -> Iterator[Question]:
    """The requests that are admitted."""
    plan, waiting = facts.next, facts.state.waiting
    if plan is None or plan.arrivals or not waiting:
        return
    reason, figures = plan.reasons.get(waiting[0], (None, {}))
    if reason is not None and reason is not Reason.PREEMPTING and not _is_close(reason, figures):
        return  # the page already shows the reason
    choices = waiting[:MOST_CHOICES]
    answer = frozenset(name for name in choices if name in plan.hits)
    yield Question(
        "admitted",
        facts.step,
        facts.step + 1,
        f"Which requests are admitted in step {facts.step + 1}? Choose all of them, or none.",
        "multi",
        tuple(choices),
        answer,
        _why_admitted(facts, plan, choices),
        "the queue in order, free blocks, the budget, and the number of running requests",
    )


def _is_close(reason: Reason, figures: dict[str, int]) -> bool:
    return reason is Reason.NO_BLOCKS and figures["need"] - figures["free"] <= CLOSE


def _why_admitted(facts: Facts, plan: NextStep, choices: list[str]) -> str:
    told = []
    started = [name for name in choices if name in plan.hits]
    if started:
        blocks = sum(plan.taken.get(name, 0) for name in started)
        told.append(f"{join_and(started)} started with {counted(blocks, 'block')} from the free queue.")
    first = next((name for name in choices if name in plan.reasons), None)
    if first is not None:
        told.append(f"{first} keeps waiting: {_reason_text(*plan.reasons[first])}.")
    told.append(
        "The queue is served in order until a resource is used up, and never in a step that preempts."
    )
    return " ".join(told)


def _why_waits(facts: Facts) -> Iterator[Question]:
    """The reason of a waiting request, if it differs from that of the previous step."""
    plan = facts.next
    if plan is None or plan.arrivals:
        return
    shown = {entry.request_id: entry.reason for entry in facts.reader.reasons(facts.step)}
    news = [
        name
        for name in facts.state.waiting
        if name in plan.reasons and plan.reasons[name][0] is not shown.get(name, shown.get(None))
    ]
    if not news:
        return
    name = facts.rng.choice(news[:MOST_CHOICES])
    reason, figures = plan.reasons[name]
    others = [REASON_WORDS[each] for each in REASON_WORDS if each is not reason]
    facts.rng.shuffle(others)
    yield _choice(
        facts,
        "why_waits",
        f"{name} is still waiting after step {facts.step + 1}. Why?",
        REASON_WORDS[reason],
        others,
        f"In the trace: {reason.value}, {_reason_text(reason, figures)}. The scheduler checks preemptions first, then "
        "budget, then max_num_seqs, then blocks, and no request overtakes one that does not fit.",
        "the queue, the budget, the number of running requests, free blocks",
        shuffle=True,
    )


REASON_WORDS = {
    Reason.NO_BLOCKS: "it needs more blocks than are free",
    Reason.MAX_NUM_SEQS: "max_num_seqs requests already run",
    Reason.BUDGET_EXHAUSTED: "the step's token budget is used up",
    Reason.BEHIND_IN_QUEUE: "a request ahead of it does not fit",
    Reason.PREEMPTING: "a request is preempted in this step",
    Reason.PREFIX_IN_FLIGHT: "its next block is being computed for another request",
}


def _reason_text(reason: Reason, figures: dict[str, int]) -> str:
    if reason is Reason.NO_BLOCKS:
        need = counted(figures["need"], "block")
        return f"it needs {need} and {figures['free']} are free besides those of its cached prefix"
    if reason is Reason.PREFIX_IN_FLIGHT:
        return f"another request of this step computes its block {figures['block']}"
    if reason is Reason.MAX_NUM_SEQS:
        return f"{figures['running']} requests run, and max_num_seqs allows no more"
    return REASON_WORDS.get(reason, reason.value)


def _free_after(facts: Facts) -> Iterator[Question]:
    """The number of free blocks: allocated, released, reused by hits."""
    plan = facts.next
    if plan is None or any(plan.hits.get(name) for name in plan.arrivals) or len(plan.rows) > MOST_ROWS:
        return
    taken, back = sum(plan.taken.values()), sum(plan.returned.values())
    revived = plan.free_before - taken + back - plan.free_after
    if not (taken or back) or plan.losses:
        return
    steps = [f"{plan.free_before} before", f"{taken} allocated ({_shares(plan.taken)})"]
    if revived:
        steps.append(f"{revived} free and cached ones reused by a prefix hit")
    if back:
        steps.append(f"{back} released ({_shares(plan.returned)})")
    yield _number(
        facts,
        "free_after",
        f"{plan.free_before} blocks are free. How many are free after step {facts.step + 1}?"
        + _given(facts, plan),
        plan.free_after,
        f"{'; '.join(steps)}: {plan.free_after}. A request allocates a block when its tokens no longer fit into its "
        "blocks.",
        "the last block of each running request, the queue, and the requests about to end",
    )


def _given(facts: Facts, plan: NextStep) -> str:
    """Hints that the state does not show: arrivals before the step, and requests that reach max_tokens."""
    told = []
    for name in plan.arrivals[:MOST_CHOICES]:
        told.append(
            f"{name} ({facts.reader.find(name, facts.step + 1).num_prompt_tokens} tokens) arrives before it"
        )
    if len(plan.arrivals) > len(told):
        told.append(f"so do {len(plan.arrivals) - len(told)} more")
    if plan.returned:
        told.append(
            f"{join_and(list(plan.returned))} {'reaches' if len(plan.returned) == 1 else 'reach'} max_tokens in it"
        )
    return f" ({'; '.join(told)}.)" if told else ""


def _num_tokens(facts: Facts) -> Iterator[Question]:
    """The number of tokens in the step."""
    plan = facts.next
    if plan is None or any(plan.hits.get(name) for name in plan.arrivals) or plan.losses:
        return
    chunks = {name: count for name, count in plan.rows.items() if count > 1}
    if not chunks or len(chunks) > MOST_ROWS:
        return
    budget = facts.reader.header["config"].get("scheduler", {}).get("max_num_batched_tokens")
    if budget is None:
        return
    single = len(plan.rows) - len(chunks)
    parts = _shares(chunks) + (f", {counted(single, 'request')} with one token each" if single else "")
    yield _number(
        facts,
        "num_tokens",
        f"The budget is {budget} tokens. How many are computed in step {facts.step + 1}?"
        + _given(facts, plan),
        plan.num_tokens,
        f"{parts}: {plan.num_tokens} of {budget}. Running requests come first, each with its remaining tokens, then "
        "the queue; the last request gets the rest of the budget.",
        "the running requests, the progress of each prompt, the queue and the budget",
    )


def _evicted_first(facts: Facts) -> Iterator[Question]:
    """The cached block that is evicted first: the front of the free queue."""
    plan = facts.next
    cached = [block for block in facts.state.blocks.free_queue() if facts.state.blocks.hash[block]]
    if plan is None or not plan.evicted or plan.losses or len(cached) < 3:
        return
    candidates = dict.fromkeys((plan.evicted[0], *cached[:3], *cached[-2:]))
    named = {block: _block_name(facts, block) for block in candidates}
    uncached = len(facts.state.blocks.free_queue()) - len(cached)
    yield _choice(
        facts,
        "evicted_first",
        f"{len(cached)} free blocks hold cached content. Step {facts.step + 1} evicts some of them. Which one is "
        "evicted first?",
        named[plan.evicted[0]],
        list(named.values()),
        f"Blocks are taken from the front of the free queue. Uncached blocks come first (here {uncached}), then cached "
        "ones in the order in which they were released; a request releases the end of its chain first.",
        "Blocks: the eviction order",
        shuffle=True,
    )


def _block_name(facts: Facts, block: int) -> str:
    content = facts.reader.content_before(block, facts.step + 1)
    whose = "" if content is None else f", {facts.reader.requests[content.request].request_id}'s"
    return f"block {block}{whose}"


def _holds(facts: Facts) -> Iterator[Question]:
    """The length of a block table."""
    plan, size = facts.next, facts.reader.block_size
    growing = [name for name in plan.taken if name in plan.held] if plan else []
    if plan is None or not growing:
        return
    others = [name for name in plan.rows if name in plan.held and name in facts.state.block_tables]
    name = facts.rng.choice(growing if facts.rng.random() < 0.7 or not others else others)
    if name in plan.arrivals:
        return
    computed = plan.hits.get(name, facts.state.num_computed[name])
    covers = facts.state.num_tokens[name] if name in plan.hits else computed + plan.rows[name]
    holds = len(facts.state.block_tables.get(name, ()))
    now = f"holds {counted(holds, 'block')}" if holds else "waits and holds none"
    admitted = " is admitted and" if name in plan.hits else ""
    yield _number(
        facts,
        "holds",
        f"{name} {now}; the KV of {facts.state.num_computed[name]} of its {facts.state.num_tokens[name]} tokens "
        f"exists, and a block holds {size} tokens. How many blocks does it hold after step {facts.step + 1}?",
        plan.held[name],
        f"It{admitted} needs room for {counted(covers, 'token')}: {covers} / {size}, rounded up, is {plan.held[name]}."
        + (" An admitted request gets the blocks of all its known tokens at once." if admitted else ""),
        "the batch: its computed tokens and blocks",
    )


# ---------------------------------------------------------------------- questions about the state


def _next_block(facts: Facts) -> Iterator[Question]:
    """The step in which a decoding request needs its next block."""
    if facts.next is None:
        return
    size = facts.reader.block_size
    candidates = []
    for name, table in facts.state.block_tables.items():
        computed = facts.state.num_computed[name]
        wait = len(table) * size - computed + 1
        decodes = facts.state.num_tokens[name] - computed == 1
        if decodes and wait > 1 and _decodes_until(facts, name, wait):
            candidates.append((name, len(table), computed, wait))
    if not candidates:
        return
    name, blocks, computed, wait = facts.rng.choice(candidates)
    yield _number(
        facts,
        "next_block",
        f"{name} decodes: it holds {counted(blocks, 'block')} of {size} tokens, and the KV of {computed} tokens "
        "exists. "
        "It computes one token in every step. After how many steps does it allocate its next block?",
        wait,
        f"Its blocks hold {blocks} x {size} = {blocks * size} tokens and {computed} are there, so "
        f"{blocks * size - computed} more fit. The next one, in step {facts.step + wait}, does not.",
        "its computed tokens, its blocks and the block size",
        after=wait,
    )


def _decodes_until(facts: Facts, name: str, wait: int) -> bool:
    """Whether the run continued like that: one token in every step, and the block in the predicted step."""
    reader, request = facts.reader, facts.reader.find(name, facts.step)
    due = facts.step + wait
    if due >= reader.num_steps:
        return False
    rows = request.row_before(due) - request.row_before(facts.step)
    stay = request.stay_at(facts.step)
    if stay is None or rows != wait or (stay.left is not None and stay.left <= due):
        return False
    came = [step for step in stay.block_steps if step > facts.step]
    return (
        bool(came) and came[0] == due and token_limit(reader, request) > facts.state.num_tokens[name] + wait
    )


def _shared(facts: Facts) -> Iterator[Question]:
    """The shared blocks, which the map and the block tables show."""
    refs = facts.state.blocks.ref
    shared = [block for block, count in enumerate(refs) if count > 1 and block != NULL_BLOCK]
    alone = [block for block, count in enumerate(refs) if count == 1 and block != NULL_BLOCK]
    if not shared or len(alone) < 2:
        return
    mine = facts.rng.sample(shared, min(len(shared), facts.rng.choice((1, 2, 3))))
    others = facts.rng.sample(alone, min(len(alone), MOST_CHOICES + 1 - len(mine)))
    owners = facts.state.owners
    told = [f"block {block} by {join_and(owners[block])}" for block in sorted(mine) if block in owners]
    yield Question(
        "shared",
        facts.step,
        facts.step,
        "Which of these blocks are shared by several requests now? Choose all.",
        "multi",
        tuple(f"block {block}" for block in sorted(mine + others)),
        frozenset(f"block {block}" for block in mine),
        f"Shared: {'; '.join(told)}. A prefix hit puts the same block into a second table and adds 1 to its reference "
        "count.",
        "the block tables, or the map's legend",
    )


KINDS: dict[str, Callable[[Facts], Iterator[Question]]] = {
    "victim": _victim,
    "hit": _hit,
    "evicted_first": _evicted_first,
    "why_waits": _why_waits,
    "admitted": _admitted,
    "free_after": _free_after,
    "num_tokens": _num_tokens,
    "holds": _holds,
    "next_block": _next_block,
    "shared": _shared,
}


# ---------------------------------------------------------------------- helpers


def _number(
    facts: Facts, kind: str, prompt: str, answer: int, explanation: str, look_at: str, after: int = 1
) -> Question:
    """A question for a number, answered `after` steps later."""
    step = facts.step
    return Question(kind, step, step + after, prompt, "number", (), answer, explanation, look_at)


def _choice(
    facts: Facts,
    kind: str,
    prompt: str,
    answer: str,
    others: list[str],
    explanation: str,
    look_at: str,
    shuffle: bool = False,
) -> Question:
    """A question with choices: the answer and the first others that differ, sorted unless shuffled."""
    choices = list(dict.fromkeys([answer, *others]))[:MOST_CHOICES]
    if shuffle:
        facts.rng.shuffle(choices)
    else:
        choices.sort(key=lambda name: (name == NO_REQUEST, name))
    return Question(
        kind, facts.step, facts.step + 1, prompt, "choice", tuple(choices), answer, explanation, look_at
    )


def _shares(counts: dict[str, int]) -> str:
    """Counts as "r3 1, r5 2"; of many, the first few and a sum."""
    shown = [f"{name} {count}" for name, count in list(counts.items())[:4]]
    if len(counts) > len(shown):
        rest = list(counts.values())[4:]
        shown.append(f"{counted(len(rest), 'other')} {sum(rest)}")
    return ", ".join(shown) or "none"
