"""Checks of lesson 01: the greedy loop, a fair stopwatch, and where the time of a generation goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from random import Random
from typing import Any

from lessons.course.checking import Failed, Learner, check, refused, smallest

VOCABULARY = 12


class Script:
    """A model without weights: its logits follow from the ids alone. Notes every sequence it gets."""

    def __init__(self, seed: int, prompt_len: int = 0, tokens: list[int] | None = None) -> None:
        self.seed, self.prompt_len, self.tokens = seed, prompt_len, tokens
        self.seen: list[list[int]] = []

    def __call__(self, ids: list[int]) -> list[float]:
        self.seen.append(list(ids))
        if self.tokens is not None:
            wanted = self.tokens[(len(ids) - self.prompt_len) % len(self.tokens)]
            return [float(token == wanted) for token in range(VOCABULARY)]
        return self.logits(ids)

    def logits(self, ids: list[int]) -> list[float]:
        rng = Random(f"{self.seed}/{ids}")
        return [rng.uniform(-3, 3) for _ in range(VOCABULARY)]


def generate(learner: Learner, script: Script, prompt: list[int], max_tokens: int, eos: list[int]) -> Any:
    return learner.call("greedy_generate", learner.callback(script), list(prompt), max_tokens, eos)


def prompts(count: int) -> Iterator[tuple[int, list[int]]]:
    rng = Random(101)
    for seed in range(count):
        yield seed, [rng.randrange(VOCABULARY) for _ in range(1 + seed)]


@check("01.1")
def tokens_are_the_most_likely(learner: Learner) -> None:
    """On 20 prompts every token is the most likely one after all tokens before it."""

    def run(case: tuple[int, list[int]]) -> None:
        seed, prompt = case
        script = Script(seed)
        found = generate(learner, script, prompt, 8, [])
        wanted = list(prompt)
        for _ in range(8):
            logits = script.logits(wanted)
            wanted.append(logits.index(max(logits)))
        if found != wanted[len(prompt) :]:
            raise Failed(
                f"the new tokens are {found}; expected {wanted[len(prompt) :]}", example=f"prompt {prompt}"
            )

    smallest(prompts(20), run)


@check("01.1")
def stops_after_max_tokens(learner: Learner) -> None:
    """The result has max_tokens tokens if the model never ends; none for max_tokens = 0."""

    def run(max_tokens: int) -> None:
        found = generate(learner, Script(0, 2, [5]), [3, 4], max_tokens, [1])
        if found != [5] * max_tokens:
            raise Failed(f"max_tokens={max_tokens} gave {found}", example=f"max_tokens={max_tokens}")

    smallest([0, 1, 2, 7], run)


@check("01.1")
def stops_at_the_end_token(learner: Learner) -> None:
    """A token in eos_ids ends the generation and is the last of the result."""

    def run(eos_at: int) -> None:
        tokens = [5] * eos_at + [9, 6, 6, 6]
        found = generate(learner, Script(0, 2, tokens), [3, 4], 10, [1, 9])
        if found != tokens[: eos_at + 1]:
            raise Failed(f"the model says {tokens[: eos_at + 3]} and 9 is in eos_ids; the result is {found}")

    smallest([0, 1, 4], run)


@check("01.1")
def the_prompt_may_contain_the_end_token(learner: Learner) -> None:
    """An end-of-sequence token in the prompt ends nothing: chat templates end every turn with one."""
    found = generate(learner, Script(0, 3, [5, 5, 9]), [9, 3, 9], 10, [9])
    if found != [5, 5, 9]:
        raise Failed(f"the prompt [9, 3, 9] with eos_ids [9] gave {found}, not [5, 5, 9]")


@check("01.1")
def each_pass_sees_everything(learner: Learner) -> None:
    """There is one pass per new token, over the prompt and all tokens generated before."""
    script = Script(7)
    prompt = [2, 8, 5]
    found = generate(learner, script, prompt, 5, [])
    lengths = [len(ids) for ids in script.seen]
    if lengths != [3, 4, 5, 6, 7]:
        raise Failed(f"the passes had {lengths} tokens; expected [3, 4, 5, 6, 7]", example="3 + 5 tokens")
    if script.seen[-1] != prompt + list(found)[:4]:
        raise Failed("the last pass did not get the prompt and the four tokens before it")


@check("01.1")
def ties_go_to_the_smallest_id(learner: Learner) -> None:
    """The smallest id wins among equal logits."""
    tied = [0.0, 2.5, -1.0, 2.5, 2.5, 0.0]
    found = learner.call("greedy_generate", learner.callback(lambda ids: tied), [0], 2, [])
    if found != [1, 1]:
        raise Failed(f"ids 1, 3 and 4 share the largest logit; the tokens are {found}, not [1, 1]")


class Stage:
    """A clock and work that takes scripted times. Other things take time, too: outside, between two runs."""

    def __init__(self, seconds: list[float], outside: float = 0.0) -> None:
        self.now, self.seconds, self.outside = 100.0, seconds, outside
        self.runs = self.reads = 0

    def run(self) -> None:
        self.now += self.seconds[self.runs % len(self.seconds)]
        self.runs += 1

    def clock(self) -> float:
        now = self.now
        self.reads += 1
        if self.reads % 2 == 0:
            self.now += self.outside
        return now


def measured(learner: Learner, stage: Stage, warmup: int, repeats: int) -> Any:
    found = learner.call(
        "measure", learner.callback(stage.run), learner.callback(stage.clock), warmup, repeats
    )
    if not isinstance(found, dict) or set(found) != {"median", "low", "high"}:
        raise Failed(f"the result is {found!r}; expected a dict with median, low and high")
    return found


def expect(found: Any, wanted: float, what: str) -> None:
    if not isinstance(found, int | float) or not math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9):
        raise Failed(f"{what} is {found!r}; expected {wanted:.6g}")


@check("01.2")
def warm_up_runs_do_not_count(learner: Learner) -> None:
    """The first `warmup` runs happen and leave no trace in the result."""
    stage = Stage([50.0, 20.0] + [1.0] * 5)
    found = measured(learner, stage, 2, 5)
    if stage.runs != 7:
        raise Failed(f"run() was called {stage.runs} times; warmup=2 and repeats=5 make 7")
    expect(found["high"], 1.0, "after warm-up runs of 50 s and 20 s and five of 1 s, high")


@check("01.2")
def one_slow_run_changes_little(learner: Learner) -> None:
    """The middle is the median: one run that another process disturbed does not move it."""
    expect(
        measured(learner, Stage([2.0, 3.0, 90.0, 1.0, 3.0]), 0, 5)["median"],
        3.0,
        "of 2, 3, 90, 1 and 3 s the median",
    )


@check("01.2")
def quartiles_interpolate(learner: Learner) -> None:
    """Low and high are the 25 % and 75 % points, interpolated between the nearest times as in numpy."""

    def run(times: list[float]) -> None:
        found = measured(learner, Stage(times), 0, len(times))
        ordered = sorted(times)
        for name, share in (("low", Fraction(1, 4)), ("median", Fraction(1, 2)), ("high", Fraction(3, 4))):
            place = share * (len(ordered) - 1)
            below = int(place)
            above = min(below + 1, len(ordered) - 1)
            wanted = ordered[below] + float(place - below) * (ordered[above] - ordered[below])
            expect(found[name], wanted, f"of the times {times} s, {name}")

    rng = Random(102)
    smallest(([float(rng.randrange(1, 40)) for _ in range(count)] for count in (2, 3, 4, 5, 8, 13)), run)


@check("01.2")
def only_the_work_is_timed(learner: Learner) -> None:
    """The clock is read right before and right after each run: time between the runs is not theirs."""
    found = measured(learner, Stage([2.0], outside=30.0), 1, 4)
    expect(found["high"], 2.0, "runs take 2 s, 30 s pass between them: high")


@check("01.2")
def each_run_has_its_own_time(learner: Learner) -> None:
    """Every repeat is timed alone: a total divided by their number shows no spread."""
    found = measured(learner, Stage([1.0, 9.0]), 0, 8)
    expect(found["low"], 1.0, "half of the runs take 1 s and half 9 s: low")
    expect(found["high"], 9.0, "half of the runs take 1 s and half 9 s: high")


@check("01.2")
def a_single_repeat_is_refused(learner: Learner) -> None:
    """repeats < 2 raises ValueError before anything runs: a single time has no spread."""
    stage = Stage([1.0])
    measure: Callable[..., Any] = learner.function("measure")
    refused("repeats=1", measure, learner.callback(stage.run), learner.callback(stage.clock), 1, 1)
    if stage.runs:
        raise Failed(f"measure(..., repeats=1) ran the work {stage.runs} times before it raised")


def split(learner: Learner, prompt_len: int, seconds: list[float]) -> Any:
    found = learner.call("split_time", prompt_len, seconds)
    if not isinstance(found, dict) or set(found) != {"ttft", "tpot", "again"}:
        raise Failed(f"the result is {found!r}; expected a dict with ttft, tpot and again")
    return found


@check("01.3")
def first_token_is_the_first_pass(learner: Learner) -> None:
    """ttft is the time of the first pass, whatever follows."""
    expect(split(learner, 10, [7.0, 1.0, 2.0])["ttft"], 7.0, "passes of 7, 1 and 2 s: ttft")


@check("01.3")
def later_tokens_exclude_the_first(learner: Learner) -> None:
    """tpot is the mean of the later passes: n tokens have n - 1 gaps."""
    expect(split(learner, 10, [7.0, 1.0, 2.0, 6.0])["tpot"], 3.0, "passes of 7, 1, 2 and 6 s: tpot")


@check("01.3")
def one_token_has_no_gap(learner: Learner) -> None:
    """A single token has no time per later token (None), and nothing was computed again."""
    found = split(learner, 10, [7.0])
    if found["tpot"] is not None:
        raise Failed(f"one token has no later ones; tpot is {found['tpot']!r}, not None", example="[7.0]")
    expect(found["again"], 0.0, "with one pass, again")


@check("01.3")
def the_newest_token_is_not_repeated(learner: Learner) -> None:
    """In a later pass every token but the newest has been computed before."""
    expect(split(learner, 1, [4.0, 8.0])["again"], 4.0, "prompt of 1 token, passes of 4 and 8 s: again")
    expect(split(learner, 3, [4.0, 8.0])["again"], 6.0, "prompt of 3 tokens, passes of 4 and 8 s: again")


@check("01.3")
def repeated_time_adds_up(learner: Learner) -> None:
    """again equals the sum over tokens of their share in every pass after their first."""

    def run(case: tuple[int, list[float]]) -> None:
        prompt_len, seconds = case
        wanted = Fraction(0)
        computed: set[int] = set()
        for index, time in enumerate(seconds):
            positions = range(prompt_len + index)
            wanted += sum(
                (Fraction(time) / len(positions) for at in positions if at in computed), Fraction(0)
            )
            computed.update(positions)
        expect(split(learner, prompt_len, seconds)["again"], float(wanted), f"prompt_len={prompt_len}: again")

    rng = Random(103)
    smallest(
        ((1 + 5 * count, [rng.uniform(0.5, 3) for _ in range(count)]) for count in (1, 2, 3, 6, 12)), run
    )
