"""E45: the same devices as one pool and as two: TTFT, time between tokens and throughput, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Pools:
    """Figures of both forms under one load."""

    colocated_ttft_ms: Annotated[float, "ms"]
    """Mean."""
    split_ttft_ms: Annotated[float, "ms"]
    colocated_itl_p99_ms: Annotated[float, "ms"]
    """99th percentile of the time between two tokens, hand-over included."""
    split_itl_p99_ms: Annotated[float, "ms"]
    colocated_tpot_ms: Annotated[float, "ms"]
    """Mean time per token behind the first."""
    split_tpot_ms: Annotated[float, "ms"]
    colocated_e2e_ms: Annotated[float, "ms"]
    split_e2e_ms: Annotated[float, "ms"]
    split_wins_ttft: bool
    split_wins_itl: bool
    split_wins_e2e: bool
    transfers: Annotated[int, "transfers"]
    transfer_bytes: Annotated[int, "B"]
    transfer_ms: Annotated[float, "ms"]
    """Mean: from the first token until the KV has arrived, waiting for the sender's link included."""
    prefill_busy: Annotated[float, "share"]
    """Of the run, the prefill pool's mean."""
    decode_busy: Annotated[float, "share"]


@experiment("E45", seconds=30)
def compare(
    ctx: Context,
    *,
    model: str = "llama-3.1-8b",
    hardware: str = "h100",
    prefill: Annotated[int, Field(ge=1, le=8)] = 1,
    decode: Annotated[int, Field(ge=1, le=8)] = 1,
    prompt: Annotated[int, Field(ge=16, le=32_000)] = 4000,
    output: Annotated[int, Field(ge=2, le=1000)] = 200,
    rate: Annotated[float, Field(gt=0, le=500)] = 4.0,
    requests: Annotated[int, Field(ge=2, le=300)] = 60,
    link: str = "nvlink4",
    budget: Annotated[int, Field(ge=128, le=65_536)] = 8192,
) -> Pools:
    """Serve Poisson arrivals on prefill + decode replicas, once co-located and once in two pools.

    budget: max_num_batched_tokens of every replica, which chunks prompts where both phases share a device.
    """
    from engine.sim.disaggregation import DisaggregatedFleet
    from engine.sim.fleet import Fleet
    from engine.sim.hardware import get_hardware, get_link
    from engine.sim.memory import Deployment
    from engine.sim.models import get_model
    from engine.sim.router import LeastLoaded
    from engine.sim.run import make_engine
    from engine.sim.workload import Lengths, Workload

    deployment = Deployment(
        get_model(model),
        get_hardware(hardware),
        max_num_batched_tokens=budget,
        max_model_len=prompt + output + 16,
    )
    load = Workload(
        requests,
        rate,
        Lengths(prompt, prompt),
        Lengths(output, output),
        max_model_len=prompt + output + 16,
        seed=7,
    )

    def engine() -> object:
        return make_engine(deployment)

    together = Fleet(engine, prefill + decode, LeastLoaded()).run(load).run
    apart = DisaggregatedFleet(
        engine, engine, prefill, decode, LeastLoaded(), LeastLoaded(), get_link(link)
    ).run(load)
    split = apart.run

    def busy(replicas: list) -> float:
        return sum(replica.busy_seconds for replica in replicas) / len(replicas) / split.seconds

    return Pools(
        colocated_ttft_ms=1e3 * together.ttft.mean,
        split_ttft_ms=1e3 * split.ttft.mean,
        colocated_itl_p99_ms=1e3 * together.itl.p99,
        split_itl_p99_ms=1e3 * split.itl.p99,
        colocated_tpot_ms=1e3 * together.tpot.mean,
        split_tpot_ms=1e3 * split.tpot.mean,
        colocated_e2e_ms=1e3 * together.e2e.mean,
        split_e2e_ms=1e3 * split.e2e.mean,
        split_wins_ttft=split.ttft.mean < together.ttft.mean,
        split_wins_itl=split.itl.p99 < together.itl.p99,
        split_wins_e2e=split.e2e.mean < together.e2e.mean,
        transfers=apart.transfers,
        transfer_bytes=round(apart.transfer_bytes),
        transfer_ms=1e3 * apart.mean_transfer_seconds,
        prefill_busy=busy(apart.prefill),
        decode_busy=busy(apart.decode),
    )
