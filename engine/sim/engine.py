"""The engine's loop with a virtual clock: the real scheduler plans steps, the cost model times them.

        add(request) ---> [ waiting | running ]          engine.core.Scheduler, as in the live engine
                                |
           t ----- schedule() --+-- cost.seconds(load) -- update() ----- t + cost --->

A request that arrives during a step waits for the next one, as in the live engine. Idle time is skipped. Source of
the idea: Vidur (Agrawal et al. 2024), which simulates vLLM's scheduler; here the scheduler itself runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from engine.config import CacheConfig, SchedulerConfig
from engine.core.errors import RequestRejected
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput, SchedulerOutput
from engine.sim.cost import CostModel, StepLoad, load_of
from engine.sim.fast_forward import FastForwardScheduler
from engine.sim.recorder import Recorder, RequestRecord
from engine.sim.speculation import Speculation
from engine.sim.workload import SimRequest, Tell, make_request

MAX_STEPS_AHEAD = 4096


class VirtualClock:
    """Seconds since the start of the simulation. The scheduler reads it as it would read `time.monotonic`."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Flight(NamedTuple):
    """A step that has begun and not ended."""

    end: float
    plan: tuple[SchedulerOutput, ModelRunnerOutput] | None  # plan and answer; None: a certain decode


class SimEngine:
    """One replica. `run` serves a whole workload; `add` and `run_until` let a fleet drive several replicas."""

    def __init__(
        self,
        scheduler_config: SchedulerConfig,
        cache_config: CacheConfig,
        cost: CostModel,
        *,
        fast_forward: bool = True,
        speculation: Speculation | None = None,
        on_step: Callable[[SchedulerOutput, StepLoad, float], None] | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.scheduler = FastForwardScheduler(scheduler_config, cache_config, clock=self.clock)
        self.cost = cost
        self.speculation = speculation
        self.on_step = on_step  # called with plan, load and seconds of every step; disables fast-forwarding
        is_plain = on_step is None and speculation is None and not scheduler_config.max_loras
        self.fast_forward = fast_forward and is_plain
        self.recorder = Recorder()
        self.now = 0.0  # when the next step can start: the end of the last one, or the arrival of work
        self.previous_end = -2.0
        self.rejected: list[tuple[SimRequest, str]] = []
        self._answers: dict[str, list[int]] = {}
        self._flight: Flight | None = None

    # -- steering

    def run(self, requests: Iterable[SimRequest], tell: Tell | None = None) -> None:
        """Serve requests in order of arrival until all have finished."""
        for number, request in enumerate(requests):
            self.run_until(request.arrival)
            self.add(request, request.arrival)
            if tell is not None and number % 256 == 0:
                tell(number)
        self.run_until(float("inf"))

    def add(self, request: SimRequest, when: float) -> RequestRecord | None:
        """Queue a request at virtual time `when`. Return None if it can never run (see `rejected`)."""
        return self.submit(make_request(request), RequestRecord(request, arrival=when), when)

    def submit(self, core: Request, record: RequestRecord, when: float) -> RequestRecord | None:
        """Queue a scheduler's request with the caller's record: one half of a disaggregated request."""
        self.clock.now = when
        try:
            self.scheduler.add(core)
        except RequestRejected as refusal:
            self.rejected.append((record.request, str(refusal)))
            return None
        if self._flight is None:
            self.now = max(self.now, when)
        self.recorder.live[core.request_id] = record
        self._answers[core.request_id] = [record.request.answer_token]
        return record

    def abort(self, record: RequestRecord) -> None:
        """End a request whose client has gone; its record stays unfinished."""
        name = str(record.request.index)
        self.scheduler.abort([name])
        del self.recorder.live[name], self._answers[name]

    def run_until(self, when: float) -> list[RequestRecord]:
        """Run every step that starts by `when`. Return the records of finished requests."""
        done: list[RequestRecord] = []
        while True:
            if self._flight is not None:
                if self._flight.end > when:
                    return done
                done += self._land(self._flight)
            if self.now >= when or not self.scheduler.has_unfinished():
                return done
            self._go_on(when)

    @property
    def num_unfinished(self) -> int:
        return len(self.scheduler.requests)

    @property
    def kv_cache_usage(self) -> float:
        return self.scheduler.kv.usage

    # -- one step

    def _go_on(self, when: float) -> None:
        """Begin the next step, or skip several certain ones."""
        ahead = self.scheduler.steps_ahead(MAX_STEPS_AHEAD) if self.fast_forward else -1
        if ahead < 0:
            self._take_off()
        elif ahead == 0 or not self._skip(ahead, when):
            self._take_off_decoding()

    def _take_off(self) -> None:
        """Plan the next step and compute when it ends."""
        scheduler = self.scheduler
        self.clock.now = self.now
        out = scheduler.schedule()
        if not out.scheduled:
            raise RuntimeError("the scheduler chose nothing although requests are unfinished")
        load = load_of(out, scheduler.requests, self.cost.window)
        seconds = self.cost.seconds(load)
        stats = scheduler.stats
        if stats.host_bytes_out or stats.host_bytes_in:
            seconds += self.cost.copying(stats.host_bytes_out + stats.host_bytes_in)
            self.recorder.host_bytes += stats.host_bytes_out + stats.host_bytes_in
        if self.speculation is not None:
            seconds += self.speculation.drafting_seconds(load)
        if self.on_step is not None:
            self.on_step(out, load, seconds)
        self.recorder.num_preemptions += len(out.preempted_request_ids)
        self._begin(seconds, (out, self._answer(out)))

    def _take_off_decoding(self) -> None:
        seconds, _ = self._durations(1, float("inf"))
        self.scheduler.begin_decode()
        self._begin(seconds[0], None)

    def _begin(self, seconds: float, plan: tuple[SchedulerOutput, ModelRunnerOutput] | None) -> None:
        running, waiting = len(self.scheduler.running), len(self.scheduler.waiting)
        self.recorder.step(seconds, running, waiting, self.scheduler.kv.pool.num_used)
        self._flight = Flight(self.now + seconds, plan)

    def _answer(self, out: SchedulerOutput) -> ModelRunnerOutput:
        """Answer as a worker: a token for each row that computed its last known token."""
        requests, answers = self.scheduler.requests, self._answers
        complete = (
            row.request_id
            for row in out.scheduled
            if row.start + row.num_tokens >= len(requests[row.request_id].token_ids)
        )
        result = ModelRunnerOutput({name: answers[name] for name in complete})
        if self.speculation is not None:
            self.speculation.answer(out, result)
        return result

    def _land(self, flight: Flight) -> list[RequestRecord]:
        """End a step: update the scheduler and record its outputs."""
        scheduler, recorder = self.scheduler, self.recorder
        self._flight = None
        self.now = self.clock.now = flight.end
        if flight.plan is None:
            recorder.decoded(scheduler.running, [self.now], self.previous_end)
            done = [recorder.finish(output) for output in scheduler.end_decode(self._answers)]
        else:
            done = recorder.outputs(scheduler.update(*flight.plan), self.now, self.previous_end)
        stats = scheduler.stats
        recorder.num_prefill_tokens += stats.num_prefill_tokens
        recorder.num_decode_tokens += stats.num_decode_tokens
        recorder.num_generated_tokens += stats.num_generated_tokens
        recorder.prefix_queries += stats.prefix_cache_queries
        recorder.prefix_hits += stats.prefix_cache_hits
        self.previous_end = self.now
        for record in done:
            del self._answers[str(record.request.index)]
        return done

    # -- many steps

    def _skip(self, most: int, when: float) -> int:
        """Skip those of the `most` certain steps that end by `when`. Return how many."""
        scheduler = self.scheduler
        seconds, ends = self._durations(most, when)
        if not ends:
            return 0
        running, pool = scheduler.running, scheduler.kv.pool
        used, waiting = pool.num_used, len(scheduler.waiting)
        taken = scheduler.skip(len(ends), self._answers)
        index = 0
        for step, duration in enumerate(seconds):
            while index < len(taken) and taken[index] == step:
                used += 1
                index += 1
            self.recorder.step(duration, len(running), waiting, used)
        self.recorder.num_decode_tokens += len(running) * len(ends)
        self.recorder.num_generated_tokens += len(running) * len(ends)
        self.recorder.decoded(running, ends, self.previous_end)
        self.now = self.previous_end = ends[-1]
        return len(ends)

    def _durations(self, most: int, when: float) -> tuple[list[float], list[float]]:
        """Return the seconds and the ends of up to `most` next steps that end by `when`."""
        running, window = self.scheduler.running, self.cost.window
        num_rows = len(running)
        context = [len(request.token_ids) for request in running]
        total, now = sum(context), self.now
        seconds: list[float] = []
        ends: list[float] = []
        for step in range(most):
            if window is None:
                looked_at = total + step * num_rows
            else:
                looked_at = sum(min(length + step, window) for length in context)
            duration = self.cost.decode_seconds(num_rows, looked_at)
            if (now := now + duration) > when:
                break
            seconds.append(duration)
            ends.append(now)
        return seconds, ends
