"""The step that first uses an adapter, with the adapter read in it and read ahead."""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from quizzes.experiments import Context, Result, arg, experiment, greedy
from quizzes.experiments.lora.live import ATTENTION, MLP, write
from quizzes.experiments.measure import MAX_REPEATS, MIN_REPEATS, median_interval, one_thread


@experiment("E21", seconds=60, megabytes=2500, determinism="statistical")
def prefetch(
    ctx: Context,
    rank: int = arg(64, 1, 128),
    adapters: int = arg(6, 2, 16),
    tokens: int = arg(64, 1, 256),
    seconds: float = arg(6.0, 1, 20),
) -> Result:
    """Time the steps that bring an adapter to the device, with and without lora_prefetch.

    One slot and room for one adapter in host memory. A request for each adapter, all at once: while one runs, the next
    waits. Two engines take turns, one with lora_prefetch=1. The first request is left out: nothing runs before it.

    Returns: Medians over the rounds of the median step of a round.
        load_ms [ms]: Step that loads an adapter and reads its folder.
        load_ms_ahead [ms]: Step that loads an adapter which was read while earlier steps ran.
        other_ms [ms]: All other steps, without lora_prefetch.
        ratio, lo [x]
        hi [x]: load_ms over load_ms_ahead within a round, with a bootstrap 95 % interval of the median.
        reads, reads_ahead [reads]: Folders read in the step that needs them, in one round.
        adapter_mb [MB]
        same_tokens
        repeats [rounds]
    """
    all_rounds: list[tuple[_Round, _Round]] = []
    with tempfile.TemporaryDirectory() as place:
        folders = [write(Path(place) / f"a{i}", rank, ATTENTION + MLP, i) for i in range(adapters)]
        size = (folders[0] / "adapter_model.safetensors").stat().st_size
        settings: dict[str, Any] = {
            "enable_lora": True,
            "max_cpu_loras": 1,
            "max_lora_rank": next(allowed for allowed in (8, 16, 32, 64, 128) if allowed >= rank),
            "enable_prefix_caching": False,
        }
        with ctx.llm(**settings) as plain, ctx.llm(**settings, lora_prefetch=1) as ahead, one_thread():
            engines = [
                (llm, [llm.load_lora_adapter(f.name, str(f)) for f in folders]) for llm in (plain, ahead)
            ]
            ends = time.perf_counter() + seconds
            while len(all_rounds) <= MIN_REPEATS or (
                time.perf_counter() < ends and len(all_rounds) <= MAX_REPEATS
            ):
                first, second = (_round(llm, loras, len(all_rounds), tokens) for llm, loras in engines)
                all_rounds.append((first, second))
    rounds = all_rounds[1:]  # the first one warms up
    ratio, lo, hi = median_interval([a.load_ms / b.load_ms for a, b in rounds])
    return Result(
        load_ms=statistics.median(a.load_ms for a, _ in rounds),
        load_ms_ahead=statistics.median(b.load_ms for _, b in rounds),
        other_ms=statistics.median(a.other_ms for a, _ in rounds),
        ratio=ratio,
        lo=lo,
        hi=hi,
        reads=rounds[0][0].reads,
        reads_ahead=rounds[0][1].reads,
        adapter_mb=size / 1e6,
        same_tokens=all(a.outputs == b.outputs for a, b in rounds),
        repeats=len(rounds),
    )


class _Round:
    """One request for each adapter."""

    def __init__(self) -> None:
        self.loads: list[float] = []
        """Milliseconds of the steps that load an adapter."""
        self.others: list[float] = []
        self.reads = 0
        self.outputs: dict[str, list[int]] = {}

    @property
    def load_ms(self) -> float:
        return statistics.median(self.loads[1:])

    @property
    def other_ms(self) -> float:
        return statistics.median(self.others)


def _round(llm: Any, loras: list[Any], number: int, tokens: int) -> _Round:
    engine, measured = llm.llm_engine, _Round()
    for index, lora in enumerate(loras):
        prompt = [30 + (11 * index + position) % 1500 for position in range(8)]
        params = greedy(tokens + 1, detokenize=False)
        engine.add(engine.input_processor.process(f"{number}-{index}", prompt, params, lora_request=lora))
    while engine.has_unfinished():
        start = time.perf_counter()
        outputs = engine.step()
        took = 1000 * (time.perf_counter() - start)
        stats = engine.engine_core.scheduler.stats
        (measured.loads if stats.num_lora_loads else measured.others).append(took)
        measured.reads += stats.num_lora_reads
        for output in outputs:
            measured.outputs[output.request_id.partition("-")[2]] = output.outputs[0].token_ids
    return measured
