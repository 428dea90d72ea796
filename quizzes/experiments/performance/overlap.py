"""Planning the next step while the worker computes: time that the worker waits between two steps."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median
from time import perf_counter
from typing import Any

from engine.core.sched_output import GrammarBitmask, ModelRunnerOutput, SchedulerOutput
from engine.exec.base import PendingStep
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.charts import LINE, stacked, vega
from quizzes.experiments.context import generate, greedy


class ThreadedExecutor:
    """Runs a worker in a thread, as a GPU runs beside its host: `submit` returns before the step is computed."""

    def __init__(self, inner: Any, steps: list[_Step]) -> None:
        """steps: gets an entry for each step that computes tokens."""
        self._inner = inner
        self._steps = steps
        self._thread = ThreadPoolExecutor(max_workers=1)

    def submit(self, out: SchedulerOutput, bitmask: Future[GrammarBitmask] | None = None) -> PendingStep:
        return self._thread.submit(self._execute, out, bitmask, perf_counter()).result

    def _execute(
        self, out: SchedulerOutput, bitmask: Future[GrammarBitmask] | None, submitted: float
    ) -> ModelRunnerOutput:
        began = perf_counter()
        result: ModelRunnerOutput = self._inner.worker.execute(out, bitmask)
        if out.scheduled:
            is_decode = all(row.num_tokens == 1 for row in out.scheduled)
            self._steps.append(_Step(submitted, began, perf_counter(), is_decode))
        return result

    def collective_rpc(self, method: str | Callable[..., Any], *args: Any) -> list[Any]:
        answers: list[Any] = self._inner.collective_rpc(method, *args)
        return answers

    def shutdown(self) -> None:
        self._thread.shutdown()
        self._inner.shutdown()


@experiment("E65", determinism="statistical", seconds=30)
def step_gap(
    ctx: Context, rows: int = arg(16, 1, 64), output: int = arg(48, 8, 128), prompt: int = arg(32, 4, 200)
) -> Result:
    """Measure the worker's idle time between two steps, with and without overlap, in the live engine.

    The worker computes in a thread of its own. Without overlap the engine plans step N + 1 when step N's tokens are
    known. With overlap it keeps two steps under way: 2 x `rows` requests in two batches of `rows`, and while one batch
    computes, the engine handles the other's tokens and plans its next step. vLLM's asynchronous scheduling has the
    same effect with one batch: it plans step N + 1 with placeholders for tokens that the GPU has not delivered.

    Returns: Median over decode steps. The gap: from the end of a step's forward pass and sampling to the
        start of the next one's.
        gap_us, gap_overlapped_us [us]
        step_us, step_overlapped_us [us]: Time that the worker computes.
        idle_share, idle_share_overlapped [share]: Gaps over gaps and steps together, of all these steps.
        gaps_us, gaps_overlapped_us [us]: Gap by step, in order.
        planned_ahead, planned_ahead_overlapped [share]: Steps handed to the worker before it ended the step before.
        same_tokens: The first `rows` requests get the same tokens in both runs.
    """
    prompts = [[30 + (7 * row + 3 * i) % 200 for i in range(prompt)] for row in range(2 * rows)]
    plain = _run(ctx, prompts[:rows], output, depth=1)
    overlapped = _run(ctx, prompts, output, depth=2)
    return Result(
        gap_us=median(plain.gaps),
        gap_overlapped_us=median(overlapped.gaps),
        step_us=median(plain.steps),
        step_overlapped_us=median(overlapped.steps),
        idle_share=plain.idle_share,
        idle_share_overlapped=overlapped.idle_share,
        gaps_us=plain.gaps,
        gaps_overlapped_us=overlapped.gaps,
        planned_ahead=plain.planned_ahead,
        planned_ahead_overlapped=overlapped.planned_ahead,
        same_tokens=overlapped.tokens[:rows] == plain.tokens,
    )


@dataclass
class _Step:
    """Moments of one step in seconds: handed to the worker, begun, ended."""

    submitted: float
    began: float
    ended: float
    is_decode: bool


class _Measured:
    """Decode steps whose predecessor is a decode step too; times in microseconds."""

    def __init__(self, steps: list[_Step], tokens: list[list[int]]) -> None:
        pairs = [pair for pair in pairwise(steps) if pair[0].is_decode and pair[1].is_decode]
        self.gaps = [1e6 * (after.began - before.ended) for before, after in pairs]
        self.steps = [1e6 * (step.ended - step.began) for _, step in pairs]
        self.planned_ahead = fmean(after.submitted < before.ended for before, after in pairs)
        self.tokens = tokens

    @property
    def idle_share(self) -> float:
        return sum(self.gaps) / (sum(self.gaps) + sum(self.steps))


def _run(ctx: Context, prompts: list[list[int]], output: int, depth: int) -> _Measured:
    steps: list[_Step] = []
    with ctx.llm(max_num_seqs=len(prompts), enable_prefix_caching=False) as llm:
        core = llm.llm_engine.engine_core
        generate(llm, prompts, greedy(4))
        limits = replace(core.config.scheduler, max_concurrent_batches=depth)
        core.config = replace(core.config, scheduler=limits)
        core.scheduler.config = limits
        core.executor = ThreadedExecutor(core.executor, steps)
        tokens = [completion.token_ids for completion in generate(llm, prompts, greedy(output))]
    return _Measured(steps, tokens)


def step_gap_chart(result: Result) -> dict[str, Any]:
    """Time that the worker waits before each step."""
    count = min(len(result.gaps_us), len(result.gaps_overlapped_us))
    series = {
        "planned between steps": result.gaps_us[:count],
        "planned ahead": result.gaps_overlapped_us[:count],
    }
    return vega(
        stacked("step", list(range(count)), "us", **series), LINE, x="step:Q", y="us:Q", color="what:N"
    )
