"""Checks of the lab batching-loop: single rules on a small model, random lives, then the engine's worker."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

from lessons.course.checking import Failed, Learner, check, refused, run_fewest
from prep_common.sandbox import GuestError, GuestStopped

LAB = "batching-loop"
VOCAB = 40
EOS = (0, 1)
MAX_STEPS = 200


class Limits(NamedTuple):
    slots: int
    budget: int
    max_len: int


class Ask(NamedTuple):
    """A request, and when it comes and goes: before step `step` or, with `during`, while that step runs."""

    name: str
    prompt: tuple[int, ...]
    max_tokens: int
    step: int = 0
    during: bool = False
    abort: int = -1
    """Step of its abort; -1: none."""
    abort_during: bool = False


def token_after(tokens: Sequence[int]) -> int:
    """Return the model's next token: it depends on every token and its position."""
    return crc32(bytes(tokens)) % VOCAB


class Model:
    """A model with KV slots that judges every row."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.slots: dict[int, list[int]] = {}

    def forward(self, rows: list[tuple[int, int, list[int]]]) -> list[int]:
        if sum(len(tokens) for _, _, tokens in rows) > self.limits.budget:
            raise Failed(f"the rows {rows} have more than {self.limits.budget} tokens")
        if len({slot for slot, _, _ in rows}) < len(rows):
            raise Failed(f"two of the rows {rows} write to one slot")
        return [self._row(*row) for row in rows]

    def _row(self, slot: int, start: int, tokens: list[int]) -> int:
        known = self.slots.get(slot, [])
        said = f"the row {(slot, start, tokens)}"
        if type(slot) is not int or not 0 <= slot < self.limits.slots or not tokens:
            raise Failed(f"{said} has no token, or its slot does not exist")
        if not 0 <= start <= len(known) or start + len(tokens) > self.limits.max_len:
            raise Failed(f"{said} does not follow the {len(known)} positions whose KV is in the slot")
        self.slots[slot] = [*known[:start], *tokens]
        return token_after(self.slots[slot])


class Life:
    """A request in the second opinion: its tokens, worked out by the model alone, and where it is in them."""

    def __init__(self, ask: Ask) -> None:
        self.ask, self.name = ask, ask.name
        self.tokens = list(ask.prompt)
        while len(self.tokens) < len(ask.prompt) + ask.max_tokens:
            self.tokens.append(token_after(self.tokens))
            if self.tokens[-1] in EOS:
                break
        self.computed = 0
        self.is_in, self.is_gone = False, False
        """Whether it has a slot; whether it has ended."""

    @property
    def known(self) -> int:
        """Tokens that the loop knows."""
        return max(len(self.ask.prompt), self.computed + (self.computed >= len(self.ask.prompt)))

    @property
    def reason(self) -> str | None:
        if self.known < len(self.tokens):
            return None
        return "stop" if self.tokens[-1] in EOS else "length"


class Book:
    """A second opinion: what each step must compute and return."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.lives: list[Life] = []

    def there(self) -> list[Life]:
        return [life for life in self.lives if not life.is_gone]

    def unfinished(self) -> list[str]:
        return [life.name for life in sorted(self.there(), key=lambda life: not life.is_in)]

    def abort(self, name: str) -> bool:
        found = [life for life in self.there() if life.name == name]
        for life in found:
            life.is_gone = True
        return bool(found)

    def plan(self) -> list[tuple[Life, int]]:
        waiting = [life for life in self.there() if not life.is_in]
        for life in waiting[: self.limits.slots - (len(self.there()) - len(waiting))]:
            life.is_in = True
        running = [life for life in self.there() if life.is_in]
        rows = [(life, 1) for life in running if life.computed >= len(life.ask.prompt)]
        for life in running:
            left = self.limits.budget - sum(count for _, count in rows)
            if life.computed < len(life.ask.prompt) and left:
                rows.append((life, min(left, len(life.ask.prompt) - life.computed)))
        return rows

    def apply(self, rows: Sequence[tuple[Life, int]]) -> list[tuple[str, int, str | None]]:
        outputs = []
        for life, count in rows:
            if life.is_gone:
                continue
            life.computed += count
            if life.computed >= len(life.ask.prompt):
                outputs.append((life.name, life.tokens[life.known - 1], life.reason))
                life.is_gone = life.reason is not None
        return outputs


class Run:
    """A learner's loop, the model and the book beside it, step by step."""

    def __init__(
        self, learner: Learner, asks: Sequence[Ask], limits: Limits, fails_at: Sequence[int]
    ) -> None:
        self.asks, self.fails_at = asks, fails_at
        self.model, self.book = Model(limits), Book(limits)
        self.yours = learner.new("BatchingLoop", *limits, list(EOS))
        self.example = f"BatchingLoop{tuple(limits)[:-1]}; {'; '.join(map(shown, asks))}"
        if fails_at:
            self.example += f"; the model fails in step {', '.join(map(str, fails_at))}"

    def fail(self, words: str) -> None:
        raise Failed(words, example=self.example)

    def happen(self, step: int, during: bool) -> None:
        """Let requests come and go."""
        for ask in self.asks:
            is_known = (ask.step, ask.during) <= (step, during)
            if (ask.abort, ask.abort_during) == (step, during) and is_known:
                answer, right = self.yours.abort(ask.name), self.book.abort(ask.name)
                if answer is not right:
                    self.fail(
                        f"step {step}: abort({ask.name!r}) returned {answer!r}; by the rules it is {right}"
                    )
            if (ask.step, ask.during) == (step, during) and ask.name not in self.book.unfinished():
                self.yours.add(ask.name, list(ask.prompt), ask.max_tokens)
                self.book.lives.append(Life(ask))

    def step(self, step: int) -> None:
        self.happen(step, False)
        plan = self.book.plan()
        rows = [tuple(row) for row in self.yours.begin()]
        found = [(start, tokens) for _, start, tokens in rows]
        right = [(life.computed, life.tokens[life.computed :][:count]) for life, count in plan]
        if found != right:
            said = [", ".join(map(str, each)) or "nothing" for each in (found, right)]
            self.fail(f"step {step} computes (start, tokens) {said[0]}; by the rules it computes {said[1]}")
        try:
            tokens = self.model.forward(rows)
        except Failed as failed:
            self.fail(f"step {step}: {failed.why}")
        self.happen(step, True)
        if rows and step in self.fails_at:
            self.yours.cancel()
        elif rows:
            outputs, expected = [tuple(each) for each in self.yours.finish(tokens)], self.book.apply(plan)
            if outputs != expected:
                self.fail(f"step {step} returns {outputs}; by the rules it returns {expected}")
        if (names := self.yours.get("unfinished")) != self.book.unfinished():
            self.fail(
                f"after step {step}, unfinished is {names!r}; by the rules it is {self.book.unfinished()}"
            )


def compare(learner: Learner, asks: Sequence[Ask], limits: Limits, fails_at: Sequence[int] = ()) -> None:
    """Serve the requests with the learner's loop; raise Failed at the first answer that differs from the book's."""
    run = Run(learner, asks, limits, fails_at)
    last = max((max(ask.step, ask.abort) for ask in asks), default=0)
    for step in range(MAX_STEPS):
        try:
            run.step(step)
        except GuestError as error:
            if error.is_stub:
                raise
            run.fail(f"step {step}: {error}")
        if step > last and not run.book.there():
            break


def shown(ask: Ask) -> str:
    when = f"{'during' if ask.during else 'before'} step {ask.step}"
    end = f", aborted {'during' if ask.abort_during else 'before'} step {ask.abort}" * (ask.abort >= 0)
    return f"add({ask.name!r}, {list(ask.prompt)}, {ask.max_tokens}) {when}{end}"


def some(name: str, length: int, max_tokens: int, *when: Any, **more: Any) -> Ask:
    """Return a request with a prompt of its own, whose output does not end by "stop" before its last token."""
    rng = Random(name)
    while True:
        prompt = tuple(rng.randrange(2, VOCAB) for _ in range(length))
        life = Life(Ask(name, prompt, max_tokens, *when, **more))
        if len(life.tokens) == length + max_tokens and life.tokens[-1] not in EOS:
            return life.ask


def stopping(name: str, length: int, outputs: int, max_tokens: int, **more: Any) -> Ask:
    """Return a request whose output ends by "stop" after so many tokens."""
    rng = Random(name)
    while True:
        ask = Ask(name, tuple(rng.randrange(2, VOCAB) for _ in range(length)), max_tokens, **more)
        life = Life(ask)
        if len(life.tokens) == length + outputs and life.tokens[-1] in EOS:
            return ask


WIDE = Limits(4, 64, 40)


# -- single rules


@check(LAB)
def a_prompt_then_a_token_a_step(learner: Learner) -> None:
    """A request computes its prompt, then its newest token in each step; the last token is never computed."""
    compare(learner, [some("a", 1, 1)], WIDE)
    compare(learner, [some("a", 5, 4)], WIDE)


@check(LAB)
def a_batch_changes_no_token(learner: Learner) -> None:
    """Requests in one batch get the tokens that each gets alone."""
    compare(learner, [some("a", 5, 6), some("b", 2, 3), some("c", 7, 4)], WIDE)


@check(LAB)
def it_ends_by_stop_or_length(learner: Learner) -> None:
    """A token in `eos` ends a request by "stop", also as the last one allowed; max_tokens ends it by "length"."""
    compare(learner, [stopping("a", 3, 2, 9)], WIDE)
    compare(learner, [stopping("b", 3, 3, 3)], WIDE)
    compare(learner, [stopping("c", 4, 1, 5), some("d", 2, 2)], WIDE)


@check(LAB)
def a_long_prompt_is_cut(learner: Learner) -> None:
    """A prompt above the budget is computed in chunks; the tokens that the model returns before its end are ignored."""
    compare(learner, [some("a", 9, 2)], Limits(2, 4, 20))
    compare(learner, [some("a", 4, 2), some("b", 8, 2)], Limits(2, 4, 20))


@check(LAB)
def decodes_come_first(learner: Learner) -> None:
    """Requests with output compute their token in every step; prompts share the rest of the budget, oldest first."""
    asks = [some("a", 12, 2), some("b", 2, 6), some("c", 3, 6)]
    compare(learner, asks, Limits(3, 3, 20))
    compare(learner, [some("a", 2, 8), some("b", 11, 2, 1), some("c", 5, 3, 2)], Limits(3, 4, 20))


@check(LAB)
def a_free_slot_is_taken_in_the_next_step(learner: Learner) -> None:
    """Waiting requests take free slots in order of arrival, in the step after a slot became free."""
    compare(learner, [some("a", 2, 2), some("b", 3, 5), some("c", 2, 2), some("d", 2, 1)], Limits(2, 8, 20))
    compare(learner, [some("a", 2, 1), some("b", 2, 1), some("c", 2, 1)], Limits(1, 8, 20))


@check(LAB)
def a_new_request_starts_a_slot_afresh(learner: Learner) -> None:
    """A request in a slot that another one has used starts at position 0."""
    compare(learner, [some("a", 6, 2), some("b", 2, 3)], Limits(1, 8, 20))


@check(LAB)
def requests_come_at_any_time(learner: Learner) -> None:
    """A request that is added between steps, or while one runs, takes part from the next step on."""
    compare(learner, [some("a", 3, 5), some("b", 2, 2, 2), some("c", 2, 2, 2, True)], WIDE)
    compare(learner, [some("a", 2, 1), some("b", 2, 2, 0, True), some("c", 2, 1, 3)], Limits(1, 8, 20))


@check(LAB)
def an_aborted_request_leaves(learner: Learner) -> None:
    """An abort between steps ends a request that waits, is in its prompt or decodes; its slot is free at once."""
    for step in (1, 2, 3):
        asks = [some("a", 5, 6, abort=step), some("b", 4, 3), some("c", 2, 2)]
        compare(learner, asks, Limits(1, 4, 20))
        compare(learner, asks, Limits(2, 4, 20))
    compare(learner, [some("a", 2, 5), some("b", 2, 2, abort=1), some("c", 2, 2)], Limits(1, 4, 20))


@check(LAB)
def an_abort_while_the_step_runs(learner: Learner) -> None:
    """The token of a request that is aborted while its step runs is discarded; its slot is free for the next step."""
    for step in (0, 1, 2):
        asks = [some("a", 5, 6, abort=step, abort_during=True), some("b", 4, 3), some("c", 2, 2)]
        compare(learner, asks, Limits(1, 4, 20))
        compare(learner, asks, WIDE)
    waits = some("b", 2, 2, abort=1, abort_during=True)
    compare(learner, [some("a", 2, 5), waits, some("c", 2, 2)], Limits(1, 4, 20))


@check(LAB)
def an_id_may_come_again(learner: Learner) -> None:
    """After its end an id is free; a request that takes it while the old one's step runs never gets the old token."""
    first = some("a", 3, 6, abort=1, abort_during=True)
    again = some("again", 4, 3, 1, True)._replace(name="a")
    compare(learner, [first, again, some("b", 3, 4)], Limits(2, 8, 20))
    compare(learner, [some("a", 2, 1), some("again", 3, 2, 1)._replace(name="a")], WIDE)


@check(LAB)
def a_failed_step_counts_for_nothing(learner: Learner) -> None:
    """After `cancel` the next step computes the same rows again, less those of requests that were aborted."""
    for fails_at in ((0,), (1,), (2, 3)):
        compare(learner, [some("a", 6, 4), some("b", 3, 3)], Limits(2, 4, 20), fails_at)
    gone = some("b", 3, 5, abort=1, abort_during=True)
    compare(learner, [some("a", 2, 4), gone, some("c", 2, 2)], Limits(2, 4, 20), (1,))


@check(LAB)
def an_idle_step_is_no_work(learner: Learner) -> None:
    """Without requests `begin` returns []."""
    compare(learner, [some("a", 2, 1, 2)], WIDE)
    compare(learner, [some("a", 2, 1, 1, abort=1, abort_during=True)], WIDE)


@check(LAB)
def the_impossible_is_refused(learner: Learner) -> None:
    """ValueError: an unfinished id, no prompt, no token to generate, too many tokens, a budget below the slots."""
    yours = learner.new("BatchingLoop", 1, 8, 8, list(EOS))
    yours.add("a", [2, 3, 4], 6)  # 8 computed tokens
    yours.add("b", [5], 1)
    calls = [
        ("a", [2], 1),
        ("b", [2], 1),
        ("c", [], 1),
        ("d", [2], 0),
        ("e", [2, 3, 4], 7),
        ("f", [2] * 9, 1),
    ]
    for call in calls:
        refused(f"8 fit; add('a', [2, 3, 4], 6); add('b', [5], 1); add{call}", yours.add, *call)
    for slots, budget in ((0, 4), (3, 2)):
        sizes = slots, budget, 8, [0]
        refused(f"BatchingLoop{sizes}", learner.new, "BatchingLoop", *sizes)
    if (names := yours.get("unfinished")) != ["a", "b"] or yours.abort("c") is not False:
        raise Failed(f"after refused calls, unfinished is {names!r}; it was ['a', 'b']", example=str(calls))


def drawn(rng: Random, count: int) -> tuple[list[Ask], Limits, list[int]]:
    """Draw requests that come and go, limits, and steps that fail."""
    slots = rng.randint(1, 3)
    limits = Limits(slots, slots + rng.choice([0, 1, 4]), 24)
    asks: list[Ask] = []
    for number in range(count):
        prompt = tuple(rng.randrange(2, VOCAB) for _ in range(rng.randint(1, 9)))
        step, during = rng.randint(0, 6), rng.random() < 0.3
        abort = step + rng.randint(0, 6) if rng.random() < 0.3 else -1
        asks.append(Ask(f"r{number}", prompt, rng.randint(1, 8), step, during, abort, rng.random() < 0.5))
    return asks, limits, [step for step in range(12) if rng.random() < 0.08]


@check(LAB)
def random_lives(learner: Learner) -> None:
    """30 random workloads with aborts and failing steps: every row and every output is that of the rules."""
    rng = Random(3)
    for number in range(30):
        asks, limits, fails_at = drawn(rng, 1 + number // 4)
        run_fewest(asks, partial(compare, learner, limits=limits, fails_at=fails_at))


# -- the engine's worker

PROMPTS = (
    "Silver Harbor costs 620 yen. How much is Silver Harbor?",
    "Do you ship to Tokyo?",
    "one two three four one two three four one two",
    "Is the third volume in stock, and what does it cost with shipping?",
    "Hello",
)
PLACES = 3
"""Slots of the loop."""
POSITIONS = 96


class Worker:
    """The engine's executor as a model function: slot s owns a run of KV blocks."""

    def __init__(self, core: Any) -> None:
        self.executor = core.executor
        self.per_slot = -(-POSITIONS // core.config.cache.block_size)
        self.lives = dict.fromkeys(range(PLACES), 0)
        """Number of requests that each slot has had."""
        self.ended: list[str] = core.scheduler.schedule().finished_request_ids
        """Requests that the worker may forget, first those of the engine's own loop."""

    def forward(self, rows: list[tuple[int, int, list[int]]]) -> list[int]:
        from engine.core.sched_output import SchedulerOutput

        scheduled = [self._scheduled(*row) for row in rows]
        out = SchedulerOutput(0, scheduled, self.ended)
        self.ended = []
        sampled = self.executor.submit(out)().sampled_token_ids
        return [int(sampled[row.request_id][0]) for row in scheduled]

    def _scheduled(self, slot: int, start: int, tokens: list[int]) -> Any:
        from engine.core.sched_output import RequestInit, Scheduled
        from engine.sampling_params import SamplingParams

        if slot not in self.lives:
            raise Failed(f"slot {slot!r} does not exist")
        init, blocks = None, []
        if start == 0:
            self.ended += [self.name(slot)] if self.lives[slot] else []
            self.lives[slot] += 1
            init = RequestInit(tokens, len(tokens), SamplingParams(temperature=0), frozenset(), seed=0)
            first = 1 + slot * self.per_slot  # block 0 is the null block
            blocks = list(range(first, first + self.per_slot))
        return Scheduled(self.name(slot), start, len(tokens), blocks, init=init, new_token_ids=tokens)

    def name(self, slot: int) -> str:
        return f"slot {slot}, request {self.lives[slot]}"


@check(LAB)
def the_engines_worker_runs_on_it(learner: Learner) -> None:
    """On the engine's worker with the shop model, five prompts in three slots get the tokens of the engine's loop."""
    from engine.llm import LLM
    from engine.sampling_params import SamplingParams

    with LLM("shop", max_num_seqs=PLACES, enable_prefix_caching=False) as llm:
        params = SamplingParams(temperature=0, max_tokens=20)
        theirs = llm.generate(list(PROMPTS), params, use_tqdm=False)
        core: Any = llm.llm_engine.engine_core
        worker = Worker(core)
        eos = [*core.config.model.eos_token_ids, llm.get_tokenizer().eos_token_id]
        forward = learner.callback(worker.forward)
        yours = learner.new("BatchingLoop", PLACES, 8, POSITIONS, eos)
        found: dict[str, list[int]] = {name: [] for name in PROMPTS}
        for prompt, output in zip(PROMPTS, theirs, strict=True):
            yours.add(prompt, list(output.prompt_token_ids), 20)
        reasons: dict[str, str | None] = {}
        for _ in range(MAX_STEPS):
            try:
                outputs = yours.step(forward)
            except RuntimeError as error:
                if isinstance(error, (GuestError, GuestStopped)):
                    raise
                raise Failed(f"the engine's worker cannot compute the rows: {error}") from None
            for name, token, reason in outputs:
                found[name].append(token)
                reasons[name] = reason
            if not yours.get("unfinished"):
                break
    for name, output in zip(PROMPTS, theirs, strict=True):
        completion = output.outputs[0]
        right = list(completion.token_ids), completion.finish_reason
        if (found[name], reasons.get(name)) != right:
            words = f"it gets the tokens {found[name]}, {reasons.get(name)}; in the engine it gets {right[0]}"
            raise Failed(f"{words}, {right[1]}", example=f"{name!r} among {len(PROMPTS)} prompts")
