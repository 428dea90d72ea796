"""Static and continuous batches, padding and packing, counted on the scheduler."""

import math
from itertools import accumulate
from random import Random
from typing import Annotated, Literal

from pydantic import Field

from quizzes.experiments import Ask, BadArguments, Context, CoreEngine, Result, arg, experiment

PROMPT = 1
"""A prompt of one token: its first output comes in the step that reads it, so only the outputs count."""


def _race(ctx: Context, slots: int, lens: list[int]) -> dict[str, CoreEngine]:
    """Serve requests of these output lengths in static and in continuous batches."""
    asks = [Ask(f"r{i}", PROMPT, n) for i, n in enumerate(lens)]
    static = ctx.core(max_num_seqs=slots)
    for start in range(0, len(asks), slots):
        static.run(asks[start : start + slots])
    return {"static": static, "continuous": ctx.core(max_num_seqs=slots, traced=True).run(asks)}


def _figures(engines: dict[str, CoreEngine], slots: int, tokens: int) -> dict[str, float]:
    return {
        **{f"{name}_steps": engine.num_steps for name, engine in engines.items()},
        **{f"{name}_slot_use": tokens / (slots * engine.num_steps) for name, engine in engines.items()},
        "speedup": engines["static"].num_steps / engines["continuous"].num_steps,
    }


@experiment("E13")
def static_vs_continuous(
    ctx: Context,
    slots: int = arg(4, 1, 64),
    lens: list[int] = arg([12, 40, 8, 25, 60, 9, 14, 33], 1, 2000, count=(1, 200)),
) -> Result:
    """Compare static with continuous batching on one list of output lengths (Orca, OSDI 2022, section 3).

    Both run on the engine's scheduler with `slots` as max_num_seqs. Static batching admits the next `slots` requests
    only when the previous batch is empty; continuous batching admits a request whenever a slot is free.

    Returns: Steps until all requests have finished. Slot use: tokens generated per slot and step.
        static_steps, continuous_steps [steps]; static_slot_use, continuous_slot_use [share]; speedup [x]
        static_finished, continuous_finished [step]: By request, in order of arrival: step of its last token, from 0.
    """
    engines = _race(ctx, slots, lens)
    finished = {
        f"{name}_finished": [outcome.finished for outcome in engine.outcomes.values()]
        for name, engine in engines.items()
    }
    return Result(**_figures(engines, slots, sum(lens)), **finished)


LONGEST = 4000
Shape = Literal["fixed", "uniform", "exponential", "bimodal", "lognormal"]


@experiment("E13")
def length_distributions(
    ctx: Context,
    shape: Shape = "exponential",
    slots: int = arg(8, 1, 64),
    requests: int = arg(128, 1, 512),
    mean: int = arg(60, 1, 200),
    long_share: float = arg(0.1, 0, 1),
    long_factor: int = arg(10, 2, 10),
    seed: int = arg(0, 0, 10_000),
) -> Result:
    """Compare static with continuous batching on output lengths drawn from a distribution.

    bimodal: `long_share` of the requests are `long_factor` times as long as the others. A static batch waits for its
    longest member, so the ratio of the expected maximum of `slots` draws to the mean decides.

    Returns: Steps for one list of output lengths. Slot use: tokens generated per slot and step.
        lens_mean, lens_max [tokens]; static_steps, continuous_steps [steps]
        static_slot_use, continuous_slot_use [share]; speedup [x]
    """
    rng = Random(f"{shape}-{seed}")
    lens = [_draw(rng, shape, mean, long_share, long_factor) for _ in range(requests)]
    figures = _figures(_race(ctx, slots, lens), slots, sum(lens))
    return Result(lens_mean=sum(lens) / requests, lens_max=max(lens), **figures)


def _draw(rng: Random, shape: Shape, mean: int, long_share: float, long_factor: int) -> int:
    """One length with that mean (bimodal: the mean of both kinds together)."""
    if shape == "fixed":
        return mean
    if shape == "uniform":
        return rng.randint(1, 2 * mean - 1)
    if shape == "exponential":
        drawn = rng.expovariate(1 / mean)
    elif shape == "lognormal":
        drawn = rng.lognormvariate(math.log(mean) - 0.5, 1.0)
    else:
        short = mean / (1 + long_share * (long_factor - 1))
        drawn = short * long_factor if rng.random() < long_share else short
    return min(LONGEST, max(1, round(drawn)))


@experiment("E13")
def batch_window(
    ctx: Context,
    slots: int = arg(4, 1, 32),
    window: int = arg(10, 0, 200),
    arrivals: list[int] = arg([0, 1, 3, 8, 9, 20], 0, 500, count=(1, 60)),
    lens: list[int] = arg([5, 20, 4, 6, 12, 3], 1, 500, count=(1, 60)),
) -> Result:
    """Compare a server that collects batches with one that admits requests at every step.

    The collecting server starts a batch when the previous one has ended and either `slots` requests wait or the oldest
    has waited `window` steps. The continuous one is the engine's scheduler, unchanged. Both compute on that scheduler.

    Returns: By request, in order of arrival. A wait is the number of steps between arrival and admission.
        collected_waits, continuous_waits [steps]; collected_finished, continuous_finished [step]
        collected_mean_wait, continuous_mean_wait [steps]
        collected_mean_latency, continuous_mean_latency [steps]: Mean steps from arrival to the last token.
        collected_steps, continuous_steps [steps]: Steps until all requests have finished, idle ones included.
    """
    if len(arrivals) != len(lens):
        raise BadArguments(f"{len(arrivals)} arrivals and {len(lens)} lens: give one length for each arrival")
    asks = [Ask(f"r{i}", PROMPT, n, arrival=at) for i, (at, n) in enumerate(zip(arrivals, lens, strict=True))]
    asks.sort(key=lambda ask: ask.arrival)

    def is_due(outside: list[Ask], now: int) -> bool:
        return len(outside) >= slots or bool(outside) and now - outside[0].arrival >= window

    def serve(engine: CoreEngine, collects: bool) -> tuple[list[int], list[int]]:
        """Return (wait, latency) by request; the clock is the engine's step counter, idle steps included."""
        to_come, outside = list(asks), list[Ask]()
        while to_come or outside or engine.scheduler.has_unfinished():
            while to_come and to_come[0].arrival <= engine.num_steps:
                outside.append(to_come.pop(0))
            if not collects or not engine.scheduler.has_unfinished() and is_due(outside, engine.num_steps):
                size = slots if collects else len(outside)
                for ask in outside[:size]:
                    engine.add(ask)
                del outside[:size]
            engine.step()
        engine.close()
        served = [(engine.outcomes[ask.request_id], ask.arrival) for ask in asks]
        return [o.admitted - came for o, came in served], [o.finished + 1 - came for o, came in served]

    runs = {
        "collected": serve(ctx.core(max_num_seqs=slots), collects=True),
        "continuous": serve(ctx.core(max_num_seqs=slots, traced=True), collects=False),
    }
    ends = {
        name: [ask.arrival + latency - 1 for ask, latency in zip(asks, latencies, strict=True)]
        for name, (_, latencies) in runs.items()
    }
    return Result(
        **{f"{name}_waits": waits for name, (waits, _) in runs.items()},
        **{f"{name}_finished": finished for name, finished in ends.items()},
        **{f"{name}_mean_wait": sum(waits) / len(asks) for name, (waits, _) in runs.items()},
        **{f"{name}_mean_latency": sum(latencies) / len(asks) for name, (_, latencies) in runs.items()},
        **{f"{name}_steps": max(finished) + 1 for name, finished in ends.items()},
    )


LARGEST = 512
"""Tokens of the largest graph, as in vLLM (1024 on data-centre Blackwell)."""


@experiment("E60")
def graph_padding(
    batches: list[int] = arg([1, 3, 5, 9, 33, 250, 260], 1, 1024, count=(1, 256)),
    max_num_seqs: int = arg(256, 1, 1024),
    sizes: Literal["vllm", "engine"] | list[Annotated[int, Field(ge=1, le=1024)]] = "vllm",
) -> Result:
    """Pad decode batches to the next captured CUDA graph size and measure the waste, one token per row.

    vllm: capture sizes of vLLM config/vllm.py, _set_cudagraph_sizes: 1, 2, 4, multiples of 8 below 256, then of 16, up
    to min(2 x max_num_seqs, 512). engine: this engine's decode graphs, captured when a size is first needed
    (engine/worker/decode_graphs.py). Or a list of sizes.

    Returns: By batch, in the order given.
        padded [rows]: Size of the graph that runs, or the batch itself if it exceeds all graphs and runs eagerly.
        is_eager; wasted_rows [rows]
        waste [share]: Padding over all rows computed.
        num_graphs [graphs]: Graphs captured to cover every batch up to max_num_seqs.
        sizes
    """
    if sizes == "engine":
        from engine.config.graph_sizes import graph_size
        from engine.worker.decode_graphs import MAX_TOKENS

        made = {graph_size(rows) for rows in range(1, max_num_seqs + 1)}
        captured = sorted(size for size in made if size <= MAX_TOKENS)
    elif sizes == "vllm":
        largest = min(2 * max_num_seqs, LARGEST)
        captured = [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)) if size <= largest]
    else:
        captured = sorted(set(sizes))
    padded = [next((size for size in captured if size >= rows), rows) for rows in batches]
    wasted = [size - rows for size, rows in zip(padded, batches, strict=True)]
    return Result(
        padded=padded,
        is_eager=[rows > captured[-1] for rows in batches],
        wasted_rows=wasted,
        waste=sum(wasted) / sum(padded),
        num_graphs=len(captured),
        sizes=captured,
    )


@experiment("E29")
def ragged_vs_padded(
    ctx: Context,
    lens: list[int] = arg([100, 500, 50], 1, 4000, count=(1, 64)),
    block_size: int = arg(16, 1, 256),
) -> Result:
    """Compare packed with padded prompts of different lengths: tokens computed and KV slots taken.

    The engine packs all rows into one list of tokens; `query_start_loc` gives the start of each. Nothing is padded.

    Returns: Figures of one prefill step of all prompts.
        ragged_tokens [tokens]: Positions that go through the model, as the scheduler plans them.
        padded_tokens [tokens]: The same in a rectangle: rows x longest.
        padding_share [share]: Padding over the rectangle.
        query_start_loc: Where each row begins in the packed batch, and where the last ends.
        blocks [blocks]: Blocks that each row holds.
        paged_slots [tokens]: KV slots taken: blocks x block size.
        padded_slots [tokens]: KV slots if each row had as many as the longest.
        unused_slots [tokens]: Empty slots at the ends of last blocks.
    """
    engine = ctx.core(
        max_num_seqs=len(lens), max_num_batched_tokens=sum(lens), block_size=block_size, traced=True
    )
    for index, length in enumerate(lens):
        engine.add(Ask(f"r{index}", length, 2))
    step = engine.step()
    engine.close()
    counts = [step.rows[f"r{index}"][1] for index in range(len(lens))]
    blocks = [len(row.new_block_ids) for row in step.plan.scheduled]
    rectangle, slots = len(lens) * max(lens), sum(blocks) * block_size
    return Result(
        ragged_tokens=step.num_tokens,
        padded_tokens=rectangle,
        padding_share=1 - step.num_tokens / rectangle,
        query_start_loc=list(accumulate(counts, initial=0)),
        blocks=blocks,
        paged_slots=slots,
        padded_slots=len(lens) * max(blocks) * block_size,
        unused_slots=slots - step.num_tokens,
    )
