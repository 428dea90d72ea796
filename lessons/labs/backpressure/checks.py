"""Checks of the lab backpressure: single rules, random lives, then the engine's outputs through the buffers."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from lessons.course.checking import Failed, Learner, check, constant, refused, run_fewest, smallest

LAB = "backpressure"
Op = tuple[Any, ...]
"""Name of a method, now, and its other arguments. In a put the tokens are a number: that many of the stream's next."""
SETTINGS = (100, 30.0, 10.0)
"""capacity, patience_s, window_s."""


class Record:
    """All that happened to a stream."""

    def __init__(self, name: str, max_tokens: int) -> None:
        self.name, self.max_tokens = name, max_tokens
        self.puts: list[tuple[float, list[int]]] = []
        self.num_read = self.puts_read = 0
        """Tokens read, and puts read: those with tokens or an end."""
        self.reason: str | None = None
        self.is_cut_off = self.is_gone = False

    @property
    def tokens(self) -> list[int]:
        return [token for _, tokens in self.puts for token in tokens]

    @property
    def promise(self) -> int:
        if self.is_cut_off or self.is_gone:
            return 0
        return (self.max_tokens if self.reason is None else len(self.tokens)) - self.num_read

    @property
    def unread(self) -> list[tuple[float, list[int]]]:
        return [] if self.is_cut_off else self.puts[self.puts_read :]


class History:
    """A second opinion: it keeps every call and works out each answer from all of them."""

    def __init__(self, capacity: int, patience_s: float, window_s: float) -> None:
        self.capacity, self.patience_s, self.window_s = capacity, patience_s, window_s
        self.records: list[Record] = []
        self.levels: list[tuple[float, int]] = []
        """Promised tokens after each call."""

    @property
    def promised(self) -> int:
        return sum(record.promise for record in self.records)

    def find(self, name: str) -> Record | None:
        return next((each for each in self.records if each.name == name and not each.is_gone), None)

    def note(self, now: float) -> None:
        self.levels.append((now, self.promised))

    def released(self, now: float) -> int:
        levels = [0, *[level for _, level in self.levels]]
        steps = zip(self.levels, levels, strict=False)
        return sum(max(0, before - after) for (when, after), before in steps if when > now - self.window_s)

    def open(self, now: float, name: str, max_tokens: int) -> tuple[int, dict[str, str]]:
        if self.find(name) or max_tokens < 1:
            raise ValueError
        if max_tokens > self.capacity:
            return 400, {}
        if self.promised + max_tokens > self.capacity:
            lack, seconds = self.promised + max_tokens - self.capacity, 1
            while seconds < 60 and seconds * self.released(now) < lack * self.window_s:
                seconds += 1
            return 429, {"Retry-After": f"{seconds}"}
        self.records.append(Record(name, max_tokens))
        return 200, {}

    def put(self, now: float, name: str, tokens: list[int], reason: str | None = None) -> bool:
        record = self.find(name)
        if record is None or record.is_cut_off:
            return False
        if record.reason is not None or len(record.tokens) + len(tokens) > record.max_tokens:
            raise ValueError
        wakes = not record.unread and bool(tokens or reason)
        if tokens or reason:
            record.puts.append((now, tokens))
        record.reason = reason
        return wakes

    def read(self, now: float, name: str) -> tuple[list[int], str | None]:
        record = self.find(name)
        if record is None:
            raise ValueError
        tokens = [token for _, each in record.unread for token in each]
        record.num_read += len(tokens)
        record.puts_read = len(record.puts)
        reason = "slow" if record.is_cut_off else record.reason
        record.is_gone = reason is not None
        return tokens, reason

    def close(self, now: float, name: str) -> bool:
        record = self.find(name)
        if record is None:
            return False
        record.is_gone = True
        return record.reason is None and not record.is_cut_off

    def late(self, now: float) -> list[str]:
        alive = [record for record in self.records if not record.is_gone]
        found = [each for each in alive if each.unread and now - each.unread[0][0] > self.patience_s]
        for record in found:
            record.is_cut_off = True
        return [record.name for record in found]


class Noted:
    """A history that notes the promises after each call."""

    def __init__(self, *settings: Any) -> None:
        self.history = History(*settings)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.history, name)

        def call(now: float, *args: Any) -> Any:
            answer = found(now, *args)
            self.history.note(now)
            return answer

        return call if callable(found) else found


def replay(learner: Learner, ops: Sequence[Op], settings: tuple[float, ...] = SETTINGS) -> None:
    """Give the calls to the learner's buffers and to the history; raise Failed at the first answer that differs."""
    yours, right = learner.new("Streams", *settings), Noted(*settings)
    said = [f"Streams{tuple(f'{each:g}' for each in settings)}".replace("'", "")]
    next_token = 0
    for name, now, *args in ops:
        if name == "put":
            args = [args[0], list(range(next_token, next_token + args[1])), *args[2:]]
            next_token += len(args[1])
        said.append(f"{name}({', '.join(map(repr, (now, *args)))})")
        try:
            expected = getattr(right, name)(now, *args)
        except ValueError:
            expected = ValueError
        try:
            answer = getattr(yours, name)(now, *args)
        except ValueError:
            answer = ValueError
        same(f"{said[-1]} gave", answer, expected, said)
        same("promised is", yours.get("promised"), right.promised, said)


def same(what: str, yours: Any, right: Any, said: Sequence[str]) -> None:
    if isinstance(right, tuple) and isinstance(yours, list):
        yours = tuple(yours)
    if yours != right or isinstance(yours, bool) is not isinstance(right, bool):
        words = ["ValueError" if each is ValueError else repr(each) for each in (yours, right)]
        raise Failed(f"{what} {words[0]}; by the rules it is {words[1]}", example="; ".join(said[-12:]))


def expect(learner: Learner, ops: list[Op], settings: tuple[float, ...] = SETTINGS) -> None:
    """Fail with the fewest calls that still go wrong."""
    run_fewest(ops, lambda some: replay(learner, some, settings), tries=40)


def opened(*names: str, tokens: int = 20) -> list[Op]:
    return [("open", 0.0, name, tokens) for name in names]


# -- single rules


@check(LAB)
def each_token_comes_once_in_order(learner: Learner) -> None:
    """A read returns the tokens that came since the last one, in order; nothing is lost, nothing comes twice."""
    steps: list[Op] = []
    for step in range(8):
        steps += [("put", 0.1 * step, name, 1) for name in "ab"]
        steps += [("read", 0.1 * step, "a")] * (step % 2) + [("read", 0.1 * step, "b")] * (step == 6)
    expect(learner, [*opened("a", "b"), *steps, ("read", 1.0, "a"), ("read", 1.0, "b"), ("read", 1.0, "b")])


@check(LAB)
def what_was_missed_is_merged(learner: Learner) -> None:
    """All unread tokens come in one read, whatever the number of puts."""
    expect(learner, [*opened("a"), *[("put", 0.1, "a", count) for count in (3, 1, 0, 5)], ("read", 0.2, "a")])


@check(LAB)
def the_end_comes_with_the_last_tokens(learner: Learner) -> None:
    """The reason comes once, with the last tokens or alone; then the stream is closed and its id is free."""
    for reason in ("stop", "length", "abort"):
        expect(
            learner, [*opened("a"), ("put", 0.1, "a", 2), ("put", 0.2, "a", 1, reason), ("read", 0.3, "a")]
        )
    alone = [("put", 0.1, "a", 2), ("read", 0.1, "a"), ("put", 0.2, "a", 0, "stop"), ("read", 0.3, "a")]
    expect(learner, [*opened("a"), *alone, ("read", 0.4, "a"), ("open", 0.5, "a", 5), ("put", 0.6, "a", 1)])


@check(LAB)
def a_reader_is_woken_once(learner: Learner) -> None:
    """`put` returns True only if nothing was unread before, neither tokens nor an end, and something is now."""
    expect(
        learner,
        [*opened("a"), *[("put", 0.1, "a", count) for count in (0, 2, 1)], ("put", 0.2, "a", 1, "stop")],
    )
    expect(learner, [*opened("a"), ("put", 0.1, "a", 2), ("read", 0.1, "a"), ("put", 0.2, "a", 0, "stop")])


@check(LAB)
def a_promise_covers_what_may_come(learner: Learner) -> None:
    """A running stream's promise is max_tokens less the tokens read; an ended one's is its unread tokens."""
    expect(
        learner, [*opened("a", tokens=60), ("put", 1.0, "a", 30), ("put", 2.0, "a", 5), ("read", 3.0, "a")]
    )
    ended = [("put", 1.0, "a", 8), ("read", 2.0, "a"), ("put", 3.0, "a", 4), ("put", 3.0, "a", 2, "stop")]
    expect(learner, [*opened("a", tokens=60), *ended, ("open", 4.0, "b", 94), ("read", 5.0, "a")])


@check(LAB)
def the_door_keeps_the_capacity(learner: Learner) -> None:
    """A request is admitted if its promise fits; else 429, and nothing is promised. 400 if it can never fit."""
    expect(
        learner,
        [("open", 0.0, "a", 60), ("open", 0.0, "b", 41), ("open", 0.0, "c", 40), ("open", 0.0, "d", 1)],
    )
    expect(learner, [("open", 0.0, "a", 101), ("open", 0.0, "b", 100), ("open", 0.0, "a", 101)])
    room = [("put", 1.0, "a", 30), ("open", 1.0, "b", 50), ("read", 1.0, "a"), ("open", 1.0, "b", 50)]
    expect(learner, [*opened("a", tokens=80), *room, ("put", 2.0, "a", 9, "stop"), ("open", 2.0, "c", 41)])


@check(LAB)
def retry_after_follows_the_readers(learner: Learner) -> None:
    """Retry-After is lack * window_s / released, rounded up, within 1 and 60; 60 if nothing was released."""
    full = opened("a", "b", tokens=50)
    expect(learner, [*full, ("open", 1.0, "c", 10)])
    for at, need in (
        (1.0, 25),
        (1.0, 4),
        (1.0, 100),
        (10.5, 25),
        (10.9, 25),
        (11.0, 25),
        (12.0, 25),
        (21.5, 40),
    ):
        flow = [("put", 0.5, "a", 8), ("read", 0.9, "a"), ("put", 1.0, "b", 3), ("read", 1.0, "b")]
        expect(learner, [*full, *flow, ("open", at, "c", need)])
    other = [
        ("put", 1.0, "a", 5, "stop"),
        ("close", 2.0, "b"),
        ("open", 2.0, "c", 95),
        ("open", 3.0, "d", 90),
    ]
    expect(learner, [*full, *other])
    cut = [("put", 1.0, "a", 5), ("late", 40.0), ("open", 40.0, "c", 50), ("open", 41.0, "d", 30)]
    expect(learner, [*full, *cut])


@check(LAB)
def a_slow_reader_holds_up_no_one(learner: Learner) -> None:
    """`put` takes every token that was promised, however many are unread, and other streams are not affected."""
    steps: list[Op] = []
    for step in range(45):
        steps += [("put", 0.1 * step, name, 1) for name in ("slow", "fast")] + [("read", 0.1 * step, "fast")]
    expect(learner, [*opened("slow", "fast", tokens=50), *steps, ("late", 5.0), ("read", 5.0, "slow")])


@check(LAB)
def a_reader_that_is_too_slow_is_cut_off(learner: Learner) -> None:
    """Tokens that are unread for more than patience_s are dropped, and the promise; the next read says "slow"."""
    held = [*opened("a", "b"), ("put", 1.0, "a", 3), ("put", 5.0, "a", 2), ("put", 20.0, "b", 1)]
    after = [("put", 33.0, "a", 1), ("put", 33.0, "a", 0, "abort"), ("late", 34.0), ("open", 34.0, "c", 80)]
    expect(
        learner,
        [
            *held,
            ("late", 31.0),
            ("late", 31.5),
            ("open", 32.0, "a", 5),
            *after,
            ("read", 35.0, "a"),
            ("read", 35.0, "a"),
        ],
    )
    ended = [*opened("a"), ("put", 1.0, "a", 3, "stop"), ("late", 31.5), ("read", 40.0, "a")]
    expect(learner, [*ended, ("open", 41.0, "a", 5)])
    expect(learner, [*opened("b", "a", "c"), *[("put", 1.0, name, 1) for name in "acb"], ("late", 40.0)])


@check(LAB)
def only_what_is_unread_ages(learner: Learner) -> None:
    """A stream without unread tokens is never late, and a read starts the time again with the next put."""
    expect(
        learner,
        [*opened("a"), ("late", 100.0), ("put", 100.0, "a", 1), ("late", 101.0), ("read", 120.0, "a")],
    )
    again = [("put", 1.0, "a", 1), ("read", 29.0, "a"), ("late", 40.0), ("put", 40.0, "a", 1), ("late", 69.0)]
    expect(learner, [*opened("a"), *again, ("put", 69.5, "a", 1), ("late", 70.5)])
    expect(
        learner,
        [*opened("a"), ("put", 1.0, "a", 0), ("late", 50.0), ("put", 50.0, "a", 0, "stop"), ("late", 81.0)],
    )


@check(LAB)
def a_client_that_leaves(learner: Learner) -> None:
    """`close` drops the stream and its promise; True if the engine must abort. Later tokens are ignored."""
    left = [
        ("put", 1.0, "a", 3),
        ("close", 2.0, "a"),
        ("put", 2.1, "a", 1),
        ("close", 2.2, "a"),
        ("read", 2.3, "a"),
    ]
    expect(learner, [*opened("a", "b", tokens=50), *left, ("open", 3.0, "c", 50)])
    expect(
        learner, [*opened("a"), ("put", 1.0, "a", 3, "stop"), ("close", 2.0, "a"), ("open", 3.0, "a", 100)]
    )
    expect(
        learner,
        [*opened("a"), ("put", 1.0, "a", 3), ("late", 40.0), ("close", 41.0, "a"), ("read", 42.0, "a")],
    )


@check(LAB)
def wrong_calls_are_refused(learner: Learner) -> None:
    """An open id, no tokens, more tokens than asked for, tokens after the end, and wrong settings raise ValueError."""
    expect(learner, [*opened("a"), ("open", 0.0, "a", 5), ("open", 0.0, "b", 0), ("read", 0.0, "c")])
    expect(learner, [*opened("a", tokens=3), ("put", 1.0, "a", 2), ("put", 1.0, "a", 2), ("read", 2.0, "a")])
    expect(learner, [*opened("a"), ("put", 1.0, "a", 2, "stop"), ("put", 1.0, "a", 1), ("read", 2.0, "a")])
    for settings in ((0, 1.0, 1.0), (10, 0.0, 1.0), (10, 1.0, -1.0)):
        refused(f"Streams{settings}", learner.new, "Streams", *settings)


@check(LAB)
def promised_needs_no_sum(learner: Learner) -> None:
    """promised is O(1): its work is the same for 16 open streams and for 1,024."""

    def work_at(count: int) -> list[int]:
        streams = learner.new("Streams", 10 * count, 30.0, 10.0)
        opens = [("open", 0.0, f"s{at}", 10) for at in range(count)]
        return learner.costs(streams, [*opens, *[("promised",)] * 3], 3)

    constant(work_at, "promised: O(1)", "open streams", (16, 1_024))


@check(LAB)
def random_lives(learner: Learner) -> None:
    """40 random lives of streams: every answer and every promise is that of the rules."""
    rng = Random(6)

    def run(count: int) -> None:
        now, names = 0.0, "abc"
        ops: list[Op] = []
        for _ in range(count):
            now += rng.choice([0.0, 0.25, 0.5, 1.5])
            name = rng.choice(names)
            kinds: list[Op] = [("open", now, name, rng.choice([3, 6, 9, 20]))] * 3
            kinds += [("put", now, name, rng.randint(0, 2), "stop"), ("close", now, name)] * 2
            kinds += [("put", now, each, rng.randint(1, 2)) for each in names] + [("read", now, name)] * 2
            ops.append(rng.choice([*kinds, ("late", now)]))
        expect(learner, ops, (20, rng.choice([1.0, 3.0]), rng.choice([2.0, 4.0])))

    smallest([6 + number for number in range(40)], run)


# -- the engine's outputs


class Client(NamedTuple):
    """A client of the simulated server: it reads in every so many steps, from its opening on."""

    prompt: str
    arrival: int
    """Step in which it comes."""
    every: int = 1
    stops_after: int = 10**6
    """Number of reads after which it reads no more."""
    leaves_after: int = 10**6
    """Number of reads after which it hangs up."""


CLIENTS = (
    Client("Silver Harbor costs 620 yen. How much is Silver Harbor?", 0),
    Client("one two three four one two three four one", 0, every=5),
    Client("Do you ship to Tokyo?", 1, stops_after=2),
    Client("Is the third volume in stock?", 1, every=3),
    Client("What does shipping cost?", 2, every=2, leaves_after=3),
    Client("Tell me about the shop.", 3, every=4),
    Client("Hello", 4),
    Client("Which books are new?", 6, every=3),
)
MAX_TOKENS, STEP_S, ROOM = 24, 0.25, 100


def _params(**more: Any) -> Any:
    from engine.sampling_params import SamplingParams

    return SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, **more)


class Server:
    """The engine, a learner's buffers, and clients with a clock that advances by STEP_S in each step."""

    def __init__(self, llm: Any, streams: Any) -> None:
        self.engine, self.streams = llm.llm_engine, streams
        self.told: list[str] = []
        self.due = {place: float(client.arrival) * STEP_S for place, client in enumerate(CLIENTS)}
        """Time at which a client asks next."""
        self.since: dict[int, int] = {}
        """Step in which a client's stream was opened."""
        self.reads = dict.fromkeys(range(len(CLIENTS)), 0)
        self.got: dict[int, list[int]] = {}
        self.ends: dict[int, str] = {}

    def run(self) -> None:
        from engine.sampling_params import RequestOutputKind

        step, self.params = 0, _params(output_kind=RequestOutputKind.DELTA)
        while step < 400 and (self.due or self.since or self.engine.has_unfinished()):
            now = step * STEP_S
            for place in [place for place, when in self.due.items() if when <= now]:
                self.open(place, step, now)
            for output in self.engine.step() if self.engine.has_unfinished() else []:
                (completion,) = output.outputs
                self.streams.put(now, output.request_id, list(completion.token_ids), completion.finish_reason)
            for place in list(self.since):
                self.client(place, step, now)
            if late := self.streams.late(now):
                self.tell(now, f"{', '.join(late)} cut off")
                self.engine.abort(late)
            step += 1

    def tell(self, now: float, words: str) -> None:
        self.told.append(f"{now:.2f} s: {words}")

    def open(self, place: int, step: int, now: float) -> None:
        name = f"client {place}"
        status, headers = self.streams.open(now, name, MAX_TOKENS)
        self.tell(now, f"{name} {status} {dict(headers)}")
        del self.due[place]
        if status == 200:
            self.since[place], self.got[place] = step, []
            self.engine.add(self.engine.input_processor.process(name, CLIENTS[place].prompt, self.params))
        elif status == 429:
            self.due[place] = now + max(1, int(headers["Retry-After"]))

    def client(self, place: int, step: int, now: float) -> None:
        client, name = CLIENTS[place], f"client {place}"
        reads = self.reads[place]
        if (step - self.since[place]) % client.every:
            return
        if reads >= client.leaves_after:
            self.tell(now, f"{name} leaves, abort {self.streams.close(now, name)}")
            self.engine.abort([name])
            del self.since[place]
        elif reads < client.stops_after or now > (self.since[place] * STEP_S + 30):
            tokens, reason = self.streams.read(now, name)
            self.tell(now, f"{name} reads {tokens}, {reason}")
            self.reads[place] += 1
            self.got[place] += tokens
            if reason is not None:
                self.ends[place] = reason
                del self.since[place]


def served(llm: Any, streams: Any) -> Server:
    """Serve the clients to the end."""
    server, core = Server(llm, streams), llm.llm_engine.engine_core
    try:
        server.run()
    finally:
        llm.llm_engine.abort([f"client {place}" for place in range(len(CLIENTS))])
    server.tell(0, f"{core.scheduler.kv.pool.num_used} blocks in use at the end")
    return server


@check(LAB)
def the_engine_streams_through_it(learner: Learner) -> None:
    """Eight clients of the shop model: each that reads to the end gets the engine's tokens, and no block is left."""
    from engine.llm import LLM

    example = (
        f"eight clients, {MAX_TOKENS} tokens each, capacity {ROOM}, patience 4 s, a step each {STEP_S} s"
    )
    with LLM("shop", debug_checks=True) as llm:
        outputs = llm.generate([client.prompt for client in CLIENTS], _params(), use_tqdm=False)
        made = [list(each.outputs[0].token_ids) for each in outputs]
        ours = served(llm, Noted(ROOM, 4.0, 10.0))
        yours = served(llm, learner.new("Streams", ROOM, 4.0, 10.0))
    for place, (line, right) in enumerate(zip([*yours.told, *[""] * 400], ours.told, strict=False)):
        if line != right:
            raise Failed(f"line {place} is {line!r}; by the rules it is {right!r}", example=example)
    for place, reason in yours.ends.items():
        if reason != "slow" and yours.got[place] != made[place]:
            words = f"client {place} got {yours.got[place]}; the engine made {made[place]}"
            raise Failed(words, example=example)
