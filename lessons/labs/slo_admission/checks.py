"""Checks of the lab slo-admission: single rules, random traffic, the engine's scheduler in virtual time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from engine.core.sched_output import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from engine.sim.cost import StepLoad
from engine.sim.engine import SimEngine
from engine.sim.recorder import RequestRecord
from engine.sim.run import make_engine
from engine.sim.workload import SimRequest
from lessons.course.checking import Failed, Learner, check, refused, run_fewest, same, smallest
from lessons.labs.recording import recorded_engine
from lessons.labs.serving import h100

LAB = "slo-admission"
Op = tuple[Any, ...]
"""("arrive", id, tokens, limit), ("step", seconds, prompt tokens, first, done) or ("leave", id)."""


@dataclass
class Known:
    """An admitted request of the second opinion."""

    name: str
    tokens: int
    is_waiting: bool = True


class Log:
    """A second opinion that keeps every step, and weighs all of them at each forecast."""

    def __init__(self, seats: int, window: float = 2.0) -> None:
        self.seats, self.window = seats, window
        self.steps: list[tuple[float, int, int]] = []
        """(seconds, prompt tokens, ends)."""
        self.known: list[Known] = []

    def step(self, seconds: float, prompt_tokens: int, first: Sequence[str], done: Sequence[str]) -> None:
        self.steps.append((seconds, prompt_tokens, len(done)))
        for each in self.known:
            each.is_waiting &= each.name not in first
        self.known = [each for each in self.known if each.name not in done]

    def leave(self, request_id: str) -> None:
        self.known = [each for each in self.known if each.name != request_id]

    def time(self, amount: float, counted: Sequence[tuple[float, int]]) -> float:
        """Return the time of an amount at the rate of these steps, (seconds, events)."""
        age = events = seconds = 0.0
        for took, number in reversed(counted):
            weight = math.exp(-age / self.window)
            if weight < 1e-15:
                break
            events, seconds, age = events + weight * number, seconds + weight * took, age + took
        return amount / (events / seconds) if events else 0.0

    def forecast(self, tokens: int) -> float:
        prompts = [(seconds, number) for seconds, number, _ in self.steps if number]
        before = sum(each.tokens for each in self.known if each.is_waiting)
        waits = [self.time(before + tokens, prompts)]
        if (excess := len(self.known) + 1 - self.seats) > 0:
            ends = [(seconds, number) for seconds, _, number in self.steps]
            waits.append(self.time(excess, ends) + self.time(tokens, prompts))
        return max(waits)

    def arrive(self, request_id: str, tokens: int, limit: float) -> bool:
        if self.known and self.forecast(tokens) > limit:
            return False
        self.known.append(Known(request_id, tokens))
        return True


def compare(learner: Learner, ops: Sequence[Op], seats: int = 4, window: float = 2.0) -> None:
    """Make the calls, ask for two forecasts after each; raise Failed at the first difference."""
    yours, right = learner.new("SloAdmission", seats, window), Log(seats, window)
    said = [f"seats {seats}, window {window:g}"]
    for name, *args in ops:
        said.append(f"{name}({', '.join(repr(each) for each in args)})")
        limit_is_near = name == "arrive" and abs(right.forecast(args[1]) - args[2]) < 1e-9
        gave, wants = getattr(yours, name)(*args), getattr(right, name)(*args)
        if name == "arrive" and (not isinstance(gave, bool) or gave != wants):
            near = ", which is the limit" if limit_is_near else ""
            raise Failed(
                f"{said[-1]} returned {gave!r}; by the rules it is {wants}{near}", example=shown(said)
            )
        for tokens in (1, 500):
            same(
                f"forecast({tokens}) gave", yours.forecast(tokens), right.forecast(tokens), said, within=1e-6
            )


def shown(said: Sequence[str]) -> str:
    return "; ".join([said[0], *said[1:][-9:]])


def step(seconds: float, prompt_tokens: int = 0, first: str = "", done: str = "") -> Op:
    """Return a step; the letters of `first` and `done` are ids."""
    return ("step", seconds, prompt_tokens, list(first), list(done))


def arrive(names: str, tokens: int = 1000, limit: float = 60.0) -> list[Op]:
    return [("arrive", name, tokens, limit) for name in names]


@check(LAB)
def an_idle_server_admits(learner: Learner) -> None:
    """A request that finds no other is admitted, whatever its limit and the rates."""
    slow = [*arrive("a"), step(1.0, 1000, "a"), step(0.1, 0, done="a")]
    compare(learner, [*slow, *arrive("b", 1000, 0.01), *arrive("c", 1000, 0.01)])


@check(LAB)
def a_rate_is_a_sum_over_a_sum(learner: Learner) -> None:
    """The prompt rate is the sum of tokens over the sum of seconds; short steps count less."""
    compare(learner, [*arrive("a"), step(0.01, 10), step(0.04, 1000), step(0.02, 300)], window=50.0)


@check(LAB)
def only_steps_with_prompts_tell_their_rate(learner: Learner) -> None:
    """A step without prompt tokens leaves the prompt rate as it is."""
    compare(learner, [*arrive("a"), step(0.02, 400), step(0.01), step(0.5), step(0.04, 400)])


@check(LAB)
def old_steps_fade(learner: Learner) -> None:
    """A step counts exp(-s / window) after s seconds of later steps that count."""
    compare(learner, [*arrive("a"), step(0.5, 4000), step(0.5, 1000), step(1.0, 1000)], window=0.5)
    compare(
        learner,
        [*arrive("abc"), step(0.25, 0, "abc", "c"), step(1.0), step(0.5, done="b")],
        seats=1,
        window=1.0,
    )


@check(LAB)
def prompts_count_until_the_first_token(learner: Learner) -> None:
    """The whole prompts of admitted requests count until their first token, and the newcomer's own prompt too."""
    came = [*arrive("a", 700), *arrive("b", 300), *arrive("c", 50)]
    compare(learner, [*came, step(0.1, 500, "a"), step(0.1, 500, "b"), step(0.1, 20, "a")])


@check(LAB)
def a_full_engine_makes_it_wait(learner: Learner) -> None:
    """Without a free seat, the requests too many wait for as many ends."""
    ends = [step(0.5, 4000, "abcde", "a"), step(0.5, 0, done="b")]
    compare(learner, [*arrive("abcdefg"), *ends, *arrive("hi")], seats=3)
    compare(learner, [*arrive("abcd"), step(0.1, 40, "abcd", "d"), *arrive("e", 10)], seats=4)


@check(LAB)
def the_longer_wait_counts(learner: Learner) -> None:
    """The forecast is the larger of (a) and (b); in (b) its own prompt follows the wait for a seat."""
    compare(learner, [*arrive("abc"), step(0.5, 500, "ab", "a")], seats=1)
    compare(learner, [*arrive("abc"), step(0.5, 50_000, "ab", "a")], seats=1)
    compare(learner, [*arrive("abcdef"), step(0.5, 500, "a", "a")], seats=4)


@check(LAB)
def unknown_rates_count_as_nothing(learner: Learner) -> None:
    """Before the first prompt token, or the first end, that part of the forecast is 0."""
    compare(learner, [*arrive("ab", limit=0.5), step(0.02, 400), *arrive("cde"), step(0.01)], seats=2)


@check(LAB)
def the_limit_decides(learner: Learner) -> None:
    """A forecast of exactly the limit is in time; a refused request does not count in the queue."""
    known = [*arrive("a", 1000), step(0.5, 1024, "a")]
    compare(learner, [*known, *arrive("b", 512, 0.25), *arrive("c", 512, 0.49), *arrive("d", 512, 0.5)])


@check(LAB)
def ended_requests_are_forgotten(learner: Learner) -> None:
    """Requests that end or leave free their seat and their place; ids may return, unknown ids are no error."""
    came = [*arrive("abc"), step(0.1, 500, "a", "a")]
    compare(
        learner,
        [*came, ("leave", "b"), ("leave", "b"), ("leave", "x"), *arrive("ab"), step(0.1, 500, "a")],
        seats=2,
    )
    compare(learner, [*arrive("abc"), step(0.1, 50_000, "a", "a"), ("leave", "b"), *arrive("d")], seats=1)
    compare(learner, [*came, step(0.1, 50, "xb", "yx"), ("leave", "b"), *arrive("b")], seats=2)
    compare(learner, [*came, step(0.1, 50, "", "c"), *arrive("c")], seats=2)


@check(LAB)
def wrong_calls_are_refused(learner: Learner) -> None:
    """A prompt without tokens, an id that has not ended, no seats and a window of 0 raise ValueError."""
    for settings in ((0, 2.0), (4, 0.0), (4, -1.0)):
        refused(f"SloAdmission{settings}", learner.new, "SloAdmission", *settings)
    admission = learner.new("SloAdmission", 2)
    admission.arrive("a", 10, 1.0)
    refused("arrive('b', 0, 1.0)", admission.arrive, "b", 0, 1.0)
    refused("arrive('a', 10, 1.0) while a has not ended", admission.arrive, "a", 10, 1.0)
    admission.step(0.5, 64, [], [])
    said = ["arrive('a', 10, 1.0)", "two calls that are refused"]
    same("forecast(6) gave", admission.forecast(6), 0.125, said, within=1e-6)


@check(LAB)
def random_traffic(learner: Learner) -> None:
    """60 random series of arrivals, steps and departures: every decision and forecast is that of the rules."""
    rng = Random(6)

    def run(count: int) -> None:
        seats, window = rng.randint(1, 4), rng.choice([0.05, 0.5, 4.0])
        ops, present = list[Op](), list[str]()
        for at in range(count):
            kind = rng.random()
            if kind < 0.5:
                present.append(f"r{at}")
                ops.append(("arrive", present[-1], rng.choice([10, 300, 4000]), rng.choice([0.1, 1.0, 9.0])))
            elif kind < 0.93:
                first = rng.sample(present, min(len(present), rng.randint(0, 2)))
                done = [name for name in first if rng.random() < 0.5]
                seconds = rng.choice([0.01, 0.03, 0.2])
                ops.append(("step", seconds, rng.choice([0, 40, 1000]), first, done))
                present = [name for name in present if name not in done]
            elif present:
                ops.append(("leave", present.pop(rng.randrange(len(present)))))
        run_fewest(ops, lambda some: compare(learner, some, seats, window))

    smallest([2 + number // 3 for number in range(60)], run)


# -- the engine's scheduler


SEATS = 32


class Service:
    """A simulated engine with an admission before its scheduler."""

    def __init__(self, engine: SimEngine, admission: Any) -> None:
        self.engine, self.admission, self.seconds = engine, admission, 0.0
        self.decisions: list[tuple[int, bool]] = []
        """(index of the request, admitted)."""
        self.apply = engine.scheduler.update
        engine.scheduler.update = self.update  # type: ignore[method-assign]
        engine.on_step, engine.fast_forward = self.note, False

    def note(self, plan: SchedulerOutput, load: StepLoad, seconds: float) -> None:
        self.seconds = seconds

    def update(self, out: SchedulerOutput, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        """Apply a step's result, then tell the admission."""
        scheduler = self.engine.scheduler
        first = [
            each.request_id
            for each in scheduler.running
            if len(each.token_ids) == len(each.prompt_token_ids)
            and each.request_id in result.sampled_token_ids
        ]
        outputs = self.apply(out, result)
        done = [output.request_id for output in outputs if output.finish_reason is not None]
        self.admission.step(self.seconds, scheduler.stats.num_prefill_tokens, first, done)
        return outputs

    def serve(
        self, requests: Sequence[SimRequest], limits: Sequence[float], path: Path | None = None
    ) -> list[RequestRecord]:
        """Serve what is admitted; return the records of the finished requests. path: where to record a trace."""
        with recorded_engine(path, self.engine):
            self._serve(requests, limits)
        return self.engine.recorder.finished

    def _serve(self, requests: Sequence[SimRequest], limits: Sequence[float]) -> None:
        for request in requests:
            self.engine.run_until(request.arrival)
            admitted = self.admission.arrive(str(request.index), request.prompt_len, limits[request.index])
            if not isinstance(admitted, bool):
                raise Failed(f"arrive returned {admitted!r}; it must be True or False")
            self.decisions.append((request.index, admitted))
            if admitted:
                self.engine.add(request, request.arrival)
        self.engine.run_until(math.inf)


def service(admission: Any) -> Service:
    return Service(make_engine(h100(32), enable_prefix_caching=False), admission)


def in_time(records: Sequence[RequestRecord], limits: Sequence[float]) -> int:
    return sum(each.ttft <= limits[each.request.index] for each in records)


@check(LAB)
def the_engine_answers_in_time(learner: Learner) -> None:
    """Before the engine's scheduler, twice the load it can serve: the decisions are those of the rules."""
    rng, now, requests, limits = Random(15), 0.0, [], []
    for index in range(160):
        now += rng.expovariate(50)
        requests.append(SimRequest(index, now, rng.randint(200, 900), rng.randint(40, 120)))
        limits.append(rng.choice([0.25, 0.5, 1.0]))
    ours, yours = service(Log(SEATS)), service(learner.new("SloAdmission", SEATS))
    ours.serve(requests, limits)
    yours.serve(requests, limits)
    for (index, mine), (_, theirs) in zip(ours.decisions, yours.decisions, strict=True):
        if mine != theirs:
            word = "admitted" if theirs else "refused"
            raise Failed(
                f"request {index} (arrival {requests[index].arrival:.2f} s, {requests[index].prompt_len} tokens, limit "
                f"{limits[index]:g} s) was {word}; by the rules it is {'admitted' if mine else 'refused'}",
                example=f"160 requests at 50 per second on {SEATS} seats",
            )
