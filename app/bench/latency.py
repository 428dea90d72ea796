"""Measure the time to the first token and between tokens, for requests that start together."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from app.bench.timing import Spread, Tell, partial_results, spread
from app.bench.workload import Lengths, add_requests, require_room, timed_steps, warm_up
from engine.config import EngineArgs
from engine.engine_core import EngineCore


@dataclass(frozen=True)
class BatchLatency:
    """Times in milliseconds over all requests and rounds of one batch size."""

    batch_size: int
    ttft: Spread
    """Time to first token, from the submission of the batch."""
    itl: Spread
    """Inter-token latency: time between two tokens of one request."""
    output_tokens_per_s: float


@dataclass
class LatencyReport:
    model: str
    input_len: int
    output_len: int
    rounds: int
    batches: list[BatchLatency] = field(default_factory=list)
    interrupted: bool = False


def measure(
    tell: Tell,
    model: str,
    engine: dict[str, Any],
    *,
    batch_sizes: tuple[int, ...] = (1, 4, 16, 32),
    input_len: int = 128,
    output_len: int = 32,
    rounds: int = 3,
) -> LatencyReport:
    """Run the benchmark; Ctrl-C ends it early with the batch sizes that are done."""
    tell(f"loading {model}")
    core = EngineCore.from_args(EngineArgs.create(model=model, **engine))
    require_room(core, Lengths(input_len, input_len), Lengths(output_len, output_len))
    report = LatencyReport(model, input_len, output_len, rounds)
    with partial_results(report):
        tell("warming up")
        warm_up(core, Lengths(input_len, input_len))
        for batch_size in batch_sizes:
            report.batches.append(_batch(tell, core, batch_size, input_len, output_len, rounds))
    core.shutdown()
    return report


def _batch(
    tell: Tell, core: EngineCore, batch_size: int, input_len: int, output_len: int, rounds: int
) -> BatchLatency:
    ttft: list[float] = []
    itl: list[float] = []
    seconds, num_tokens = 0.0, 0
    prompt_len, answer_len = Lengths(input_len, input_len), Lengths(output_len, output_len)
    for number in range(rounds):
        tell(f"{batch_size} at once, round {number + 1} of {rounds}")
        start = perf_counter()
        label = f"latency-{batch_size}-{number}"
        ids = add_requests(core, batch_size, prompt_len, answer_len, label=label)
        last = dict.fromkeys(ids, start)
        seen: set[str] = set()
        for step in timed_steps(core):
            now = perf_counter()
            for output in step.outputs:
                (itl if output.request_id in seen else ttft).append(now - last[output.request_id])
                seen.add(output.request_id)
                last[output.request_id] = now
                num_tokens += len(output.new_token_ids)
        seconds += perf_counter() - start
    return BatchLatency(batch_size, spread(ttft), spread(itl), num_tokens / seconds)
