"""Checks of lesson 10: the chunked scheduler, a budget for an SLO, and what chunks cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any, NamedTuple

from lessons.course.checking import Failed, Learner, check, smallest
from lessons.given.scheduling import Seq
from lessons.given.simulated_gpu import serve_traffic
from quizzes.experiments.context import Context
from quizzes.experiments.core_engine import Ask
from quizzes.experiments.running import run_here

BLOCK = 4


class State(NamedTuple):
    """One call of schedule()."""

    max_num_seqs: int
    budget: int
    running: list[Seq]
    waiting: list[Seq]
    free: int


def plan(learner: Learner, state: State) -> tuple[list[tuple[str, int]], list[str]]:
    """Return rows and preempted ids of the learner's plan, after a look at their form."""
    scheduler = learner.new("ChunkedScheduler", state.max_num_seqs, state.budget, BLOCK)
    return in_form(schedule(learner, scheduler, state.running, state.waiting, state.free), state)


def schedule(learner: Learner, scheduler: Any, running: list[Seq], waiting: list[Seq], free: int) -> Any:
    plain = [[tuple(seq) for seq in seqs] for seqs in (running, waiting)]
    return learner.call("lessons.given.scheduling:schedule_plain", scheduler, *plain, free)


def in_form(found: Any, state: object) -> tuple[list[tuple[str, int]], list[str]]:
    try:
        rows, preempted = found
        rows = [(request_id, tokens) for request_id, tokens in rows]
    except (TypeError, ValueError):
        raise Failed(
            f"schedule() returned {found!r}; expected Plan(rows, preempted)", example=state
        ) from None
    if any(type(tokens) is not int or tokens < 1 for _, tokens in rows):
        raise Failed(f"a row computes at least one token; the rows are {rows}", example=state)
    ids = [request_id for request_id, _ in rows]
    if len(set(ids)) < len(ids):
        raise Failed(f"a request has two rows: {ids}", example=state)
    return rows, list(preempted)


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK)


def states(seed: int, count: int = 60) -> Iterator[State]:
    """Yield random states, small ones first: decodes, many of them at the end of a block, and cut prompts."""
    rng = Random(seed)
    for size in range(count):
        running = []
        for index in range(rng.randint(0, 2 + size // 10)):
            known = rng.randint(2, 8 + size // 2)
            if rng.random() < 0.5:
                known = 1 + BLOCK * blocks_for(known)  # the next token needs a new block
            computed = known - 1 if rng.random() < 0.7 else rng.randint(1, known - 1)
            held = blocks_for(computed if computed == known - 1 else known)
            running.append(Seq(f"r{index}", known, computed, held))
        waiting = []
        for index in range(rng.randint(0, 4)):
            known = rng.randint(1, 12 + size // 4)
            shared = (known - 1) // BLOCK if rng.random() < 0.3 else 0
            waiting.append(Seq(f"w{index}", known, shared * BLOCK, shared))
        free = rng.randint(0, 2) if rng.random() < 0.5 else rng.randint(2, 12)
        budget = len(running) + rng.choice((rng.randint(1, 6), rng.randint(1, 10 + size)))
        yield State(max(1, len(running) + rng.randint(0, 3)), budget, running, waiting, free)


@check("10.1")
def a_long_prompt_is_cut(learner: Learner) -> None:
    """A prompt gets what the budget leaves, in the first step and in each one after it."""

    def run(case: tuple[int, int, int]) -> None:
        decodes, prompt, budget = case
        running = [Seq(f"d{index}", 9, 8, 3) for index in range(decodes)]
        first = plan(learner, State(64, budget, running, [Seq("long", prompt, 0, 0)], 10_000))[0]
        if dict(first).get("long") != budget - decodes:
            raise Failed(f"the first chunk has {dict(first).get('long', 0)} tokens, not {budget - decodes}")
        there = Seq("long", prompt, prompt - 7, blocks_for(prompt))
        last = plan(learner, State(64, budget, [*running, there], [], 10_000))[0]
        if dict(last).get("long") != min(7, budget - decodes):
            raise Failed(f"with 7 tokens missing, the last chunk has {dict(last).get('long', 0)}")

    smallest([(0, 20, 8), (1, 20, 8), (2, 100, 8), (16, 4096, 512)], run)


@check("10.1")
def every_step_is_within_budget(learner: Learner) -> None:
    """The rows of a step compute at most token_budget tokens, and no request more than it misses."""

    def run(state: State) -> None:
        rows, _ = plan(learner, state)
        total = sum(tokens for _, tokens in rows)
        if total > state.budget:
            raise Failed(f"the rows compute {total} tokens; the budget is {state.budget}")
        missing = {seq.id: seq.known - seq.computed for seq in (*state.running, *state.waiting)}
        for request_id, tokens in rows:
            if tokens > missing[request_id]:
                raise Failed(f"{request_id} computes {tokens} tokens and misses {missing[request_id]}")

    smallest(states(1), run)


@check("10.1")
def running_requests_go_first(learner: Learner) -> None:
    """Running requests get rows in order of importance, each as much as the budget allows, before any waiting one."""

    def run(state: State) -> None:
        rows, preempted = plan(learner, state)
        left = state.budget
        wanted = []
        for seq in state.running:
            if seq.id not in preempted and left:
                wanted.append((seq.id, min(seq.known - seq.computed, left)))
                left -= wanted[-1][1]
        if rows[: len(wanted)] != wanted:
            raise Failed(f"the rows are {rows}; expected them to begin with {wanted}")

    smallest(states(2), run)


@check("10.1")
def every_row_has_its_blocks(learner: Learner) -> None:
    """Blocks suffice after the preemptions; an admitted request reserves blocks for all its known tokens."""

    def run(state: State) -> None:
        rows, preempted = plan(learner, state)
        seqs = {seq.id: seq for seq in (*state.running, *state.waiting)}
        free = state.free + sum(seqs[request_id].blocks for request_id in preempted)
        for request_id, tokens in rows:
            seq = seqs[request_id]
            if request_id in preempted:
                raise Failed(f"{request_id} is preempted and has a row")
            upto = seq.computed + tokens if seq in state.running else seq.known
            free -= max(0, blocks_for(upto) - seq.blocks)
        if free < 0:
            raise Failed(f"the plan takes {-free} blocks more than are free")

    smallest(states(3, 150), run)


@check("10.1")
def victims_come_from_the_tail(learner: Learner) -> None:
    """A preemption takes the least important request, and only as many as a row needs."""

    def run(state: State) -> None:
        _, preempted = plan(learner, state)
        tail = [seq.id for seq in reversed(state.running)][: len(preempted)]
        if preempted != tail:
            raise Failed(f"preempted {preempted}; the tail of the running requests is {tail}")
        wanted = num_victims(state)
        if len(preempted) != wanted:
            raise Failed(f"preempted {len(preempted)} requests; {wanted} suffice")

    smallest(states(4, 90), run)


def num_victims(state: State) -> int:
    """Return the smallest number of requests to drop from the tail so that the rest has room, by trying."""
    for dropped in range(len(state.running) + 1):
        kept = state.running[: len(state.running) - dropped]
        free = state.free + sum(seq.blocks for seq in state.running[len(kept) :])
        left = state.budget
        for seq in kept:
            tokens = min(left, seq.known - seq.computed)
            if tokens:
                free -= max(0, blocks_for(seq.computed + tokens) - seq.blocks)
            left -= tokens
        if free >= 0:
            return dropped
    return len(state.running)


@check("10.1")
def admission_keeps_the_order(learner: Learner) -> None:
    """Waiting requests are admitted in order while budget, rows and blocks last; none in a step that preempts."""

    def run(state: State) -> None:
        rows, preempted = plan(learner, state)
        admitted = [request_id for request_id, _ in rows if request_id.startswith("w")]
        wanted = admissible(state, rows, bool(preempted))
        if admitted != wanted:
            raise Failed(f"admitted {admitted}; expected {wanted}")

    smallest(states(5, 90), run)


def admissible(state: State, rows: list[tuple[str, int]], is_preempting: bool) -> list[str]:
    """Return the waiting ids that can start after the running rows of a plan."""
    if is_preempting:
        return []
    tokens_of = dict(rows)
    budget = state.budget - sum(tokens_of.get(seq.id, 0) for seq in state.running)
    grown = (
        blocks_for(seq.computed + tokens_of[seq.id]) - seq.blocks
        for seq in state.running
        if seq.id in tokens_of
    )
    free = state.free - sum(max(0, more) for more in grown)
    found: list[str] = []
    for seq in state.waiting:
        free -= blocks_for(seq.known) - seq.blocks
        if budget < 1 or free < 0 or len(state.running) + len(found) >= state.max_num_seqs:
            break
        budget -= min(budget, seq.known - seq.computed)
        found.append(seq.id)
    return found


@check("10.1")
def plans_equal_the_engines(learner: Learner) -> None:
    """On 12 random workloads every step has the rows and the preemptions of the engine's own scheduler."""

    def run(case: int) -> None:
        rng = Random(case)
        budget, seqs, num_blocks = rng.randint(4, 40), rng.randint(1, 4), rng.randint(14, 20)
        asks = [
            Ask(f"q{index}", rng.randint(1, 40), rng.randint(1, 12), rng.randint(0, 20))
            for index in range(2 + case // 2)
        ]
        asks.sort(key=lambda ask: ask.arrival)
        limits: dict[str, Any] = {"max_num_seqs": min(seqs, budget), "max_num_batched_tokens": budget}
        engine = Context().core(
            block_size=BLOCK, num_blocks=num_blocks, enable_prefix_caching=False, **limits
        )
        engine.run(asks)
        scheduler = learner.new("ChunkedScheduler", limits["max_num_seqs"], budget, BLOCK)
        start = min(ask.arrival for ask in asks)
        serve = partial(schedule, learner, scheduler)
        run_beside(serve, asks, num_blocks, engine.steps, start, f"workload {case}: budget {budget}")

    smallest(range(12), run)


def run_beside(
    serve: Callable[..., Any], asks: list[Ask], free: int, steps: Any, start: int, what: str
) -> None:
    """Serve the workload with a scheduler and compare each step with the engine's."""
    order = {ask.request_id: index for index, ask in enumerate(asks)}
    total = {ask.request_id: int(ask.prompt) + int(ask.output) for ask in asks}  # type: ignore[arg-type]
    running: list[Seq] = []
    waiting: list[Seq] = []
    later = list(asks)
    for view in steps:
        if later and not running and not waiting:  # an idle engine skips to the next arrival
            start = max(start, later[0].arrival - view.index)
        while later and later[0].arrival - start <= view.index:
            ask = later.pop(0)
            waiting.append(Seq(ask.request_id, int(ask.prompt), 0, 0))  # type: ignore[arg-type]
        found, preempted = in_form(serve(running, waiting, free), what)
        rows = dict(found)
        wanted = {request_id: count for request_id, (_, count) in view.rows.items()}
        if rows != wanted or preempted != list(view.preempted):
            raise Failed(
                f"step {view.index}: rows {rows}, preempted {preempted}; the engine: {wanted}, {list(view.preempted)}",
                example=what,
            )
        free += sum(seq.blocks for seq in running if seq.id in preempted)
        lost = [seq._replace(computed=0, blocks=0) for seq in running if seq.id in preempted]
        running = [seq for seq in running if seq.id not in preempted]
        running += [seq for seq in waiting if seq.id in rows]
        is_new = {seq.id for seq in waiting if seq.id in rows}
        waiting = sorted(lost + [seq for seq in waiting if seq.id not in rows], key=lambda seq: order[seq.id])
        running.sort(key=lambda seq: order[seq.id])
        moved: list[Seq] = []
        for seq in running:
            tokens = rows.get(seq.id, 0)
            computed = seq.computed + tokens
            held = max(seq.blocks, blocks_for(seq.known if seq.id in is_new else computed))
            free -= held - seq.blocks
            known = seq.known + (tokens > 0 and computed == seq.known)
            if known < total[seq.id]:
                moved.append(Seq(seq.id, known, computed, held))
            else:
                free += held
        running = moved


Answers = dict[tuple[int, int], tuple[float, list[float]]]


def choose(learner: Learner, answers: Answers, slo: float, budgets: list[int] | None = None) -> Any:
    """Let the learner choose with scripted replays; no pair may be replayed twice."""
    asked: list[tuple[int, int]] = []

    def replay(budget: int, seed: int) -> tuple[float, list[float]]:
        asked.append((budget, seed))
        return answers[budget, seed]

    budgets = budgets or sorted({budget for budget, _ in answers})
    seeds = sorted({seed for _, seed in answers})
    found = learner.call("budget_for_slo", learner.callback(replay), budgets, seeds, slo)
    if len(set(asked)) < len(asked):
        raise Failed(f"replayed the same workload twice: {asked}")
    return found


def expect(found: Any, wanted: Any, example: str) -> None:
    if found != wanted or type(found) is not type(wanted):
        raise Failed(f"the budget is {found!r}; expected {wanted!r}", example=example)


@check("10.2")
def the_slo_comes_first(learner: Learner) -> None:
    """A budget that misses the SLO is not chosen, whatever its TTFT."""
    answers: Answers = {
        (256, 0): (0.9, [0.01] * 9),
        (512, 0): (0.5, [0.02] * 9),
        (1024, 0): (0.1, [0.03] * 9),
    }
    expect(choose(learner, answers, 0.02), 512, "gaps 10, 20, 30 ms for budgets 256, 512, 1024; SLO 20 ms")


@check("10.2")
def the_lowest_ttft_wins(learner: Learner) -> None:
    """The budget with the lowest mean TTFT wins among those that meet the SLO; it may not be the largest."""
    answers: Answers = {
        (256, 0): (0.9, [0.01]), (256, 1): (0.1, [0.01]),
        (512, 0): (0.3, [0.01]), (512, 1): (0.3, [0.01]),
        (1024, 0): (0.2, [0.01]), (1024, 1): (0.6, [0.01]),
    }  # fmt: skip
    expect(choose(learner, answers, 0.02), 512, "mean TTFT 500, 300, 400 ms for budgets 256, 512, 1024")
    tied: Answers = {(512, 0): (0.3, [0.01]), (256, 0): (0.3, [0.01])}
    expect(choose(learner, tied, 0.02, [512, 256]), 256, "equal TTFT for budgets 512 and 256")


@check("10.2")
def p99_is_the_nearest_rank(learner: Learner) -> None:
    """One slow gap in 100 is allowed, two are not; of 99 gaps not even one."""

    def run(case: tuple[int, int, bool]) -> None:
        slow, count, is_met = case
        gaps = [0.5] * slow + [0.01] * (count - slow)
        found = choose(learner, {(512, 0): (0.3, gaps)}, 0.02)
        expect(found, 512 if is_met else None, f"{slow} slow gaps of {count}, SLO met: {is_met}")

    smallest(
        [(1, 100, True), (2, 100, False), (1, 99, False), (2, 200, True), (3, 250, False), (0, 1, True)], run
    )


@check("10.2")
def every_seed_must_meet_it(learner: Learner) -> None:
    """A budget that misses the SLO on one seed is not chosen, even if all gaps together meet it."""
    answers: Answers = {
        (256, seed): (0.9, [0.01] * 100) for seed in range(3)
    } | {(512, seed): (0.3, [0.01] * 98 + [0.5 if seed == 2 else 0.01] * 2) for seed in range(3)}  # fmt: skip
    expect(choose(learner, answers, 0.02), 256, "budget 512: two slow gaps of 100 on one seed of three")


@check("10.2")
def no_budget_is_an_answer(learner: Learner) -> None:
    """None if no budget meets the SLO."""
    expect(choose(learner, {(64, 0): (0.1, [0.05]), (128, 0): (0.1, [0.06])}, 0.02), None, "gaps of 50 ms")


@check("10.2")
def it_holds_on_five_seeds(learner: Learner) -> None:
    """On simulated traffic with five seeds the choice meets the SLO, and every budget with a lower TTFT misses it."""
    seeds, budgets = [0, 1, 2, 3, 4], [256, 512, 2048]
    answers = {(b, s): serve_traffic(b, s, num_requests=16) for b in budgets for s in seeds}
    for slo in (0.016, 0.020, 0.25):
        found = choose(learner, answers, slo, budgets)
        meets = [
            budget
            for budget in budgets
            if all(sum(gap > slo for gap in answers[budget, seed][1]) * 100 <= len(answers[budget, seed][1])
                   for seed in seeds)
        ]  # fmt: skip
        mean = {budget: sum(answers[budget, seed][0] for seed in seeds) for budget in meets}
        expect(found, min(mean, key=mean.__getitem__) if mean else None, f"P99 ITL of {1e3 * slo:.0f} ms")


def count_costs(prompt_len: int, chunk: int, cached: int) -> dict[str, int]:
    """Count passes, positions and pairs one by one."""
    passes = kv_read = pairs = 0
    done = cached
    while done < prompt_len:
        tokens = min(chunk, prompt_len - done)
        passes += 1
        kv_read += len(range(done + tokens))
        pairs += sum(len(range(query + 1)) for query in range(done, done + tokens))
        done += tokens
    return {"passes": passes, "kv_read": kv_read, "pairs": pairs}


def compare_costs(learner: Learner, names: tuple[str, ...], cases: list[tuple[int, int, int]]) -> None:
    def run(case: tuple[int, int, int]) -> None:
        found, wanted = learner.call("chunk_costs", *case), count_costs(*case)
        for name in names:
            if found.get(name) != wanted[name] or type(found[name]) is not int:
                what = "prompt of {} in chunks of {}, {} cached".format(*case)
                raise Failed(f"{name} is {found.get(name)!r}; expected {wanted[name]}", example=what)

    smallest(cases, run)


@check("10.3")
def passes_are_rounded_up(learner: Learner) -> None:
    """The last chunk may be short, and there is no empty one."""
    compare_costs(
        learner, ("passes",), [(1, 1, 0), (8, 4, 0), (9, 4, 0), (7, 8, 0), (4096, 512, 0), (4097, 512, 0)]
    )


@check("10.3")
def kv_is_read_again(learner: Learner) -> None:
    """Each chunk reads the KV of every position up to its own end."""
    compare_costs(
        learner, ("kv_read",), [(1, 1, 0), (4, 2, 0), (5, 2, 0), (9, 4, 0), (100, 7, 0), (4096, 512, 0)]
    )


@check("10.3")
def pairs_stay_the_same(learner: Learner) -> None:
    """The arithmetic of attention does not depend on the chunk."""
    compare_costs(
        learner, ("pairs",), [(1, 1, 0), (4, 4, 0), (4, 3, 0), (9, 2, 0), (100, 100, 0), (100, 7, 0)]
    )


@check("10.3")
def cached_tokens_are_read_not_computed(learner: Learner) -> None:
    """A cached prefix has no passes and no queries of its own, but every chunk reads its KV."""
    cases = [(2, 1, 1), (8, 4, 4), (9, 4, 4), (10, 16, 8), (100, 7, 48)]
    compare_costs(learner, ("passes", "kv_read", "pairs"), cases)


@check("10.3")
def the_simulator_counts_the_same(learner: Learner) -> None:
    """The counters equal those of the engine's scheduler and cost model."""
    for prompt_len, chunk in ((512, 128), (1000, 256), (4096, 512)):
        found = learner.call("chunk_costs", prompt_len, chunk)
        engine = run_here("scheduling.chunk_cost", {"prompt": prompt_len, "chunk": chunk})
        wanted = {"passes": engine["passes"], "kv_read": engine["context_read"], "pairs": engine["pairs"]}
        if found != wanted:
            raise Failed(f"the counters are {found}; the engine's are {wanted}", example=(prompt_len, chunk))
