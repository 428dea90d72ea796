"""Questions about the next step of a run, answered by taking it.

    questions(reader, step=41, seed=7)
    -> Who loses its blocks in step 42?   ( ) r3   ( ) r5   ( ) nobody

Every answer follows from the state after `step` and the scheduler's rules: a question about the next step
is asked only where `next_step` works out from that state just what the run then did. Steps whose outcome
hangs on tokens that nobody can know (a text that ends, drafts that are confirmed) get no such question.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from app.debugger.next_step import NextStep, next_step, token_limit
from engine.core.sched_output import Reason
from engine.trace.reader import TraceReader, TraceState
from engine.trace.replay import NULL_BLOCK

NOBODY = "nobody"
MOST_CHOICES = 5
MOST_ROWS = 16
"""Of a batch that somebody would add up by hand."""
CLOSE = 3
"""Blocks: by how little memory may miss for "nobody is preempted" to be worth asking."""

Form = Literal["number", "choice", "multi"]
Answer = int | str | frozenset[str]


@dataclass(frozen=True)
class Question:
    """A question whose answer stands in the run."""

    kind: str
    """Key of KINDS."""
    step: int
    """It is asked about the state after this step."""
    revealed: int
    """The step in which the run shows the answer; `step` itself if it is there to see."""
    prompt: str
    form: Form
    choices: tuple[str, ...]
    """Empty with a number."""
    answer: Answer
    """A number, one of the choices, or the set of those that are right."""
    explanation: str
    """The figures and the rule."""
    look_at: str
    """Where the page shows what is needed."""


class Facts(NamedTuple):
    """What the generators look at."""

    reader: TraceReader
    step: int
    state: TraceState
    next: NextStep | None
    """None where the state does not decide the next step."""
    rng: random.Random


def questions(reader: TraceReader, step: int, seed: int = 0) -> list[Question]:
    """One of each kind that this step is good for, what is rarest in runs first."""
    if not 0 <= step < reader.num_steps:
        return []
    forecast = next_step(reader, step)
    facts = Facts(reader, step, reader.state_at(step), forecast, random.Random(f"{seed}/{step}"))
    return [question for make in KINDS.values() for question in make(facts)]


def is_right(question: Question, given: object) -> bool:
    """Whether an answer is the run's. Numbers may come as text; choices, with `multi`, in any collection."""
    if question.form == "number":
        text = str(given).strip()
        return text.removeprefix("-").isdecimal() and int(text) == question.answer
    if question.form == "choice":
        return given == question.answer
    return (
        not isinstance(given, str) and isinstance(given, Collection) and frozenset(given) == question.answer
    )


def in_words(answer: object) -> str:
    """An answer, right or given, as a page shows it."""
    if isinstance(answer, (frozenset, set, list, tuple)):
        return ", ".join(sorted(map(str, answer))) or "none of them"
    return str(answer)


# ---------------------------------------------------------------------- what the next step does


def _victim(facts: Facts) -> Iterator[Question]:
    """Who is preempted; nobody, where it is close."""
    plan, running = facts.next, facts.state.running
    if plan is None or len(running) < 2 or len(plan.losses) > 1:
        return
    wanted = sum(plan.taken.get(name, 0) for name in running)
    if not plan.losses and (not wanted or plan.free_before - wanted > CLOSE):
        return
    last = running[-1]
    if plan.losses:
        loss = plan.losses[0]
        who = "itself the last in line" if loss.needy == loss.victim else f"and {loss.victim} is last in line"
        because = (
            f"{loss.needy} needs {_count(loss.need, 'block')} more with {loss.free} free, {who}: victims are taken "
            f"from the end of the running requests, the least important first."
        )
    else:
        because = (
            f"The running requests need {_count(wanted, 'block')} more and {plan.free_before} are free: nobody has to "
            f"go. It would have been {last}, the last in line."
        )
    answer = plan.losses[0].victim if plan.losses else NOBODY
    needy = plan.losses[0].needy if plan.losses else next(iter(plan.taken), last)
    yield _choice(
        facts,
        "victim",
        f"Who loses its blocks in step {facts.step + 1}?",
        answer,
        [NOBODY, last, needy, running[0], *facts.rng.sample(running, len(running))],
        because,
        "free blocks, and whether the last block of each running request is full",
    )


def _hit(facts: Facts) -> Iterator[Question]:
    """How much of a prompt is cached when it starts."""
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
        "That is the longest hit there can be: at least one token has to be computed"
        if blocks == most
        else f"Block {blocks} of it is not cached any more, or never was"
    )
    yield Question(
        "hit",
        facts.step,
        facts.step + 1,
        f"{name} has {known} tokens and is admitted in step {facts.step + 1}. How many of them are found in the "
        "prefix cache?",
        "number",
        (),
        plan.hits[name],
        f"{_count(blocks, 'full block')} of {size} tokens, from the start on without a gap, are cached: "
        f"{blocks} x {size} = {plan.hits[name]}. {end}.",
        "Blocks & prefix tree: the chain of its prompt, and which of its blocks are cached",
    )


def _admitted(facts: Facts) -> Iterator[Question]:
    """Who may start."""
    plan, waiting = facts.next, facts.state.waiting
    if plan is None or plan.arrivals or not waiting:
        return
    reason, figures = plan.reasons.get(waiting[0], (None, {}))
    if reason is not None and reason is not Reason.PREEMPTING and not _is_close(reason, figures):
        return  # full house, as the page says already
    choices = waiting[:MOST_CHOICES]
    answer = frozenset(name for name in choices if name in plan.hits)
    yield Question(
        "admitted",
        facts.step,
        facts.step + 1,
        f"Who is admitted in step {facts.step + 1}? Choose all; choose none if nobody is.",
        "multi",
        tuple(choices),
        answer,
        _why_admitted(facts, plan, choices),
        "the queue in its order, free blocks, the budget, and how many run",
    )


def _is_close(reason: Reason, figures: dict[str, int]) -> bool:
    return reason is Reason.NO_BLOCKS and figures["need"] - figures["free"] <= CLOSE


def _why_admitted(facts: Facts, plan: NextStep, choices: list[str]) -> str:
    told = []
    started = [name for name in choices if name in plan.hits]
    if started:
        blocks = sum(plan.taken.get(name, 0) for name in started)
        told.append(f"{_and(started)} started with {_count(blocks, 'block')} from the free queue.")
    first = next((name for name in choices if name in plan.reasons), None)
    if first is not None:
        told.append(f"{first} waits on: {_reason_text(*plan.reasons[first])}.")
    told.append("The queue is served in order until something is used up, and never in a step that preempts.")
    return " ".join(told)


def _why_waits(facts: Facts) -> Iterator[Question]:
    """The reason of one that waits on, where it is not simply the one of the step before."""
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
        f"{name} is still waiting after step {facts.step + 1}. What keeps it?",
        REASON_WORDS[reason],
        others,
        f"In the trace: {reason.value}, {_reason_text(reason, figures)}. The scheduler looks at preemptions first, "
        "then budget, then max_num_seqs, then blocks, and nobody overtakes one that does not fit.",
        "the queue, the budget, how many run, free blocks",
        shuffle=True,
    )


REASON_WORDS = {
    Reason.NO_BLOCKS: "its blocks do not fit into what is free",
    Reason.MAX_NUM_SEQS: "as many requests run as max_num_seqs allows",
    Reason.BUDGET_EXHAUSTED: "the step's token budget is used up",
    Reason.BEHIND_IN_QUEUE: "somebody ahead of it does not fit",
    Reason.PREEMPTING: "somebody is preempted in this step",
    Reason.PREFIX_IN_FLIGHT: "its next block is being computed for another request",
}


def _reason_text(reason: Reason, figures: dict[str, int]) -> str:
    if reason is Reason.NO_BLOCKS:
        need = _count(figures["need"], "block")
        return f"it needs {need} and {figures['free']} are free beside those of its cached prefix"
    if reason is Reason.PREFIX_IN_FLIGHT:
        return f"block {figures['block']} of it is being computed for another request of this step"
    if reason is Reason.MAX_NUM_SEQS:
        return f"{figures['running']} requests run, and max_num_seqs allows no more"
    return REASON_WORDS.get(reason, reason.value)


def _free_after(facts: Facts) -> Iterator[Question]:
    """Counting blocks: taken, given back, revived by hits."""
    plan = facts.next
    if plan is None or any(plan.hits.get(name) for name in plan.arrivals) or len(plan.rows) > MOST_ROWS:
        return
    taken, back = sum(plan.taken.values()), sum(plan.returned.values())
    revived = plan.free_before - taken + back - plan.free_after
    if not (taken or back) or plan.losses:
        return
    steps = [f"{plan.free_before} before", f"{taken} taken ({_shares(plan.taken)})"]
    if revived:
        steps.append(f"{revived} that were free and cached, and are used again by a prefix hit")
    if back:
        steps.append(f"{back} given back ({_shares(plan.returned)})")
    yield Question(
        "free_after",
        facts.step,
        facts.step + 1,
        f"{plan.free_before} blocks are free. How many are free after step {facts.step + 1}?"
        + _given(facts, plan),
        "number",
        (),
        plan.free_after,
        f"{'; '.join(steps)}: {plan.free_after}. A request takes a block when its tokens no longer fit into those that "
        "it has.",
        "the last block of each running request, the queue, and who is about to end",
    )


def _given(facts: Facts, plan: NextStep) -> str:
    """What the step brings that the state does not show, and who is at its last token."""
    told = []
    for name in plan.arrivals[:MOST_CHOICES]:
        told.append(
            f"{name} ({facts.reader.find(name, facts.step + 1).num_prompt_tokens} tokens) arrives before it"
        )
    if len(plan.arrivals) > len(told):
        told.append(f"so do {len(plan.arrivals) - len(told)} more")
    if plan.returned:
        told.append(
            f"{_and(list(plan.returned))} {'reaches' if len(plan.returned) == 1 else 'reach'} max_tokens in it"
        )
    return f" ({'; '.join(told)}.)" if told else ""


def _num_tokens(facts: Facts) -> Iterator[Question]:
    """Filling the budget."""
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
    parts = _shares(chunks) + (f", {_count(single, 'request')} with one token each" if single else "")
    yield Question(
        "num_tokens",
        facts.step,
        facts.step + 1,
        f"The budget is {budget} tokens. How many are computed in step {facts.step + 1}?"
        + _given(facts, plan),
        "number",
        (),
        plan.num_tokens,
        f"{parts}: {plan.num_tokens} of {budget}. Running requests come first, each with what it lacks, "
        "then the queue, and the last one gets what is left.",
        "who runs, how far each prompt is, the queue and the budget",
    )


def _evicted_first(facts: Facts) -> Iterator[Question]:
    """Which cached content is overwritten next: the front of the free queue."""
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
        f"{len(cached)} free blocks still hold cached content. Step {facts.step + 1} overwrites some of it: which "
        "goes first?",
        named[plan.evicted[0]],
        list(named.values()),
        f"Blocks are taken from the front of the free queue. Those that hold nothing cached come first (here "
        f"{uncached}), then cached ones in the order in which they were given back, and a request gives the end of its "
        "chain back first.",
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
    now = f"holds {_count(holds, 'block')}" if holds else "waits and holds none"
    admitted = " is admitted and" if name in plan.hits else ""
    yield Question(
        "holds",
        facts.step,
        facts.step + 1,
        f"{name} {now}; the KV of {facts.state.num_computed[name]} of its {facts.state.num_tokens[name]} tokens is "
        f"there, and a block has room for {size}. How many blocks does it hold after step {facts.step + 1}?",
        "number",
        (),
        plan.held[name],
        f"It{admitted} needs room for {_count(covers, 'token')}: {covers} / {size}, rounded up, is {plan.held[name]}."
        + (" One that starts gets the blocks of all its known tokens at once." if admitted else ""),
        "the batch: its computed tokens and its blocks",
    )


# ---------------------------------------------------------------------- what the state says


def _next_block(facts: Facts) -> Iterator[Question]:
    """When a request that decodes needs its next block."""
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
    yield Question(
        "next_block",
        facts.step,
        facts.step + wait,
        f"{name} decodes: it holds {_count(blocks, 'block')} of {size} tokens, and the KV of {computed} tokens exists. "
        "It goes on with one token in every step. In how many steps from now does it take its next block?",
        "number",
        (),
        wait,
        f"{blocks} x {size} = {blocks * size} tokens have a place and {computed} are there: {blocks * size - computed} "
        f"more fit, and the one after, in step {facts.step + wait}, does not.",
        "its computed tokens, its blocks and the block size",
    )


def _decodes_until(facts: Facts, name: str, wait: int) -> bool:
    """Whether the run went on like that: one token in every step, and the block when it is due."""
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
    """Who holds what together: to be seen on the map, and to be worked out from the tables."""
    refs = facts.state.blocks.ref
    shared = [block for block, count in enumerate(refs) if count > 1 and block != NULL_BLOCK]
    alone = [block for block, count in enumerate(refs) if count == 1 and block != NULL_BLOCK]
    if not shared or len(alone) < 2:
        return
    mine = facts.rng.sample(shared, min(len(shared), facts.rng.choice((1, 2, 3))))
    others = facts.rng.sample(alone, min(len(alone), MOST_CHOICES + 1 - len(mine)))
    owners = facts.state.owners
    told = [f"block {block} by {_and(owners[block])}" for block in sorted(mine) if block in owners]
    yield Question(
        "shared",
        facts.step,
        facts.step,
        "Which of these blocks do several requests hold now? Choose all.",
        "multi",
        tuple(f"block {block}" for block in sorted(mine + others)),
        frozenset(f"block {block}" for block in mine),
        f"Held together: {'; '.join(told)}. A prefix hit puts the same block into a second table and adds 1 to its "
        "reference count.",
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


# ---------------------------------------------------------------------- making them


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
    """One of a few: the answer and the first others that differ. Names stay in order unless shuffled."""
    choices = list(dict.fromkeys([answer, *others]))[:MOST_CHOICES]
    if shuffle:
        facts.rng.shuffle(choices)
    else:
        choices.sort(key=lambda name: (name == NOBODY, name))
    return Question(
        kind,
        facts.step,
        facts.step + 1,
        prompt,
        "choice",
        tuple(choices),
        answer,
        explanation,
        look_at,
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _shares(counts: dict[str, int]) -> str:
    """r3 1, r5 2; only the first few of many."""
    shown = [f"{name} {count}" for name, count in list(counts.items())[:4]]
    if len(counts) > len(shown):
        rest = list(counts.values())[4:]
        shown.append(f"{_count(len(rest), 'other')} {sum(rest)}")
    return ", ".join(shown) or "by nobody"
