"""Bubbles, memory and messages of several devices, computed."""

from collections import deque
from itertools import pairwise
from typing import Any

from engine.core.sched_output import SchedulerOutput
from engine.sim.cost import CostModel, StepLoad
from engine.sim.hardware import get_link
from engine.sim.interconnect import step_traffic
from engine.sim.memory import DoesNotFit, plan_memory
from quizzes.experiments import Ask, Context, Result, arg, deploy, experiment


@experiment("E46")
def bubble(
    ctx: Context, stages: int = arg(4, 1, 16), requests: int = arg(2, 1, 64), output: int = arg(40, 4, 200)
) -> Result:
    """Count idle stages when the real scheduler plans steps for a pipeline.

    One step per tick enters a pipeline of `stages` stages; a step's tokens are known when it leaves the last stage.
    Prompts have one token, so every step decodes. When no request can run, an empty slot moves through the pipeline.

    Returns: Decode of equal requests; time counts in ticks, the time of one stage.
        ticks [ticks]
        idle_share [share]: Stage-ticks without work over all, without those that fill and empty the pipeline.
        gap_ticks [ticks]: Between two tokens of a request, mean.
        largest_batch [rows]: Rows of the largest step: steps under way share the requests.
        tokens_per_tick [tokens]
    """
    engine = ctx.core(max_num_seqs=64, max_concurrent_batches=stages)
    for index in range(requests):
        engine.add(Ask(f"r{index}", 1, output))
    scheduler = engine.scheduler
    under_way: deque[SchedulerOutput] = deque()
    moments: dict[str, list[int]] = {}
    work, largest = [], 0
    while scheduler.has_unfinished():
        out = scheduler.schedule()
        largest = max(largest, len(out.scheduled))
        under_way.append(out)
        work.append(sum(bool(step.scheduled) for step in under_way))
        if len(under_way) == stages:
            done = under_way.popleft()
            for output_row in scheduler.update(done, engine._answer(done)):
                moments.setdefault(output_row.request_id, []).append(len(work))
    full = work[stages : -2 * stages] or work
    gaps = [later - earlier for times in moments.values() for earlier, later in pairwise(times)]
    return Result(
        ticks=len(work),
        idle_share=1 - sum(full) / (stages * len(full)),
        gap_ticks=sum(gaps) / len(gaps),
        largest_batch=largest,
        tokens_per_tick=requests * output / len(work),
    )


@experiment("E46", "E63")
def fit(
    model: str = "llama-2-7b",
    hardware: str = "a100-80",
    tp: int = arg(2, 1, 16),
    max_model_len: int = arg(4096, 128, 131_072),
) -> Result:
    """Decide whether a model needs several devices, and what tensor and data parallelism leave for the KV cache.

    Returns: Memory of one replica on tp devices, and of one on a single device.
        fits_one: Weights and one sequence of max_model_len fit one device.
        weights_gb_per_device, kv_gb_per_device [GB]
        kv_tokens [tokens]: KV tokens of all devices of one replica.
        kv_tokens_replicas [tokens]: KV tokens of tp single-device replicas together; 0 if one does not fit.
        single_stream_ms [ms]: Time per token of one request, by the cost model.
        single_stream_ms_one [ms]: The same on one device; 0 if it does not fit.
    """

    def plan(size: int) -> tuple[Any, float]:
        deployment = deploy(model, hardware, tp=size, max_model_len=max_model_len)
        return plan_memory(deployment), 1e3 * CostModel(deployment).decode_seconds(1, max_model_len // 2)

    many, ms = plan(tp)
    try:
        one, ms_one = plan(1)
    except DoesNotFit:
        one, ms_one = None, 0.0
    return Result(
        fits_one=one is not None,
        weights_gb_per_device=many.weights / 1e9,
        kv_gb_per_device=many.kv_budget / 1e9,
        kv_tokens=many.num_tokens,
        kv_tokens_replicas=0 if one is None else tp * one.num_tokens,
        single_stream_ms=ms,
        single_stream_ms_one=ms_one,
    )


@experiment("E46")
def traffic(
    model: str = "llama-3.1-70b",
    tp: int = arg(8, 1, 64),
    pp: int = arg(1, 1, 16),
    tokens: int = arg(32, 1, 65_536),
    sampled: int | None = arg(None, 0, 65_536),
    link: str = "nvlink4",
    hardware: str = "h100",
    value_bytes: int = arg(2, 1, 4),
) -> Result:
    """Count messages and bytes between the ranks of a real model in one step, and price them on a link.

    The step has `tokens` tokens. sampled: rows that get a token; None: all (a decode step).

    Returns: One step, from the rank that samples.
        all_reduces [calls]: All-reduces of tensor parallelism: two per layer, and one for the embedding.
        all_reduce_bytes [B]: Payload of all of them.
        bytes_per_token [B]: Payload over the step's tokens; for pipeline stages the boundaries' bytes.
        boundaries [sends]: Boundaries between pipeline stages.
        boundary_bytes [B]: Bytes of one crossing.
        gather_bytes [B]: One rank's part of the logits.
        ms [ms]: Time of all messages over `link`, one after the other, without overlap.
        step_ms [ms]: Time of the step's arithmetic and memory traffic by the cost model, without messages.
        share [share]: ms / (ms + step_ms).
    """
    rows = tokens if sampled is None else sampled
    replica = deploy(model, hardware, holds=512 * rows, tp=tp, pp=pp)
    shape = replica.model
    said = step_traffic(
        hidden_size=shape.hidden_size,
        num_layers=shape.num_layers,
        vocab_size=shape.vocab_size,
        value_bytes=value_bytes,
        num_tokens=tokens,
        num_sampled=rows,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
    )
    ms = 1e3 * said.seconds(get_link(link))
    parts = CostModel(replica).parts(StepLoad(rows, tokens, rows, decode_context=512 * rows))
    step_ms = 1e3 * (sum(parts.values()) - parts["collectives"])
    payload = said.all_reduce_bytes if tp > 1 else said.num_boundaries * said.boundary_bytes
    return Result(
        all_reduces=said.num_all_reduces,
        all_reduce_bytes=said.all_reduce_bytes,
        bytes_per_token=payload / tokens,
        boundaries=said.num_boundaries,
        boundary_bytes=said.boundary_bytes,
        gather_bytes=said.gather_bytes,
        ms=ms,
        step_ms=step_ms,
        share=ms / (ms + step_ms) if ms else 0.0,
    )
