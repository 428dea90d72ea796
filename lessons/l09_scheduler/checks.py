"""Checks of lesson 09: victims, the scheduler's six invariants, recompute or swap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple

from lessons.course.checking import Failed, Learner, check, smallest
from lessons.given.scheduling import Seq

# -- 09.1


def chosen(learner: Learner, blocks: list[int], need: int, free: int) -> Any:
    """Call choose_victims with requests r0, r1, ... that hold these blocks; return ids, or "MemoryError"."""
    running = [(f"r{index}", 4 * held, 4 * held - 1, held) for index, held in enumerate(blocks)]
    try:
        found = learner.call(
            "lessons.given.scheduling:choose_plain", learner.get("choose_victims"), running, need, free
        )
    except MemoryError:
        return "MemoryError"
    return list(found) if isinstance(found, list | tuple) else found


def expect_victims(learner: Learner, blocks: list[int], need: int, free: int, wanted: Any) -> None:
    if (found := chosen(learner, blocks, need, free)) != wanted:
        held = ", ".join(f"r{index}: {count}" for index, count in enumerate(blocks))
        raise Failed(
            f"the result is {found!r}; expected {wanted!r}",
            example=f"choose_victims(running, need={need}, free={free}); blocks held: {held or 'no request'}",
        )


@check("09.1")
def enough_free_needs_no_victim(learner: Learner) -> None:
    """If enough blocks are free, no request is preempted."""
    for need, free in ((0, 0), (1, 1), (2, 5)):
        expect_victims(learner, [3, 2], need, free, [])


@check("09.1")
def the_tail_goes_first(learner: Learner) -> None:
    """Victims are the least important requests, the last one first, however few blocks they hold."""
    expect_victims(learner, [9, 1], 1, 0, ["r1"])
    expect_victims(learner, [2, 9, 1, 1], 2, 0, ["r3", "r2"])
    expect_victims(learner, [2, 3, 1], 4, 1, ["r2", "r1"])


@check("09.1")
def no_victim_too_many(learner: Learner) -> None:
    """It stops as soon as enough blocks are free; free blocks count."""
    expect_victims(learner, [4, 4, 4], 4, 0, ["r2"])
    expect_victims(learner, [4, 4, 4], 6, 2, ["r2"])
    expect_victims(learner, [4, 4, 4], 5, 0, ["r2", "r1"])


@check("09.1")
def impossible_is_an_error(learner: Learner) -> None:
    """MemoryError if not even all requests hold enough; exactly enough is enough."""
    expect_victims(learner, [2, 1], 3, 0, ["r1", "r0"])
    expect_victims(learner, [2, 1], 5, 1, "MemoryError")
    expect_victims(learner, [], 1, 0, "MemoryError")


@check("09.1")
def random_victims(learner: Learner) -> None:
    """200 random cases: the shortest tail that frees enough."""
    rng = Random(91)

    def run(size: int) -> None:
        blocks = [rng.randint(0, 4) for _ in range(size)]
        need, free = rng.randint(0, 2 * size + 2), rng.randint(0, 3)
        wanted: Any = "MemoryError"
        for count in range(size, -1, -1):
            if free + sum(blocks[size - count :]) >= need:
                wanted = [f"r{index}" for index in range(size - 1, size - 1 - count, -1)]
        expect_victims(learner, blocks, need, free, wanted)

    smallest([index // 40 for index in range(200)], run)


# -- 09.2: a simulator that trusts nothing, and rules over one step


class Ask(NamedTuple):
    """A future request."""

    prompt: int
    output: int
    arrival: int = 0


class Workload(NamedTuple):
    """Requests and a small machine."""

    asks: tuple[Ask, ...]
    num_blocks: int
    block_size: int
    max_num_seqs: int
    budget: int

    def __str__(self) -> str:
        asks = ", ".join(
            f"{name(index)}: {ask.prompt} + {ask.output} tokens"
            + (f" from step {ask.arrival}" if ask.arrival else "")
            for index, ask in enumerate(self.asks)
        )
        return (
            f"{asks}; {self.num_blocks} blocks of {self.block_size}, max_num_seqs {self.max_num_seqs}, "
            f"budget {self.budget}"
        )


class Step(NamedTuple):
    """One call of schedule() and its answer."""

    number: int
    running: list[Seq]
    waiting: list[Seq]
    free: int
    rows: list[tuple[str, int]]
    preempted: list[str]

    def __str__(self) -> str:
        running, waiting = ([tuple(seq) for seq in seqs] for seqs in (self.running, self.waiting))
        return f"schedule(running={running}, waiting={waiting}, {self.free}) -> {self.rows}, preempted {self.preempted}"


Rule = Callable[[Workload, Step], str | None]
"""Returns in words how a step breaks a rule, or None."""


def name(index: int) -> str:
    return chr(ord("a") + index)


def need_of(seq: Seq, tokens: int, workload: Workload, *, admitted: bool) -> int:
    """Return the blocks that a row needs beyond those that the request holds."""
    end = seq.known if admitted else seq.computed + tokens
    return max(0, -(-end // workload.block_size) - seq.blocks)


def within_budget(workload: Workload, step: Step) -> str | None:
    total = sum(tokens for _, tokens in step.rows)
    return (
        f"the rows compute {total} tokens; the budget is {workload.budget}"
        if total > workload.budget
        else None
    )


def within_seats(workload: Workload, step: Step) -> str | None:
    ids = {seq.id for seq in step.running} - set(step.preempted) | {row for row, _ in step.rows}
    if len(ids) > workload.max_num_seqs:
        return f"{len(ids)} requests run; max_num_seqs is {workload.max_num_seqs}"
    return None


def within_blocks(workload: Workload, step: Step) -> str | None:
    free = step.free + sum(seq.blocks for seq in step.running if seq.id in step.preempted)
    tokens = dict(step.rows)
    need = sum(need_of(s, tokens[s.id], workload, admitted=False) for s in step.running if s.id in tokens)
    need += sum(need_of(s, tokens[s.id], workload, admitted=True) for s in step.waiting if s.id in tokens)
    return f"the rows need {need} new blocks; {free} are free after the preemptions" if need > free else None


def victims_get_no_row(_: Workload, step: Step) -> str | None:
    both = [row for row, _ in step.rows if row in step.preempted]
    return f"{both[0]} is preempted and has a row" if both else None


def importance_is_kept(workload: Workload, step: Step) -> str | None:
    """Victims come from the tail, and only for lack of blocks; running requests go first, the important ones first."""
    ids = [seq.id for seq in step.running]
    keep = len(ids) - len(step.preempted)
    if sorted(step.preempted) != sorted(ids[keep:]):
        return f"preempted {step.preempted}; the least important are {ids[keep:]}"
    running_rows = [row for row, _ in step.rows if row in ids]
    if running_rows != ids[: len(running_rows)] or running_rows != [
        row for row, _ in step.rows[: len(running_rows)]
    ]:
        return f"the rows are {[row for row, _ in step.rows]}; running requests, in order, are {ids}"
    if len(step.preempted) > (least := fewest_victims(workload, step)):
        return (
            f"{len(step.preempted)} requests are preempted; {least} would free enough blocks for all others"
        )
    return None


def fewest_victims(workload: Workload, step: Step) -> int:
    """Return how many requests at the tail must go so that all others compute what they miss."""
    for drop in range(len(step.running) + 1):
        keep = step.running[: len(step.running) - drop]
        rows = [(seq.id, seq.known - seq.computed) for seq in keep]
        if (
            within_blocks(
                workload, step._replace(rows=rows, preempted=[s.id for s in step.running[len(keep) :]])
            )
            is None
        ):
            return drop
    return len(step.running)


def queue_is_kept(_: Workload, step: Step) -> str | None:
    """Waiting requests are admitted in order, and none in a step that preempts."""
    queue = [seq.id for seq in step.waiting]
    admitted = [row for row, _ in step.rows if row in queue]
    if admitted and step.preempted:
        return f"{admitted[0]} is admitted in a step that preempts {step.preempted[0]}"
    if admitted != queue[: len(admitted)]:
        return f"{admitted} are admitted; the queue is {queue}"
    with_row = {row for row, _ in step.rows}
    left_out = [seq.id for seq in step.running if seq.id not in with_row]
    if admitted and left_out:
        return f"{admitted[0]} is admitted while {left_out[0]}, which runs, gets no row"
    return None


def rows_are_whole(_: Workload, step: Step) -> str | None:
    """A row computes all missing tokens of its request."""
    missing = {seq.id: seq.known - seq.computed for seq in (*step.running, *step.waiting)}
    for row, tokens in step.rows:
        if tokens != missing[row]:
            return f"{row} computes {tokens} tokens and misses {missing[row]}"
    return None


RULES: tuple[Rule, ...] = (
    within_budget,
    within_seats,
    within_blocks,
    victims_get_no_row,
    importance_is_kept,
    queue_is_kept,
    rows_are_whole,
)


@dataclass
class Machine:
    """Serves a workload with a scheduler: blocks are counted, tokens appear one per finished row."""

    workload: Workload
    known: dict[str, int] = field(default_factory=dict)
    computed: dict[str, int] = field(default_factory=dict)
    blocks: dict[str, int] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)
    number: int = 0

    def ask(self, request: str) -> Ask:
        return self.workload.asks[ord(request) - ord("a")]

    def seqs(self, ids: list[str]) -> list[Seq]:
        return [
            Seq(i, self.known.get(i, self.ask(i).prompt), self.computed.get(i, 0), self.blocks.get(i, 0))
            for i in ids
        ]

    def waiting(self) -> list[str]:
        """Return arrived, unfinished requests that do not run; order of arrival, as first come, first served."""
        arrived = [name(i) for i, ask in enumerate(self.workload.asks) if ask.arrival <= self.number]
        arrived.sort(key=lambda i: (self.ask(i).arrival, i))
        return [i for i in arrived if i not in self.running and not self.is_done(i)]

    def is_done(self, request: str) -> bool:
        return self.known.get(request, 0) == self.ask(request).prompt + self.ask(request).output

    @property
    def free(self) -> int:
        return self.workload.num_blocks - sum(self.blocks.values())

    def apply(self, step: Step) -> None:
        for victim in step.preempted:
            self.running.remove(victim)
            self.blocks[victim] = self.computed[victim] = 0
        admitted = [row for row, _ in step.rows if row not in self.running]
        self.running = sorted({*self.running, *admitted}, key=lambda i: (self.ask(i).arrival, i))
        for row, tokens in step.rows:
            known = self.known.setdefault(row, self.ask(row).prompt)
            self.computed[row] = self.computed.get(row, 0) + tokens
            self.blocks[row] = max(self.blocks.get(row, 0), -(-known // self.workload.block_size))
            self.known[row] = known + 1
            if self.is_done(row):
                self.running.remove(row)
                self.blocks[row] = 0
        self.number += 1


def serve(learner: Learner, workload: Workload, broken: Callable[[Step], None]) -> Machine:
    """Serve a workload; `broken` looks at every step. Stops at a step that breaks any rule, or has no row."""
    machine = Machine(workload)
    scheduler = learner.new("Scheduler", workload.max_num_seqs, workload.budget, workload.block_size)
    while (
        not all(machine.is_done(name(index)) for index in range(len(workload.asks))) and machine.number < 400
    ):
        running, waiting = machine.seqs(machine.running), machine.seqs(machine.waiting())
        plain = [[tuple(seq) for seq in seqs] for seqs in (running, waiting)]
        found = learner.call("lessons.given.scheduling:schedule_plain", scheduler, *plain, machine.free)
        step = in_form(found, Step(machine.number, running, waiting, machine.free, [], []), workload)
        broken(step)
        if any(rule(workload, step) for rule in RULES) or (not step.rows and (running or waiting)):
            break
        machine.apply(step)
    return machine


def in_form(found: Any, asked: Step, workload: Workload) -> Step:
    example = f"{workload}; step {asked.number}: {asked}"
    try:
        rows, preempted = found
        rows = [(row, tokens) for row, tokens in rows]
        preempted = list(preempted)
    except (TypeError, ValueError):
        raise Failed(
            f"schedule() returned {found!r}; expected Plan(rows, preempted)", example=example
        ) from None
    running, known = [seq.id for seq in asked.running], {seq.id for seq in (*asked.running, *asked.waiting)}
    ids = [row for row, _ in rows]
    if not set(ids) <= known or not set(preempted) <= set(running) or len(set(ids)) < len(ids):
        raise Failed(f"rows {rows}, preempted {preempted}: an unknown id, or one twice", example=example)
    if any(type(tokens) is not int or tokens < 1 for _, tokens in rows):
        raise Failed(f"a row computes at least one token; the rows are {rows}", example=example)
    return asked._replace(rows=rows, preempted=preempted)


def workloads(seed: int, count: int = 40) -> Iterator[Workload]:
    """Yield random workloads, few requests first; each request could finish alone.

    Every other one is hard: equal requests that need their next blocks in the same step of a pool that is just full.
    """
    rng = Random(seed)
    for index in range(count):
        number, size, most = 2 + index // 10, rng.choice([2, 4]), rng.choice([2, 9])
        asks = [
            Ask(rng.randint(1, 10), rng.randint(1, most), rng.choice([0, 0, rng.randint(0, 6)]))
            for _ in range(number)
        ]
        if index % 2:
            asks = [Ask(asks[0].prompt, 2 * size)] * number
        longest = max(ask.prompt + ask.output for ask in asks)
        least = -(-longest // size)
        num_blocks = least + rng.randint(0, 2 + index // 20)
        if index % 2:
            num_blocks = max(least, number * -(-asks[0].prompt // size))
        budget = max(longest, number + 1) + rng.choice([0, 0, rng.randint(1, 12)])
        if index % 2:
            budget = max(budget, number * asks[0].prompt)
        seats = number if index % 2 else rng.randint(1, number + 1)
        yield Workload(tuple(asks), num_blocks, size, seats, budget)


def expect_rule(learner: Learner, rule: Rule, seed: int) -> None:
    """Serve random workloads, and fail at the first step that breaks this rule."""

    def run(workload: Workload) -> None:
        def look(step: Step) -> None:
            if words := rule(workload, step):
                raise Failed(words, example=f"{workload}; step {step.number}: {step}")

        serve(learner, workload, look)

    smallest(workloads(seed), run)


@check("09.2")
def tokens_fit_the_budget(learner: Learner) -> None:
    """A step computes at most token_budget tokens, and a row all that its request misses."""
    expect_rule(
        learner, lambda workload, step: within_budget(workload, step) or rows_are_whole(workload, step), 1
    )


@check("09.2")
def a_row_beyond_the_budget_ends_the_rows(learner: Learner) -> None:
    """The first running request whose row exceeds the budget that is left gets none, and no later one does."""
    workload = Workload(
        (Ask(1, 9), Ask(5, 9), Ask(1, 9)), num_blocks=9, block_size=16, max_num_seqs=4, budget=3
    )
    running = [Seq("a", 4, 3, 1), Seq("b", 9, 4, 1), Seq("c", 7, 6, 1)]
    scheduler = learner.new("Scheduler", workload.max_num_seqs, workload.budget, workload.block_size)
    plain = [tuple(seq) for seq in running]
    found = learner.call("lessons.given.scheduling:schedule_plain", scheduler, plain, [], 6)
    step = in_form(found, Step(0, running, [], 6, [], []), workload)
    if step.rows != [("a", 1)] or step.preempted:
        raise Failed("b misses 5 tokens and 2 are left: only a gets a row", example=str(step))


@check("09.2")
def seats_are_limited(learner: Learner) -> None:
    """At most max_num_seqs requests run."""
    expect_rule(learner, within_seats, 2)


@check("09.2")
def blocks_suffice(learner: Learner) -> None:
    """After the preemptions, the free blocks suffice for all rows."""
    expect_rule(learner, within_blocks, 3)


@check("09.2")
def victims_do_not_run(learner: Learner) -> None:
    """A preempted request gets no row in that step."""
    expect_rule(learner, victims_get_no_row, 4)


@check("09.2")
def important_requests_go_first(learner: Learner) -> None:
    """Running requests go first, the most important first; victims are the least important, and no more than needed."""
    expect_rule(learner, importance_is_kept, 5)


@check("09.2")
def the_queue_keeps_its_order(learner: Learner) -> None:
    """Waiting requests are admitted in order, after all running ones, and never in a step that preempts."""
    expect_rule(learner, queue_is_kept, 6)


@check("09.2")
def all_finish_in_time(learner: Learner) -> None:
    """All requests finish, and no step leaves out what would fit: as many steps as the rules allow, exactly."""

    def run(workload: Workload) -> None:
        machine = serve(learner, workload, lambda step: None)
        wanted = steps_needed(workload)
        left = [name(index) for index in range(len(workload.asks)) if not machine.is_done(name(index))]
        if left:
            raise Failed(f"{left[0]} is not finished, after {machine.number} steps", example=str(workload))
        if machine.number != wanted:
            raise Failed(f"it takes {machine.number} steps; {wanted} suffice", example=str(workload))

    smallest(workloads(7), run)


def steps_needed(workload: Workload) -> int:
    """Count the steps of a plan made by trial: fewest victims, then each waiting row that breaks no rule."""
    machine = Machine(workload)
    while not all(machine.is_done(name(index)) for index in range(len(workload.asks))):
        running, waiting = machine.seqs(machine.running), machine.seqs(machine.waiting())
        step = Step(machine.number, running, waiting, machine.free, [], [])
        missing = {seq.id: seq.known - seq.computed for seq in (*running, *waiting)}
        keep = running[: len(running) - fewest_victims(workload, step)]
        rows = [(seq.id, missing[seq.id]) for seq in keep]
        step = step._replace(rows=rows, preempted=[seq.id for seq in running[len(keep) :]])
        for seq in waiting:
            longer = step._replace(rows=[*step.rows, (seq.id, missing[seq.id])])
            if any(rule(workload, longer) for rule in RULES):
                break
            step = longer
        machine.apply(step)
    return machine.number


@check("09.2")
def cached_blocks_cost_nothing(learner: Learner) -> None:
    """A waiting request computes only what the prefix cache lacks, and shared blocks take no free ones."""
    for known, blocks, free in ((9, 2, 1), (9, 2, 0), (16, 3, 1), (13, 1, 2)):
        waiting = [("w", known, 4 * blocks, blocks)]
        scheduler = learner.new("Scheduler", 4, 64, 4)
        found = learner.call("lessons.given.scheduling:schedule_plain", scheduler, [], waiting, free)
        wanted = [("w", known - 4 * blocks)] if -(-known // 4) - blocks <= free else []
        rows = [tuple(row) for row in found[0]]
        if rows != wanted:
            raise Failed(
                f"the rows are {rows}; expected {wanted}",
                example=f"w knows {known} tokens, {blocks} blocks of 4 are cached, {free} blocks are free",
            )


# -- 09.3


def expect_choice(learner: Learner, *args: Any) -> None:
    tokens, size, block_bytes, link, per_token, per_pair = args
    blocks = (tokens + size - 1) // size
    swap = Fraction(2 * blocks * block_bytes) / Fraction(link)
    recompute = tokens * Fraction(per_token) + sum(range(1, tokens + 1)) * Fraction(per_pair)
    found = learner.call("recompute_or_swap", *args)
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise Failed(f"the result is {found!r}; expected (choice, seconds)")
    wanted = "recompute" if recompute <= swap else "swap"
    seconds = float(min(recompute, swap))
    example = f"{tokens} tokens, blocks of {size} with {block_bytes} bytes, link {link} bytes/s, "
    example += f"{per_token} s per token, {per_pair} s per pair"
    if found[0] != wanted:
        raise Failed(
            f"the choice is {found[0]!r}; swap takes {float(swap):.4g} s, recompute {float(recompute):.4g} s",
            example=example,
        )
    if abs(found[1] - seconds) > 1e-9 * max(1.0, seconds):
        raise Failed(f"the cost is {found[1]!r} s; expected {seconds:.6g} s", example=example)


@check("09.3")
def swap_moves_blocks_twice(learner: Learner) -> None:
    """Swap costs two transfers, out and in, of whole blocks."""
    for tokens in (1, 16, 17, 160):
        expect_choice(learner, tokens, 16, 4096, 1024.0, 1000.0, 0.0)


@check("09.3")
def recompute_pays_tokens_and_pairs(learner: Learner) -> None:
    """Recomputing costs time per token and per pair of attention, which grows with the square."""
    for tokens in (1, 2, 3, 16, 100):
        expect_choice(learner, tokens, 16, 1 << 40, 1.0, 0.5, 0.25)


@check("09.3")
def the_cheaper_one_wins(learner: Learner) -> None:
    """Short victims are recomputed, long ones swapped, if attention makes the difference."""
    for tokens in (8, 64, 512, 4096, 32768):
        expect_choice(learner, tokens, 16, 2097152, 25e9, 2.0**-13, 2.0**-28)


@check("09.3")
def a_tie_is_recomputed(learner: Learner) -> None:
    """Equal costs: recompute."""
    expect_choice(learner, 16, 16, 512, 1024.0, 0.0625, 0.0)


@check("09.3")
def random_costs(learner: Learner) -> None:
    """200 random machines, short victims first."""
    rng = Random(93)

    def run(scale: int) -> None:
        size = rng.choice([1, 8, 16, 32])
        tokens = rng.randint(1, scale)
        block_bytes = size * rng.choice([256, 1024, 4096])
        expect_choice(
            learner,
            tokens,
            size,
            block_bytes,
            float(1 << rng.randint(16, 24)),
            2.0 ** -rng.randint(6, 14),
            2.0 ** -rng.randint(14, 24),
        )

    smallest([1 + index * index // 8 for index in range(200)], run)
