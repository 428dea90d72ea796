"""Checks of the lab graceful-drain: single rules, random lives, a simulated replica behind the server's admission."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

from engine.sim.memory import make_deployment
from engine.sim.recorder import RequestRecord
from engine.sim.run import make_engine
from engine.sim.workload import SimRequest, make_request
from lessons.course.checking import Failed, Learner, check, refused, run_fewest, same, smallest

LAB = "graceful-drain"
SETTINGS = (30.0, 2.0, 5)
"""limit_s, abort_s, retry_after_s."""
Op = tuple[Any, ...]
"""Name of a method, now, and its other arguments."""


class History:
    """A second opinion: it keeps every call and works out each answer from all of them."""

    def __init__(self, limit_s: float, abort_s: float, retry_after_s: int) -> None:
        self.limit_s, self.abort_s, self.retry_after_s = limit_s, abort_s, retry_after_s
        self.signals: list[float] = []
        """Beginnings of the drain, of the aborts and of the stop, as far as signals or the deadline have set them."""
        self.lives: list[tuple[str, float]] = []
        """Requests and when they ended; inf: not yet."""
        self.named: set[int] = set()
        """Places in `lives` of requests that tick has named."""

    @property
    def in_flight(self) -> list[int]:
        return [place for place, (_, ended) in enumerate(self.lives) if ended == math.inf]

    def state(self, now: float) -> str:
        if not self.signals:
            return "serving"
        if not self.in_flight:
            return "stopped"
        deadline = min([self.signals[0] + self.limit_s, *self.signals[1:2]])
        if now >= min([deadline + self.abort_s, *self.signals[2:3]]):
            return "stopped"
        return "draining" if now < deadline else "aborting"

    def signal(self, now: float) -> None:
        if (state := self.state(now)) == "stopped":
            return
        if state == "aborting" and len(self.signals) == 1:  # the deadline has come without a second signal
            self.signals.append(self.signals[0] + self.limit_s)
        self.signals.append(now)

    def begin(self, now: float, request_id: str) -> tuple[int, dict[str, str]]:
        if self.signals:
            return 503, {"Retry-After": f"{self.retry_after_s}", "Connection": "close"}
        self.lives.append((request_id, math.inf))
        return 200, {}

    def end(self, now: float, request_id: str) -> None:
        if self.state(now) == "stopped":
            return
        for place in self.in_flight:
            if self.lives[place][0] == request_id:
                self.lives[place] = (request_id, now)

    def tick(self, now: float) -> list[str]:
        if self.state(now) != "aborting":
            return []
        places = [place for place in self.in_flight if place not in self.named]
        self.named.update(places)
        return [self.lives[place][0] for place in places]

    def health(self, now: float, probe: str) -> int:
        good = {"ready": ["serving"], "live": ["serving", "draining", "aborting"]}
        return 200 if self.state(now) in good[probe] else 503

    def exit_code(self, now: float) -> int | None:
        return int(bool(self.named or self.in_flight)) if self.state(now) == "stopped" else None


def compare(learner: Learner, ops: Sequence[Op], settings: tuple[float, float, int] = SETTINGS) -> None:
    """Give the calls to the learner's class and to the history; raise Failed at the first answer that differs."""
    yours, right, said = learner.new("Drain", *settings), History(*settings), [f"Drain{settings}"]
    for name, now, *args in ops:
        said.append(f"{name}({', '.join(map(repr, (now, *args)))})")
        answer, expected = getattr(yours, name)(now, *args), getattr(right, name)(now, *args)
        if isinstance(answer, list) and isinstance(expected, tuple):
            answer = tuple(answer)
        if expected is not None or name == "exit_code":
            same(f"{said[-1]} gave", answer, expected, said)
        same("the state is", yours.state(now), right.state(now), said)


def begins(*names: str) -> list[Op]:
    return [("begin", 0.0, name) for name in names]


def looks(now: float) -> list[Op]:
    """Return calls of all methods that only look."""
    return [("health", now, "ready"), ("health", now, "live"), ("exit_code", now), ("tick", now)]


TERM: Op = ("signal", 10.0)


@check(LAB)
def a_serving_replica_admits(learner: Learner) -> None:
    """Without a signal requests come and go, the replica is ready and live, and it does not exit when it is empty."""
    compare(learner, [*looks(0.0), *begins("a", "b"), ("end", 1.0, "a"), *looks(2.0), ("begin", 3.0, "a")])
    compare(learner, [("begin", 0.0, "a"), ("end", 1.0, "a"), *looks(1e6), ("begin", 1e6, "b")])


@check(LAB)
def a_signal_refuses_new_requests(learner: Learner) -> None:
    """After the first signal new requests get 503 with Retry-After and Connection: close, and are not in flight."""
    compare(learner, [*begins("a"), TERM, ("begin", 10.0, "b"), ("begin", 25.0, "c"), ("tick", 40.0)])
    compare(learner, [*begins("a"), TERM, ("begin", 41.0, "b"), ("begin", 90.0, "c")], (30.0, 2.0, 17))


@check(LAB)
def ready_and_live_differ(learner: Learner) -> None:
    """A draining replica is not ready, so that no traffic is sent to it, but live, so that it is not killed."""
    compare(learner, [*begins("a"), TERM, *looks(10.0), *looks(39.0), *looks(40.0), *looks(42.0)])


@check(LAB)
def requests_run_until_the_deadline(learner: Learner) -> None:
    """Requests in flight go on until the deadline, limit_s after the first signal, however late tick is called."""
    compare(learner, [*begins("a", "b"), TERM, *looks(20.0), ("end", 39.9, "a"), *looks(39.99), *looks(40.0)])
    compare(learner, [*begins("a"), TERM, *looks(10.0), *looks(11.0)], (0.0, 2.0, 5))
    compare(learner, [*begins("a"), TERM, ("tick", 41.5), ("state", 41.5)])


@check(LAB)
def each_is_aborted_once(learner: Learner) -> None:
    """From the deadline on, tick names each request in flight once, in order of beginning; they stay until end."""
    names = [f"r{number}" for number in (3, 1, 2, 9, 4)]
    compare(
        learner, [*begins(*names), TERM, ("end", 30.0, "r2"), ("tick", 40.0), ("tick", 40.1), ("tick", 41.0)]
    )
    compare(
        learner, [*begins("a", "b"), TERM, ("tick", 40.0), ("end", 40.5, "a"), *looks(40.5), ("tick", 41.0)]
    )


@check(LAB)
def it_stops_when_empty(learner: Learner) -> None:
    """A draining or aborting replica without requests is stopped at once, not at the deadline."""
    compare(learner, [TERM, *looks(10.0)])
    compare(
        learner, [*begins("a", "b"), TERM, ("end", 12.0, "b"), *looks(12.0), ("end", 13.0, "a"), *looks(13.0)]
    )
    compare(learner, [*begins("a"), TERM, ("tick", 40.0), ("end", 40.5, "a"), *looks(40.5)])
    compare(learner, [*begins("a"), TERM, ("end", 11.0, "b"), ("end", 11.0, ""), *looks(12.0)])


@check(LAB)
def signals_move_on(learner: Learner) -> None:
    """A signal while draining aborts at once, and one while aborting stops at once, whichever number it has."""
    compare(learner, [*begins("a", "b"), TERM, ("signal", 15.0), *looks(15.0), *looks(16.9), *looks(17.0)])
    compare(learner, [*begins("a", "b"), TERM, ("signal", 10.0), ("signal", 10.0), *looks(10.0)])
    compare(learner, [*begins("a", "b"), TERM, ("signal", 41.0), *looks(41.0)])
    compare(
        learner, [*begins("a"), TERM, ("end", 11.0, "a"), ("signal", 12.0), ("signal", 12.0), *looks(12.0)]
    )


@check(LAB)
def an_abort_has_a_limit(learner: Learner) -> None:
    """A request that does not end after its abort is cut off abort_s after the deadline, named or not."""
    compare(
        learner,
        [*begins("a"), TERM, ("tick", 40.0), *looks(41.9), *looks(42.0), ("end", 43.0, "a"), *looks(43.0)],
    )
    compare(learner, [*begins("a"), TERM, *looks(60.0)])
    compare(learner, [*begins("a"), TERM, *looks(40.0)], (30.0, 0.0, 5))


@check(LAB)
def the_exit_code_tells(learner: Learner) -> None:
    """The exit code is 0 if every request ended by itself, and 1 if one was named or cut off."""
    compare(learner, [*begins("a"), TERM, ("exit_code", 11.0), ("end", 12.0, "a"), ("exit_code", 12.0)])
    compare(learner, [*begins("a"), TERM, ("tick", 40.0), ("end", 40.1, "a"), ("exit_code", 40.1)])
    compare(learner, [*begins("a"), TERM, ("exit_code", 50.0), ("end", 51.0, "a"), ("exit_code", 52.0)])
    compare(learner, [*begins("a"), TERM, ("end", 41.0, "a"), ("exit_code", 41.0)])


@check(LAB)
def wrong_calls_are_refused(learner: Learner) -> None:
    """An id that is in flight, an unknown probe and settings out of range raise ValueError and change nothing."""
    for settings in ((-1.0, 2.0, 5), (30.0, -0.5, 5), (30.0, 2.0, 0)):
        refused(f"Drain{settings}", learner.new, "Drain", *settings)
    drain = learner.new("Drain", *SETTINGS)
    drain.begin(0.0, "a")
    for name, *args in (("begin", 0.0, "a"), ("health", 0.0, "startup")):
        refused(f"begin(0.0, 'a'); {name}{tuple(args)}", getattr(drain, name), *args)
    drain.end(1.0, "a")
    drain.signal(2.0)
    same(
        "the state is",
        drain.state(2.0),
        "stopped",
        ["begin a", "begin a again: ValueError", "end a", "signal"],
    )
    compare(learner, [*begins("a"), TERM, ("begin", 11.0, "a")])


@check(LAB)
def random_lives(learner: Learner) -> None:
    """120 random lives of replicas: every answer is that of the rules."""
    rng = Random(9)

    def run(count: int) -> None:
        now, names = 0.0, [f"r{number}" for number in range(5)]
        ops: list[Op] = []
        settings = (rng.choice([0.0, 2.0, 5.0]), rng.choice([0.0, 1.0, 3.0]), 5)
        seen: set[str] = set()
        for _ in range(count):
            now += rng.choice([0.0, 0.25, 0.5, 1.0])
            name = rng.choice(names)
            kinds: list[Op] = [("end", now, name), ("tick", now), ("exit_code", now), ("health", now, "live")]
            kinds += [("begin", now, f"{name}-{len(ops)}")] * 2 + [("signal", now)] * (rng.random() < 0.5)
            kinds += [("end", now, each) for each in sorted(seen)[:2]]
            ops.append(rng.choice(kinds))
            if ops[-1][0] == "begin":
                seen.add(ops[-1][2])
        run_fewest(ops, lambda some: compare(learner, some, settings))

    smallest([2 + number // 5 for number in range(120)], run)


# -- a simulated replica


def lived(drain: Any, requests: Sequence[SimRequest], signals: Sequence[float]) -> list[str]:
    """Serve requests on a simulated replica that gets signals, until it exits; return what happened."""
    from engine.server.admission import Admission
    from engine.server.errors import ApiError

    now = 0.0

    class ByDrain(Admission):
        """The server's admission, which asks the drain whether the replica is draining."""

        @property
        def is_draining(self) -> bool:  # type: ignore[override]
            return bool(drain.health(now, "ready") != 200)

        @is_draining.setter
        def is_draining(self, value: bool) -> None:
            pass

    admission = ByDrain(8, None)
    engine = make_engine(
        make_deployment(model="llama-3-8b", gpu="h100", max_num_seqs=8), enable_prefix_caching=False
    )
    said: list[str] = []
    records: dict[str, RequestRecord] = {}
    arrivals, left = list(requests), list(signals)
    while drain.exit_code(now) is None and now < 300:
        for record in engine.run_until(now):
            name = str(record.request.index)
            drain.end(now, name)
            said.append(f"request {name} ended with {record.num_tokens} tokens by {now:.1f} s")
            del records[name]
        while left and left[0] <= now:
            drain.signal(now)
            said.append(f"signal at {left.pop(0):.1f} s: {drain.state(now)}")
        while arrivals and arrivals[0].arrival <= now:
            request = arrivals.pop(0)
            status, _ = drain.begin(now, str(request.index))
            try:
                admission.check(1)
                said.append(f"request {request.index}: {status}")
                records[str(request.index)] = added = RequestRecord(request, arrival=now)
                engine.submit(make_request(request), added, now)
            except ApiError as error:
                said.append(f"request {request.index}: {status}, and from the admission {error.status}")
        for name in drain.tick(now):
            engine.abort(records.pop(name))
            drain.end(now, name)
            said.append(f"request {name} aborted at {now:.1f} s")
        now = round(now + 0.1, 1)
    said.append(f"exit {drain.exit_code(now)} at {now:.1f} s, {engine.num_unfinished} requests unfinished")
    return said


@check(LAB)
def a_simulated_replica_drains(learner: Learner) -> None:
    """Behind the server's admission, a simulated replica ends as the rules say, with an empty scheduler."""
    rng = Random(2)
    requests = [
        SimRequest(number, 0.15 * number, rng.randint(100, 900), rng.choice([40, 150, 400, 3000]))
        for number in range(40)
    ]
    for limit_s, signals in ((4.0, [3.0]), (60.0, [3.0]), (60.0, [3.0, 4.0]), (0.0, [2.0])):
        settings = (limit_s, 2.0, 5)
        yours = lived(learner.new("Drain", *settings), requests, signals)
        ours = lived(History(*settings), requests, signals)
        for line, right in zip([*yours, *[""] * len(ours)], ours, strict=False):
            if line != right:
                raise Failed(
                    f"what happened is {line or 'nothing more'!r}; by the rules it is {right!r}",
                    example=f"a replica with limit_s {limit_s:g} s and signals at {signals} s",
                )
