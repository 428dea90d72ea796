"""The real scheduler and KV manager, driven step by step with scripted outputs.

    engine = CoreEngine(num_blocks=64, block_size=16, max_num_seqs=4)
    engine.run([Ask("a", prompt=40, output=5), Ask("b", prompt=12, output=9, arrival=3)])
    engine.steps[7].rows["b"]        # what b computed in step 7
    engine.outcomes["b"].finished    # the step in which it ended

No model and no clock: steps, blocks, hits and preemptions equal those of the live engine for requests of these
lengths, because the same code decides (`engine.core.scheduler`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Any

from engine.config import CacheConfig, SchedulerConfig, TierConfig
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput, NotScheduled, SchedulerOutput, reason_of
from engine.core.scheduler import Scheduler
from engine.core.stats import StepStats
from engine.sampling_params import SamplingParams

MAX_STEPS = 200_000
FIRST_OWN_TOKEN = 1 << 24
"""First token id of prompts given as lengths; explicit prompts use smaller ids."""
_RANGE = 1 << 18
"""Token ids reserved for one request."""


class Fresh:
    """Returns runs of token ids, each id once: `Fresh()(3)`."""

    def __init__(self) -> None:
        self._next = count(1 << 20)

    def __call__(self, length: int) -> list[int]:
        return list(islice(self._next, length))


class NoProgress(Exception):
    """No unfinished request was scheduled."""


@dataclass(frozen=True)
class Ask:
    """A future request. A prompt given as a length gets unique tokens."""

    request_id: str
    prompt: int | list[int]
    output: int | list[int] = 1
    """Tokens it generates, or their number; the request ends with the last one."""
    arrival: int = 0
    """The step before which it is added."""
    priority: int = 0
    cache_salt: str | None = None
    lora: str | None = None
    max_tokens: int | None = None
    """Limit of the client, if larger than the output: the last token is then an end of sequence."""

    def prompt_tokens(self, start: int = 0) -> list[int]:
        """Return the prompt; `start` is the first token of a prompt given as a length."""
        return list(range(start, start + self.prompt)) if isinstance(self.prompt, int) else list(self.prompt)

    def output_tokens(self, start: int = 0) -> list[int]:
        return list(range(start, start + self.output)) if isinstance(self.output, int) else list(self.output)


@dataclass(frozen=True)
class StepView:
    """One step: tokens computed by request, and requests not scheduled."""

    index: int
    plan: SchedulerOutput = field(repr=False)
    rows: dict[str, tuple[int, int]]
    """(First token computed, count) by request id."""
    preempted: list[str]
    stats: StepStats
    """Statistics at the end of this step (a copy)."""
    free_blocks: int
    """Free blocks after the step, unreferenced cached blocks included."""

    @property
    def num_tokens(self) -> int:
        return sum(count for _, count in self.rows.values())

    def why_not(self, request_id: str) -> NotScheduled | None:
        """Return why a waiting request was not scheduled in this step, or None."""
        return reason_of(self.plan, request_id)


@dataclass
class Outcome:
    """History of one request. Steps count from 0; `admitted` and `finished` are None if it never happened."""

    arrival: int
    admitted: Any = None
    token_steps: list[int] = field(default_factory=list)
    """Step of each output token."""
    finished: Any = None
    preemptions: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    """Prefix-cache hit at the first admission."""
    computed_tokens: int = 0
    """Positions computed, recomputed ones included each time."""

    @property
    def first_token(self) -> int | None:
        return self.token_steps[0] if self.token_steps else None

    @property
    def longest_gap(self) -> int:
        """Maximum steps between two of its tokens; 1: no delay; 0: fewer than two tokens."""
        return max((later - earlier for earlier, later in pairwise(self.token_steps)), default=0)


class CoreEngine:
    """Scheduler, KV manager and a model that follows a script."""

    def __init__(
        self,
        *,
        num_blocks: int = 10_000,
        block_size: int = 16,
        enable_prefix_caching: bool = True,
        cache: dict[str, Any] | None = None,
        tiers: TierConfig | None = None,
        make_scheduler: Callable[..., Scheduler] = Scheduler,
        trace: Path | None = None,
        **scheduler: Any,
    ) -> None:
        """num_blocks: usable blocks, without the null block. cache: further fields of CacheConfig. scheduler: fields of
        SchedulerConfig; without them its limits are 256 requests, 8192 tokens per step and 1,000,000 per request."""
        limits = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "max_model_len": 1_000_000}
        settings = SchedulerConfig(**{**limits, **scheduler})
        blocks = CacheConfig(
            num_blocks + 1, block_size, enable_prefix_caching, tiers=tiers or TierConfig(), **(cache or {})
        )
        self.scheduler = make_scheduler(settings, blocks, clock=lambda: float(self.num_steps))
        self.steps: list[StepView] = []
        self.outcomes: dict[str, Outcome] = {}
        self._scripts: dict[str, list[int]] = {}
        self._token_starts: dict[str, int] = {}
        self._next_token = FIRST_OWN_TOKEN
        self._trace: Any = None
        if trace is not None:
            from engine.trace.writer import TraceWriter

            self._trace = TraceWriter(trace, {"model": "scripted"}, self.scheduler)

    @property
    def num_steps(self) -> int:
        return len(self.steps)

    @property
    def preempted(self) -> list[tuple[int, str]]:
        """(Step, request id) of all preemptions in order."""
        return [(step.index, request_id) for step in self.steps for request_id in step.preempted]

    @property
    def num_preemptions(self) -> int:
        return len(self.preempted)

    @property
    def cached_tokens(self) -> list[int]:
        """Prefix-cache hit of each request at its first admission, in order of arrival."""
        return [outcome.cached_tokens for outcome in self.outcomes.values()]

    @property
    def computed_tokens(self) -> int:
        """Positions that went through the model, recomputed ones included."""
        return sum(outcome.computed_tokens for outcome in self.outcomes.values())

    @property
    def free_blocks(self) -> int:
        return len(self.scheduler.kv.pool.free)

    @property
    def used_blocks(self) -> int:
        return self.scheduler.kv.pool.num_usable - self.free_blocks

    @property
    def peak_blocks(self) -> int:
        """Maximum blocks in use after a step."""
        usable = self.scheduler.kv.pool.num_usable
        return max((usable - step.free_blocks for step in self.steps), default=0)

    def add(self, ask: Ask) -> Request:
        """Queue a request now. Raises RequestRejected if it can never run."""
        start = self._own_tokens(ask)
        prompt = ask.prompt_tokens(start)
        output = ask.output_tokens(start + len(prompt))
        request = Request(
            ask.request_id,
            prompt,
            SamplingParams(max_tokens=ask.max_tokens or len(output)),
            arrival_time=float(self.num_steps),
            priority=ask.priority,
            lora_key=ask.lora,
            cache_salt=ask.cache_salt,
            eos_token_ids=frozenset(output[-1:] if ask.max_tokens else ()),
        )
        return self.add_request(request, output)

    def add_request(self, request: Request, script: list[int]) -> Request:
        """Queue a complete request, whose model will output the script."""
        self.scheduler.add(request)
        self._scripts[request.request_id] = script
        self.outcomes[request.request_id] = Outcome(arrival=self.num_steps)
        if self._trace is not None:
            self._trace.add(request)
        return request

    def abort(self, *request_ids: str) -> None:
        """Abort requests, as when their clients disconnect."""
        self.scheduler.abort(request_ids)
        if self._trace is not None:
            self._trace.abort(request_ids)

    def step(self) -> StepView:
        """Schedule, take outputs from the script, update."""
        out = self.scheduler.schedule()
        outputs = self.scheduler.update(out, self._answer(out))
        index = self.num_steps
        for row in out.scheduled:
            outcome = self.outcomes[row.request_id]
            outcome.computed_tokens += row.num_tokens
            if outcome.admitted is None:
                outcome.admitted = index
                request = self.scheduler.requests.get(row.request_id)
                outcome.cached_tokens = row.start if request is None else max(0, request.num_cached_tokens)
        for output in outputs:
            outcome = self.outcomes[output.request_id]
            outcome.token_steps += [index] * len(output.new_token_ids)
            if output.finish_reason is not None:
                outcome.finished = index
        for request_id in out.preempted_request_ids:
            self.outcomes[request_id].preemptions.append(index)
        view = StepView(
            index,
            out,
            {row.request_id: (row.start, row.num_tokens) for row in out.scheduled},
            list(out.preempted_request_ids),
            replace(self.scheduler.stats),
            self.free_blocks,
        )
        self.steps.append(view)
        if self._trace is not None:
            self._trace.step(out, ModelRunnerOutput(), outputs, 0.0)
        return view

    def run(self, asks: Iterable[Ask] = (), *, max_steps: int = MAX_STEPS) -> CoreEngine:
        """Add each request before the step of its arrival and step until all have finished."""
        waiting = sorted(asks, key=lambda ask: ask.arrival)[::-1]
        while waiting or self.scheduler.has_unfinished():
            if not self.scheduler.has_unfinished() and waiting[-1].arrival > self.num_steps:
                first = waiting[-1].arrival
                waiting = [replace(a, arrival=a.arrival - first + self.num_steps) for a in waiting]
            while waiting and waiting[-1].arrival <= self.num_steps:
                self.add(waiting.pop())
            if not self.step().rows:
                raise NoProgress(
                    f"step {self.num_steps - 1} scheduled no request, and requests are unfinished"
                )
            if self.num_steps >= max_steps:
                raise NoProgress(f"not finished after {max_steps} steps")
        self.close()
        return self

    def close(self) -> None:
        if self._trace is not None:
            self._trace.close()
            self._trace = None

    def _own_tokens(self, ask: Ask) -> int:
        """Return the first of the token ids reserved for this request id."""
        if ask.request_id not in self._token_starts:
            self._token_starts[ask.request_id] = self._next_token
            self._next_token += _RANGE
        return self._token_starts[ask.request_id]

    def _answer(self, out: SchedulerOutput) -> ModelRunnerOutput:
        result = ModelRunnerOutput()
        for row in out.scheduled:
            request = self.scheduler.requests[row.request_id]
            if row.start + row.num_tokens >= request.num_tokens:
                script = self._scripts[row.request_id]
                result.sampled_token_ids[row.request_id] = [script[request.num_output_tokens]]
        return result
