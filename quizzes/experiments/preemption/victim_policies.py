"""Rules that choose the request to preempt, on the real scheduler."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from statistics import fmean
from typing import Any

from engine.core.request import Request
from engine.core.sched_output import Reason
from engine.core.scheduler import Scheduler, StepPlan
from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.charts import POINTS, vega

VICTIM_KEYS: dict[str, Callable[[Request], Any]] = {
    "newest": lambda request: request.sort_key[1:],
    "oldest": lambda request: [-part for part in request.sort_key[1:]],
    "fewest_computed": lambda request: -request.num_computed_tokens,
    "most_blocks": lambda request: len(request.blocks),
    "lowest_priority": lambda request: (request.priority, *request.sort_key[1:]),
}
"""Keys of running requests by rule: the request with the largest key is preempted."""


class VictimScheduler(Scheduler):
    """Preempts by a rule of its own; all else is the engine's.

    It makes room before the step plans its first row, so no request that has a row is preempted. The token budget must
    cover every running request.
    """

    def __init__(self, *args: Any, victim: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._key = VICTIM_KEYS[victim]

    def _schedule_running(self, plan: StepPlan) -> None:
        while len(self.running) > 1 and self._num_missing() > len(self.kv.pool.free):
            victim = max(self.running, key=self._key)
            grows = self.running[0]
            plan.refuse(victim.request_id, Reason.NO_BLOCKS, self.kv.lack_of_blocks(grows, grows.num_tokens))
            plan.preempted.append(victim.request_id)
            self.running.remove(victim)
            self.running.append(victim)  # `_preempt` takes the last
            self._preempt(victim)
        super()._schedule_running(plan)

    def _num_missing(self) -> int:
        """Return the blocks that the running requests need for the tokens of this step."""
        return sum(self.kv.num_missing(request, request.num_tokens) for request in self.running)


def draw(
    rng: Random, count: int, lengths: Sequence[tuple[int, int]], arrive_every: int
) -> list[tuple[int, int, int, int]]:
    """Return (prompt, output, arrival, priority) per request; lengths: bounds of prompts and of outputs."""
    return [
        (*(rng.randint(low, high) for low, high in lengths), index * arrive_every, rng.randrange(3))  # type: ignore[misc]
        for index in range(count)
    ]


@experiment("E17")
def victim_policies(
    ctx: Context,
    requests: int = arg(32, 2, 200),
    shortest: int = arg(16, 1, 500),
    longest: int = arg(160, 1, 1000),
    num_blocks: int = arg(64, 1, 4000),
    block_size: int = arg(16, 1, 256),
    arrive_every: int = arg(2, 0, 100),
    seed: int = arg(0, 0, 10_000),
) -> Result:
    """Preempt by five rules on the same requests and compare recomputed tokens, latency and fairness.

    Prompts and outputs are uniform in `shortest` to `longest` tokens, priorities in 0 to 2 (2 is the least important);
    priorities choose victims only. Prefix caching is off. The engine and vLLM 0.32 preempt the newest request under
    fcfs; lowest_priority takes the least important, the newest of them.

    Returns: By rule, in the order of `rules`.
        rules; num_preemptions [preemptions]
        recomputed_tokens [tokens]: Positions that went through the model a second time.
        mean_latency, worst_latency [steps]: From arrival to the last token.
        urgent_latency [steps]: Mean latency of the requests with priority 0.
        most_preemptions [preemptions]: Of one request.
        slowdown_fairness [share]: Jain's index over latency divided by output length; 1: all are slowed down equally.
        total_steps [steps]
        fewest_recomputed: The rule with the fewest recomputed tokens; the first of those that tie.
    """
    longest = max(shortest, longest)
    rows = draw(Random(f"victims-{seed}"), requests, [(shortest, longest)] * 2, arrive_every)
    needed = sum(prompt + output - 1 for prompt, output, *_ in rows)
    columns: dict[str, list[Any]] = {}

    def note(**figures: Any) -> None:
        for name, value in figures.items():
            columns.setdefault(name, []).append(value)

    for rule in VICTIM_KEYS:
        engine = ctx.core(
            num_blocks=max(num_blocks, -(-2 * longest // block_size)),
            block_size=block_size,
            enable_prefix_caching=False,
            max_num_batched_tokens=1_000_000,
            make_scheduler=partial(VictimScheduler, victim=rule),
            traced=rule == "newest",
        )
        engine.run(Ask(f"r{i}", p, o, arrival=at, priority=rank) for i, (p, o, at, rank) in enumerate(rows))
        outcomes = [engine.outcomes[f"r{i}"] for i in range(requests)]
        latencies = [outcome.finished - outcome.arrival + 1 for outcome in outcomes]
        slowed = [steps / row[1] for steps, row in zip(latencies, rows, strict=True)]
        urgent = [steps for steps, row in zip(latencies, rows, strict=True) if row[3] == 0]
        note(
            num_preemptions=engine.num_preemptions,
            recomputed_tokens=engine.computed_tokens - needed,
            mean_latency=fmean(latencies),
            worst_latency=max(latencies),
            urgent_latency=fmean(urgent or [0]),
            most_preemptions=max(len(outcome.preemptions) for outcome in outcomes),
            slowdown_fairness=sum(slowed) ** 2 / (len(slowed) * sum(value * value for value in slowed)),
            total_steps=engine.num_steps,
        )
    rules = list(VICTIM_KEYS)
    best = min(zip(columns["recomputed_tokens"], range(len(rules)), strict=True))[1]
    return Result(rules=rules, **columns, fewest_recomputed=rules[best])


def victim_policies_chart(result: Result) -> dict[str, Any]:
    """Recomputed tokens and mean latency by rule."""
    return vega(
        {
            "rule": result.rules,
            "recomputed tokens": result.recomputed_tokens,
            "mean latency": result.mean_latency,
        },
        POINTS,
        x="recomputed tokens:Q",
        y=("mean latency:Q", {"scale": {"zero": False}}),
        color="rule:N",
    )
