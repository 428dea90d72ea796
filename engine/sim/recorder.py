"""Record times of each request and levels of each step.

Gaps between tokens are stored as (value, count), since most rows of a step have the same gap: 20 million gaps of a
long run fit into a list of steps.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput
from engine.sim.workload import SimRequest


@dataclass(slots=True, eq=False)
class RequestRecord:
    """Times of one request in virtual seconds; -1: not yet."""

    request: SimRequest
    arrival: float = 0.0
    scheduled: float = -1.0
    first_token: float = -1.0
    last_token: float = -1.0
    num_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    replica: int = 0

    @property
    def ttft(self) -> float:
        return self.first_token - self.arrival

    @property
    def queue_time(self) -> float:
        return self.scheduled - self.arrival

    @property
    def e2e(self) -> float:
        return self.last_token - self.arrival

    @property
    def tpot(self) -> float:
        """Mean seconds per token after the first."""
        return (self.last_token - self.first_token) / max(1, self.num_tokens - 1)


class Recorder:
    """Figures of one engine. Sums are over virtual time."""

    def __init__(self) -> None:
        self.live: dict[str, RequestRecord] = {}
        self.finished: list[RequestRecord] = []
        self.gaps = array("d")
        self.gap_counts = array("q")
        self.num_steps = self.num_preemptions = 0
        self.num_prefill_tokens = self.num_decode_tokens = self.num_generated_tokens = 0
        self.prefix_queries = self.prefix_hits = 0
        self.host_bytes = 0  # copied between one device and its host
        self.step_seconds = self.used_block_seconds = self.running_seconds = self.waiting_seconds = 0.0
        self.peak_used_blocks = self.peak_running = self.peak_waiting = 0

    def step(self, seconds: float, num_running: int, num_waiting: int, used_blocks: int) -> None:
        """Record the levels of a planned step that takes `seconds`."""
        self.num_steps += 1
        self.step_seconds += seconds
        self.used_block_seconds += used_blocks * seconds
        self.running_seconds += num_running * seconds
        self.waiting_seconds += num_waiting * seconds
        if used_blocks > self.peak_used_blocks:
            self.peak_used_blocks = used_blocks
        if num_running > self.peak_running:
            self.peak_running = num_running
        if num_waiting > self.peak_waiting:
            self.peak_waiting = num_waiting

    def outputs(self, outs: list[EngineCoreOutput], end: float, previous_end: float) -> list[RequestRecord]:
        """Record the outputs of a step that ended at `end`. Return the records of finished requests."""
        live, common, done = self.live, 0, []
        for output in outs:
            record = live[output.request_id]
            last = record.last_token
            record.last_token = end
            record.num_tokens += len(output.new_token_ids)
            if last == previous_end:
                common += 1
            elif last < 0:
                record.first_token = end
            else:
                self._gap(end - last, 1)
            if output.finish_reason is not None:
                done.append(self.finish(output))
        if common:
            self._gap(end - previous_end, common)
        return done

    def decoded(self, answering: list[Request], ends: list[float], previous_end: float) -> None:
        """Record steps that end at `ends` and give each of `answering` one token."""
        live, common = self.live, 0
        for request in answering:
            record = live[request.request_id]
            if record.last_token == previous_end:
                common += 1
            else:
                self._gap(ends[0] - record.last_token, 1)
            record.last_token = ends[-1]
            record.num_tokens += len(ends)
        if common:
            self._gap(ends[0] - previous_end, common)
        for index in range(1, len(ends)):
            self._gap(ends[index] - ends[index - 1], len(answering))

    def _gap(self, seconds: float, how_many: int) -> None:
        self.gaps.append(seconds)
        self.gap_counts.append(how_many)

    def finish(self, output: EngineCoreOutput) -> RequestRecord:
        """Close the record of a request with its last output."""
        record = self.live.pop(output.request_id)
        record.num_preemptions += output.num_preemptions
        record.num_cached_tokens = max(record.num_cached_tokens, output.num_cached_tokens)
        if record.scheduled < 0 and output.events:
            record.scheduled = next(moment for event, moment in output.events if event == "SCHEDULED")
        self.finished.append(record)
        return record
