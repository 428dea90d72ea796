"""Checks of the lab chunked-prefill: single rules, random steps, the engine's scheduler in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from engine.config import SchedulerConfig
from engine.core.sched_output import SchedulerOutput
from engine.sim.cost import StepLoad
from engine.sim.engine import SimEngine
from engine.sim.memory import Deployment, make_deployment
from engine.sim.report import percentiles
from engine.sim.run import make_engine
from engine.sim.workload import SimRequest
from lessons.course.checking import Failed, Learner, check, refused, run_fewest, smallest
from lessons.labs.recording import recorded_engine

LAB = "chunked-prefill"
TARGET = 0.03
SETTINGS: dict[str, Any] = {"target": TARGET, "least": 64, "most": 4096, "aim": 0.9, "release": 0.125}
Step = tuple[int, int, float]
"""(decodes, prompt tokens, milliseconds) of a step that has ended."""


class History:
    """A second opinion: it keeps all steps, and looks for the ones that set base, last and cost."""

    def __init__(self, **settings: Any) -> None:
        self.s = SETTINGS | settings
        self.steps: list[tuple[int, float, float]] = []
        """(prompt tokens, seconds, base after it)."""
        self.lessons: list[float] = []
        """Cost by each step that teaches."""

    def observe(self, decodes: int, prompt_tokens: int, seconds: float) -> None:
        before = self.steps[-1][2] if self.steps else 0.0
        base = seconds if prompt_tokens == 0 or seconds < before else before
        self.steps.append((prompt_tokens, seconds, base))
        if prompt_tokens >= self.s["least"]:
            self.lessons.append((seconds - base) / prompt_tokens)

    def budget(self, decodes: int) -> int:
        least, most = self.s["least"], self.s["most"]
        if decodes == 0:
            return int(most)
        chunk = least
        if self.lessons:
            room = self.s["aim"] * self.s["target"] - self.steps[-1][2]
            last = next(tokens for tokens, _, _ in reversed(self.steps) if tokens)
            cost = self.cost()
            chunk = min(2 * last, most if cost == 0 else int(max(0.0, room) / cost))
        return int(min(most, decodes + max(least, chunk)))

    def cost(self) -> float:
        cost = self.lessons[0]
        for new in self.lessons[1:]:
            cost = max(new, (1 - self.s["release"]) * cost + self.s["release"] * new)
        return cost


def same(yours: Any, right: int, decodes: int, told: Sequence[str]) -> None:
    """Compare two budgets. One token of difference is rounding."""
    if not isinstance(yours, int) or isinstance(yours, bool) or abs(yours - right) > 1:
        raise Failed(
            f"budget({decodes}) returned {yours!r}; by the rules it is {right}", example="; ".join(told[-8:])
        )


def compare(learner: Learner, steps: Sequence[Step], **settings: Any) -> None:
    """Tell the steps to the learner's controller and to the history; ask for budgets after each."""
    yours, right = learner.new("ChunkController", **(SETTINGS | settings)), History(**settings)
    told = [f"{key} {value:g}" for key, value in settings.items()]
    for decodes, prompt_tokens, milliseconds in steps:
        told.append(f"observe({decodes}, {prompt_tokens}, {milliseconds / 1e3:g})")
        yours.observe(decodes, prompt_tokens, milliseconds / 1e3)
        right.observe(decodes, prompt_tokens, milliseconds / 1e3)
        for number in (decodes + 1, 0):
            same(yours.budget(number), right.budget(number), number, told)


@check(LAB)
def a_prompt_alone_gets_the_whole_step(learner: Learner) -> None:
    """Without decodes the budget is `most`, whatever was observed; such a step teaches its cost all the same."""
    controller = learner.new("ChunkController", **SETTINGS)
    same(controller.budget(0), 4096, 0, ["no steps yet"])
    compare(learner, [(20, 0, 15.0), (0, 2000, 135.0), (20, 0, 15.0)])


@check(LAB)
def the_first_chunk_is_small(learner: Learner) -> None:
    """While the cost is unknown, a step beside decodes gets `least` prompt tokens."""
    controller = learner.new("ChunkController", **SETTINGS)
    for decodes in (1, 30):
        same(controller.budget(decodes), decodes + 64, decodes, ["no steps yet"])
    compare(learner, [(20, 0, 15.0), (20, 30, 16.0)])


@check(LAB)
def the_room_sets_the_chunk(learner: Learner) -> None:
    """The chunk is the room below aim x target, divided by the cost of a prompt token; decodes come on top."""
    compare(learner, [(20, 0, 15.0), (20, 200, 27.0)])
    compare(learner, [(20, 0, 15.0), (20, 200, 33.0)])
    compare(learner, [(60, 0, 10.0), (60, 300, 34.0)], target=0.05, aim=0.5)
    compare(learner, [(8, 128, 20.0)])


@check(LAB)
def a_part_of_a_token_is_none(learner: Learner) -> None:
    """The chunk is rounded down, in numbers that binary fractions hold exactly."""
    for seconds, right in ((0.875, 76), (0.859375, 78), (0.75, 96)):  # room 0.75 s: 76.8, 78.77 and 96 tokens
        controller = learner.new("ChunkController", 2.0, 64, 4096, 0.5)
        controller.observe(20, 0, 0.25)
        controller.observe(20, 64, seconds)
        if (found := controller.budget(20)) != 20 + right:
            raise Failed(
                f"budget(20) returned {found!r}; 20 decodes and floor(room / cost) = {right} are {20 + right}",
                example=f"target 2, aim 0.5; observe(20, 0, 0.25); observe(20, 64, {seconds})",
            )


@check(LAB)
def a_look_changes_nothing(learner: Learner) -> None:
    """`budget` changes nothing: the same question has the same answer, and the next chunk is not larger for it."""
    controller = learner.new("ChunkController", **SETTINGS)
    controller.observe(20, 0, 0.01)
    controller.observe(20, 100, 0.0101)
    found = [controller.budget(20) for _ in range(3)]
    if found != [220, 220, 220]:
        raise Failed(
            f"three calls of budget(20) returned {found}; after a chunk of 100 tokens each is 20 + 2 * 100",
            example="observe(20, 0, 0.01); observe(20, 100, 0.0101)",
        )


@check(LAB)
def decode_steps_show_the_base(learner: Learner) -> None:
    """The last step without prompt tokens gives the base, whether it is longer or shorter; last and cost stay."""
    compare(learner, [(20, 0, 15.0), (20, 200, 27.0), (50, 0, 19.0), (10, 0, 13.0)])


@check(LAB)
def a_shorter_step_lowers_the_base(learner: Learner) -> None:
    """A step with prompt tokens that takes less than base lowers base to its own seconds."""
    compare(learner, [(20, 0, 15.0), (20, 200, 25.0), (20, 0, 60.0), (20, 100, 20.0), (20, 100, 22.0)])
    compare(learner, [(20, 0, 15.0), (20, 200, 25.0), (20, 0, 22.0), (20, 60, 16.0)])


@check(LAB)
def cost_rises_at_once_and_falls_slowly(learner: Learner) -> None:
    """A higher cost counts at once; towards a lower one, the cost moves by the share `release` of the way."""
    compare(learner, [(20, 0, 10.0), (20, 200, 20.0), (20, 200, 30.0), (20, 200, 20.0), (20, 200, 20.0)])
    compare(learner, [(20, 0, 10.0), (20, 200, 30.0), (20, 200, 15.0), (20, 200, 18.0)], release=0.5)


@check(LAB)
def few_prompt_tokens_say_little(learner: Learner) -> None:
    """A step with fewer than `least` prompt tokens does not change the cost; one with exactly `least` does."""
    compare(learner, [(20, 0, 15.0), (20, 200, 25.0), (20, 63, 26.0), (20, 180, 24.0)])
    compare(learner, [(20, 0, 15.0), (20, 200, 25.0), (20, 64, 22.0)])


@check(LAB)
def a_chunk_at_most_doubles(learner: Learner) -> None:
    """A chunk has at most twice the prompt tokens of the last step that had any."""
    compare(learner, [(20, 0, 10.0), (20, 64, 10.1), (20, 128, 10.2), (20, 256, 11.0)])
    compare(learner, [(20, 0, 10.0), (20, 400, 20.0), (20, 70, 11.0), (20, 0, 10.0)])


@check(LAB)
def limits_hold(learner: Learner) -> None:
    """A chunk has at least `least` tokens, and a step at most `most`, decodes included."""
    compare(learner, [(20, 0, 15.0), (20, 100, 80.0), (90, 0, 40.0)])
    compare(learner, [(20, 0, 10.0), (20, 900, 10.5)], most=1000)
    controller = learner.new("ChunkController", **(SETTINGS | {"most": 100}))
    same(controller.budget(200), 100, 200, ["most 100, no steps yet"])


@check(LAB)
def a_cost_of_zero_is_no_error(learner: Learner) -> None:
    """Prompt tokens that took no time leave the chunk to its other limits."""
    compare(learner, [(20, 0, 15.0), (20, 100, 15.0), (20, 200, 15.0)])
    compare(learner, [(20, 0, 15.0), (20, 100, 12.0)])


@check(LAB)
def wrong_settings_are_refused(learner: Learner) -> None:
    """A target of 0, limits that cross, and shares outside (0, 1] raise ValueError."""
    wrong: list[dict[str, Any]] = [{"target": 0.0}, {"target": -1.0}, {"least": 0}, {"least": 5000}]
    wrong += [{"aim": 0.0}, {"aim": 1.1}, {"release": 0.0}, {"release": 1.5}]
    for changed in wrong:
        shown = ", ".join(f"{key}={value}" for key, value in changed.items())
        refused(f"ChunkController(..., {shown})", learner.new, "ChunkController", **(SETTINGS | changed))


@check(LAB)
def random_steps(learner: Learner) -> None:
    """100 random series of steps on machines of different speed: every budget is that of the rules."""
    rng = Random(5)

    def run(count: int) -> None:
        settings = {
            "least": rng.choice([1, 16, 64]),
            "most": rng.choice([256, 2048]),
            "release": rng.choice([0.1, 0.5, 1.0]),
        }
        steps = []
        for _ in range(count):
            decodes = rng.choice([0, 4, 40, 200])
            prompt = rng.choice([0, 0, 10, 64, 300, 2000]) if decodes else 500
            steps.append(
                (decodes, prompt, rng.choice([2.0, 9.0, 14.0]) + prompt * rng.choice([0, 0.02, 0.08]))
            )
        run_fewest(steps, lambda some: compare(learner, some, **settings))

    smallest([1 + number // 8 for number in range(100)], run)


# -- the engine's scheduler


@cache
def deployment() -> Deployment:
    """An A100 with 80 GB, on which the budget of vLLM's server is 2,048 tokens unless it is set."""
    return make_deployment(model="llama-3-8b", gpu="a100-80", max_num_seqs=128, max_num_batched_tokens=8192)


@dataclass
class Steered:
    """A simulated engine whose budget a controller sets before every step."""

    engine: SimEngine
    controller: Any
    budgets: list[tuple[int, int]] = field(default_factory=list)
    """(decodes, budget) of every step."""

    def __post_init__(self) -> None:
        scheduler = self.engine.scheduler
        self.plan, self.configs = scheduler.schedule, dict[int, SchedulerConfig]()
        scheduler.schedule = self.schedule  # type: ignore[method-assign]
        self.engine.on_step, self.engine.fast_forward = self.observe, False

    def schedule(self) -> SchedulerOutput:
        scheduler = self.engine.scheduler
        decodes = sum(len(each.token_ids) - each.num_computed_tokens == 1 for each in scheduler.running)
        budget = self.controller.budget(decodes)
        if not isinstance(budget, int) or isinstance(budget, bool) or budget < 1:
            raise Failed(f"budget({decodes}) returned {budget!r}; a budget is a positive integer")
        self.budgets.append((decodes, budget))
        if budget not in self.configs:
            self.configs[budget] = replace(scheduler.config, max_num_batched_tokens=budget)
        scheduler.config = self.configs[budget]
        return self.plan()

    def observe(self, plan: SchedulerOutput, load: StepLoad, seconds: float) -> None:
        stats = self.engine.scheduler.stats
        self.controller.observe(stats.num_decode_tokens, stats.num_prefill_tokens, seconds)


def serve(controller: Any, requests: Sequence[SimRequest], path: Path | None = None) -> Steered:
    """Serve requests in virtual time, every budget from the controller. path: where to record a trace."""
    steered = Steered(make_engine(deployment(), enable_prefix_caching=False), controller)
    with recorded_engine(path, steered.engine):
        steered.engine.run(requests)
    return steered


class Watched:
    """Asks the learner's controller, and compares each answer with the history's."""

    def __init__(self, yours: Any) -> None:
        self.yours, self.right, self.told = yours, History(target=TARGET, most=8192), ["in the simulator"]

    def budget(self, decodes: int) -> Any:
        budget, right = self.yours.budget(decodes), self.right.budget(decodes)
        if decodes:
            same(budget, right, decodes, self.told)
        return budget

    def observe(self, decodes: int, prompt_tokens: int, seconds: float) -> None:
        self.told.append(f"observe({decodes}, {prompt_tokens}, {seconds:.5f})")
        self.yours.observe(decodes, prompt_tokens, seconds)
        self.right.observe(decodes, prompt_tokens, seconds)


def mixed(count: int, seed: int = 0) -> list[SimRequest]:
    """Return a mix of short prompts, and long ones that come beside them."""
    rng, now, found = Random(f"chunks-{seed}"), 0.0, []
    for index in range(count):
        now += rng.expovariate(8)
        prompt = rng.randint(3000, 6000) if index % 8 == 5 else rng.randint(100, 500)
        found.append(SimRequest(index, now, prompt, rng.randint(30, 90)))
    return found


@check(LAB)
def the_engine_keeps_the_target(learner: Learner) -> None:
    """Behind the engine's scheduler, 99 of 100 gaps between tokens are below 30 ms where 2,048 tokens give over 100."""
    controller = Watched(learner.new("ChunkController", TARGET))
    recorder = serve(controller, mixed(40)).engine.recorder
    gaps = percentiles(recorder.gaps, recorder.gap_counts)
    assert gaps is not None
    if gaps.p99 > TARGET:
        raise Failed(
            f"the 99th percentile of the gaps between tokens is {1e3 * gaps.p99:.1f} ms, above 30 ms"
        )
