"""Questions about the next step of a run, answered by the run.

    questions(reader, step=41, seed=7)
    -> Which request is preempted in step 42?   ( ) r3   ( ) r5   ( ) none

Every answer follows from the state after `step` and the scheduler's rules: where the outcome depends on unknown tokens
(the end of a text, accepted drafts), `next_step` gives none, and there is no question about it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from app.debugger.next_step import REASON_WORDS, NextStep, next_step, token_limit
from engine.core.sched_output import Reason
from engine.trace.blocks import NULL_BLOCK
from engine.trace.protocol import Trace
from engine.trace.records import TraceState
from prep_common.text import counted, join_and

NO_REQUEST = "none"
MOST_CHOICES = 5
MOST_ROWS = 16
"""Maximum rows of a batch that a learner can add up by hand."""
CLOSE = 3
"""Blocks. "None is preempted" is asked only if at most this many blocks would stay free."""

Form = Literal["number", "choice", "multi"]


@dataclass(frozen=True)
class Question:
    """A question that the run answers."""

    prompt: str
    form: Form
    choices: tuple[str, ...]
    """Empty for a number."""
    answer: int | str | frozenset[str]
    """A number, one of the choices, or the set of the correct ones."""
    explanation: str
    """The figures and the rule."""
    step: int
    """The question is about the state after this step."""
    revealed: int
    """The step that shows the answer; `step` itself if its state shows it."""
    kind: str = ""
    """Key of KINDS."""
    look_at: str = ""
    """The part of the page that shows the necessary data."""


class Facts(NamedTuple):
    """The input of the functions that ask."""

    reader: Trace
    step: int
    state: TraceState
    rng: random.Random

    def number(self, prompt: str, answer: int, explanation: str, after: int = 1) -> Question:
        """A question for a number, answered `after` steps later."""
        return Question(prompt, "number", (), answer, explanation, self.step, self.step + after)

    def choice(
        self, prompt: str, answer: str, others: list[str], explanation: str, shuffle: bool = False
    ) -> Question:
        """A question with choices: the answer and the first others that differ, sorted unless shuffled."""
        choices = list(dict.fromkeys([answer, *others]))[:MOST_CHOICES]
        if shuffle:
            self.rng.shuffle(choices)
        else:
            choices.sort(key=lambda name: (name == NO_REQUEST, name))
        return Question(prompt, "choice", tuple(choices), answer, explanation, self.step, self.step + 1)


def questions(reader: Trace, step: int, seed: int = 0) -> list[Question]:
    """One question of each kind that applies to the step, the rarest kind first."""
    if not 0 <= step < reader.num_steps:
        return []
    plan = next_step(reader, step)
    facts = Facts(reader, step, reader.state_at(step), random.Random(f"{seed}/{step}"))
    asked = []
    for kind, (ask, look_at) in KINDS.items():
        if (plan is not None or ask is _shared) and (question := ask(facts, plan)):
            asked.append(replace(question, kind=kind, look_at=look_at))
    return asked


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


def _victim(facts: Facts, plan: NextStep) -> Question | None:
    """The preempted request; or none, if memory is nearly full."""
    running = facts.state.running
    if len(running) < 2 or len(plan.losses) > 1:
        return None
    wanted = sum(plan.taken.get(name, 0) for name in running)
    if not plan.losses and (not wanted or plan.free_before - wanted > CLOSE):
        return None
    answer, needy, last = NO_REQUEST, next(iter(plan.taken), running[-1]), running[-1]
    because = (
        f"The running requests need {counted(wanted, 'block')} more and {plan.free_before} are free, so none is "
        f"preempted. The victim would have been {last}, the least important."
    )
    for answer, (_, figures) in plan.losses.items():
        needy = plan.needy(running)
        who = f"and {answer} is" if needy != answer else "and is itself"
        because = (
            f"{needy} needs {counted(figures['need'], 'block')} more with {figures['free']} free, {who} the least "
            f"important: victims are taken from the end of the running requests, the least important first."
        )
    others = [NO_REQUEST, last, needy, running[0], *facts.rng.sample(running, len(running))]
    return facts.choice(f"Which request is preempted in step {facts.step + 1}?", answer, others, because)


def _hit(facts: Facts, plan: NextStep) -> Question | None:
    """The prefix hit of a request that starts."""
    hits = [name for name, tokens in plan.hits.items() if tokens and name not in plan.arrivals]
    if not hits:
        return None
    name = facts.rng.choice(hits)
    known, size = facts.state.num_tokens[name], facts.reader.block_size
    blocks = plan.hits[name] // size
    is_longest = blocks == (known - 1) // size
    end = (
        "That is the longest possible hit: at least one token must be computed"
        if is_longest
        else f"Block {blocks} of it is not cached"
    )
    return facts.number(
        f"{name} has {counted(known, 'token')} and is admitted in step {facts.step + 1}. How many of them are "
        "found in the prefix cache?",
        plan.hits[name],
        f"{counted(blocks, 'full block')} of {size} tokens from the start without a gap are cached: "
        f"{blocks} x {size} = {plan.hits[name]}. {end}.",
    )


def _admitted(facts: Facts, plan: NextStep) -> Question | None:
    """The requests that are admitted."""
    waiting = facts.state.waiting
    if plan.arrivals or not waiting:
        return None
    reason, figures = plan.reasons.get(waiting[0], (None, {}))
    is_close = reason is Reason.NO_BLOCKS and figures["need"] - figures["free"] <= CLOSE
    if reason is not None and reason is not Reason.PREEMPTING and not is_close:
        return None  # the page already shows the reason
    choices = waiting[:MOST_CHOICES]
    started = [name for name in choices if name in plan.hits]
    told = []
    if started:
        blocks = sum(plan.taken.get(name, 0) for name in started)
        told.append(f"{join_and(started)} started with {counted(blocks, 'block')} from the free queue.")
    first = next((name for name in choices if name in plan.reasons), None)
    if first is not None:
        told.append(f"{first} keeps waiting: {_reason_text(*plan.reasons[first])}.")
    told.append(
        "The queue is served in order until a resource is used up, and never in a step that preempts."
    )
    prompt = f"Which requests are admitted in step {facts.step + 1}? Choose all of them, or none."
    return Question(
        prompt, "multi", tuple(choices), frozenset(started), " ".join(told), facts.step, facts.step + 1
    )


def _why_waits(facts: Facts, plan: NextStep) -> Question | None:
    """The reason of a waiting request, if it differs from that of the previous step."""
    shown = {entry.request_id: entry.reason for entry in facts.reader.reasons(facts.step)}
    news = [
        name
        for name in facts.state.waiting
        if name in plan.reasons and plan.reasons[name][0] is not shown.get(name, shown.get(None))
    ]
    if plan.arrivals or not news:
        return None
    name = facts.rng.choice(news[:MOST_CHOICES])
    reason, figures = plan.reasons[name]
    others = [words for other, words in REASON_WORDS.items() if other is not reason]
    facts.rng.shuffle(others)
    return facts.choice(
        f"{name} is still waiting after step {facts.step + 1}. Why?",
        REASON_WORDS[reason],
        others,
        f"In the trace: {reason.value}, {_reason_text(reason, figures)}. The scheduler checks preemptions first, then "
        "budget, then max_num_seqs, then blocks, and no request overtakes one that does not fit.",
        shuffle=True,
    )


def _reason_text(reason: Reason, figures: dict[str, int]) -> str:
    if reason is Reason.NO_BLOCKS:
        need = counted(figures["need"], "block")
        return f"it needs {need} and {figures['free']} are free besides those of its cached prefix"
    if reason is Reason.PREFIX_IN_FLIGHT:
        return f"another request of this step computes its block {figures['block']}"
    if reason is Reason.MAX_NUM_SEQS:
        return f"{figures['running']} requests run, and max_num_seqs allows no more"
    return REASON_WORDS[reason]


def _free_after(facts: Facts, plan: NextStep) -> Question | None:
    """The number of free blocks: allocated, released, reused by hits."""
    if plan.losses or any(plan.hits.get(name) for name in plan.arrivals) or len(plan.rows) > MOST_ROWS:
        return None
    taken, back = sum(plan.taken.values()), sum(plan.returned.values())
    if not (taken or back):
        return None
    steps = [f"{plan.free_before} before", f"{taken} allocated ({_shares(plan.taken)})"]
    if revived := plan.free_before - taken + back - plan.free_after:
        steps.append(f"{revived} free and cached ones reused by a prefix hit")
    if back:
        steps.append(f"{back} released ({_shares(plan.returned)})")
    return facts.number(
        f"{plan.free_before} blocks are free. How many are free after step {facts.step + 1}?"
        + _given(facts, plan),
        plan.free_after,
        f"{'; '.join(steps)}: {plan.free_after}. A request allocates a block when its tokens no longer fit into its "
        "blocks.",
    )


def _given(facts: Facts, plan: NextStep) -> str:
    """Hints that the state does not show: arrivals before the step, and requests that reach max_tokens."""
    told = []
    for name in plan.arrivals[:MOST_CHOICES]:
        length = facts.reader.find(name, facts.step + 1).num_prompt_tokens
        told.append(f"{name} ({counted(length, 'token')}) arrives before it")
    if len(plan.arrivals) > len(told):
        told.append(f"so do {len(plan.arrivals) - len(told)} more")
    if plan.returned:
        verb = "reaches" if len(plan.returned) == 1 else "reach"
        told.append(f"{join_and(list(plan.returned))} {verb} max_tokens in it")
    return f" ({'; '.join(told)}.)" if told else ""


def _num_tokens(facts: Facts, plan: NextStep) -> Question | None:
    """The number of tokens in the step."""
    if plan.losses or any(plan.hits.get(name) for name in plan.arrivals):
        return None
    chunks = {name: count for name, count in plan.rows.items() if count > 1}
    if not 1 <= len(chunks) <= MOST_ROWS:
        return None
    budget = facts.reader.header["config"]["scheduler"]["max_num_batched_tokens"]
    single = len(plan.rows) - len(chunks)
    parts = _shares(chunks) + (f", {counted(single, 'request')} with one token each" if single else "")
    return facts.number(
        f"The budget is {budget} tokens. How many are computed in step {facts.step + 1}?"
        + _given(facts, plan),
        plan.num_tokens,
        f"{parts}: {plan.num_tokens} of {budget}. Running requests come first, each with its remaining tokens, then "
        "the queue; the last request gets the rest of the budget.",
    )


def _evicted_first(facts: Facts, plan: NextStep) -> Question | None:
    """The cached block that is evicted first: the front of the free queue."""
    queue = facts.state.blocks.free_queue()
    cached = [block for block in queue if facts.state.blocks.hash[block]]
    if not plan.evicted or plan.losses or len(cached) < 3:
        return None
    named = {}
    for block in dict.fromkeys((plan.evicted[0], *cached[:3], *cached[-2:])):
        content = facts.reader.content_before(block, facts.step + 1)
        whose = "" if content is None else f", {facts.reader.requests[content.request].request_id}'s"
        named[block] = f"block {block}{whose}"
    return facts.choice(
        f"Free blocks with cached content: {len(cached)}. Step {facts.step + 1} evicts some of them. Which one is "
        "evicted first?",
        named[plan.evicted[0]],
        list(named.values()),
        f"Blocks are taken from the front of the free queue. Uncached blocks come first (here "
        f"{len(queue) - len(cached)}), then cached ones in the order in which they were released; a request releases "
        "the end of its chain first.",
        shuffle=True,
    )


def _holds(facts: Facts, plan: NextStep) -> Question | None:
    """The length of a block table."""
    state, size = facts.state, facts.reader.block_size
    growing = [name for name in plan.taken if name in plan.held]
    if not growing:
        return None
    others = [name for name in plan.rows if name in plan.held and name in state.block_tables]
    name = facts.rng.choice(growing if facts.rng.random() < 0.7 or not others else others)
    if name in plan.arrivals:
        return None
    is_admitted = name in plan.hits
    covers = state.num_tokens[name] if is_admitted else state.num_computed[name] + plan.rows[name]
    holds = len(state.block_tables.get(name, ()))
    now = f"holds {counted(holds, 'block')}" if holds else "waits and holds none"
    admitted = " is admitted and" if is_admitted else ""
    return facts.number(
        f"{name} {now}; the KV of {state.num_computed[name]} of its {state.num_tokens[name]} tokens "
        f"exists, and a block holds {size} tokens. How many blocks does it hold after step {facts.step + 1}?",
        plan.held[name],
        f"It{admitted} needs room for {counted(covers, 'token')}: {covers} / {size}, rounded up, is {plan.held[name]}."
        + (" An admitted request gets the blocks of all its known tokens at once." if is_admitted else ""),
    )


def _next_block(facts: Facts, plan: NextStep) -> Question | None:
    """The step in which a decoding request needs its next block."""
    size = facts.reader.block_size
    candidates = []
    for name, table in facts.state.block_tables.items():
        computed = facts.state.num_computed[name]
        wait = len(table) * size - computed + 1
        decodes = facts.state.num_tokens[name] - computed == 1
        if decodes and wait > 1 and _decodes_until(facts, name, wait):
            candidates.append((name, len(table), computed, wait))
    if not candidates:
        return None
    name, blocks, computed, wait = facts.rng.choice(candidates)
    return facts.number(
        f"{name} decodes: it holds {counted(blocks, 'block')} of {size} tokens, and the KV of {computed} tokens "
        "exists. It computes one token in every step. After how many steps does it allocate its next block?",
        wait,
        f"Its blocks hold {blocks} x {size} = {counted(blocks * size, 'token')} and {computed} are there, so "
        f"{blocks * size - computed} more fit. The next one, in step {facts.step + wait}, does not.",
        after=wait,
    )


def _decodes_until(facts: Facts, name: str, wait: int) -> bool:
    """Whether the run continued like that: one token in every step, and the block in the predicted step."""
    reader, request, due = facts.reader, facts.reader.find(name, facts.step), facts.step + wait
    stay = request.stay_at(facts.step)
    if due >= reader.num_steps or stay is None or (stay.left is not None and stay.left <= due):
        return False
    num_rows = request.row_before(due) - request.row_before(facts.step)
    came = next((step for step in stay.block_steps if step > facts.step), None)
    limit = token_limit(reader, request)
    return num_rows == wait and came == due and limit > facts.state.num_tokens[name] + wait


def _shared(facts: Facts, plan: NextStep | None) -> Question | None:
    """The shared blocks, which the map and the block tables show."""
    refs, owners = facts.state.blocks.ref, facts.state.owners
    shared = [block for block, count in enumerate(refs) if count > 1 and block != NULL_BLOCK]
    alone = [block for block, count in enumerate(refs) if count == 1 and block != NULL_BLOCK]
    if not shared or len(alone) < 2:
        return None
    mine = facts.rng.sample(shared, min(len(shared), facts.rng.choice((1, 2, 3))))
    others = facts.rng.sample(alone, min(len(alone), MOST_CHOICES + 1 - len(mine)))
    told = [f"block {block} by {join_and(owners[block])}" for block in sorted(mine) if block in owners]
    return Question(
        "Which of these blocks are shared by several requests now? Choose all.",
        "multi",
        tuple(f"block {block}" for block in sorted(mine + others)),
        frozenset(f"block {block}" for block in mine),
        f"Shared: {'; '.join(told)}. A prefix hit puts the same block into a second table and adds 1 to its reference "
        "count.",
        facts.step,
        facts.step,
    )


def _shares(counts: dict[str, int]) -> str:
    """Counts as "r3 1, r5 2"; of many, the first few and a sum."""
    shown = [f"{name} {count}" for name, count in list(counts.items())[:4]]
    if len(counts) > len(shown):
        rest = list(counts.values())[4:]
        shown.append(f"{counted(len(rest), 'other')} {sum(rest)}")
    return ", ".join(shown) or "none"


KINDS: dict[str, tuple[Callable[[Facts, Any], Question | None], str]] = {
    "victim": (_victim, "free blocks, and whether the last block of each running request is full"),
    "hit": (_hit, "Blocks & prefix tree: the chain of its prompt, and which of its blocks are cached"),
    "evicted_first": (_evicted_first, "Blocks: the eviction order"),
    "why_waits": (_why_waits, "the queue, the budget, the number of running requests, free blocks"),
    "admitted": (_admitted, "the queue in order, free blocks, the budget, and the number of running requests"),
    "free_after": (
        _free_after, "the last block of each running request, the queue, and the requests about to end"
    ),
    "num_tokens": (_num_tokens, "the running requests, the progress of each prompt, the queue and the budget"),
    "holds": (_holds, "the batch: its computed tokens and blocks"),
    "next_block": (_next_block, "its computed tokens, its blocks and the block size"),
    "shared": (_shared, "the block tables, or the map's legend"),
}  # fmt: skip
"""Kind -> the function that asks, and the part of the page to look at."""
