from typing import Any

from engine.sim.disaggregation import DisaggregatedFleet
from engine.sim.fleet import Fleet
from engine.sim.hardware import get_link
from engine.sim.router import LeastLoaded
from engine.sim.run import make_engine
from engine.sim.workload import Lengths, Workload
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.simulated import deploy


@experiment("E45", seconds=30)
def compare(
    ctx: Context,
    model: str = "llama-3.1-8b",
    hardware: str = "h100",
    prefill: int = arg(1, 1, 8),
    decode: int = arg(1, 1, 8),
    prompt: int = arg(4000, 16, 32_000),
    output: int = arg(200, 2, 1000),
    rate: float = arg(4.0, above=0, high=500),
    requests: int = arg(60, 2, 300),
    link: str = "nvlink4",
    budget: int = arg(8192, 128, 65_536),
) -> Result:
    """Compare co-located with disaggregated prefill and decode on the same devices: TTFT, ITL, end-to-end latency.

    Serves Poisson arrivals in virtual time. budget: max_num_batched_tokens of every replica, which chunks prompts
    where both phases share a device.

    Returns:
        colocated_ttft_ms, split_ttft_ms [ms]: Mean TTFT.
        colocated_itl_p99_ms, split_itl_p99_ms [ms]: 99th percentile of the time between two tokens, hand-over
            included.
        colocated_tpot_ms [ms]: Mean time per token after the first.
        split_tpot_ms, colocated_e2e_ms, split_e2e_ms [ms]
        split_wins_ttft, split_wins_itl, split_wins_e2e
        transfers [transfers]
        transfer_bytes [B]
        transfer_ms [ms]: Mean: from the first token until the KV has arrived, waiting for the sender's link included.
        prefill_busy, decode_busy [share]: Share of the run in which the pool's replicas compute, on average.
    """
    deployment = deploy(model, hardware, max_num_batched_tokens=budget, max_model_len=prompt + output + 16)
    load = Workload(
        requests,
        rate,
        Lengths(prompt, prompt),
        Lengths(output, output),
        max_model_len=prompt + output + 16,
        seed=7,
    )

    def engine() -> Any:
        return make_engine(deployment)

    together: Any = Fleet(engine, prefill + decode, LeastLoaded()).run(load).run
    apart = DisaggregatedFleet(
        engine, engine, prefill, decode, LeastLoaded(), LeastLoaded(), get_link(link)
    ).run(load)
    split: Any = apart.run
    runs = {"colocated": together, "split": split}

    def busy(replicas: list[Any]) -> float:
        return float(sum(replica.busy_seconds for replica in replicas) / len(replicas) / split.seconds)

    return Result(
        **{f"{name}_ttft_ms": 1e3 * run.ttft.mean for name, run in runs.items()},
        **{f"{name}_itl_p99_ms": 1e3 * run.itl.p99 for name, run in runs.items()},
        **{f"{name}_tpot_ms": 1e3 * run.tpot.mean for name, run in runs.items()},
        **{f"{name}_e2e_ms": 1e3 * run.e2e.mean for name, run in runs.items()},
        split_wins_ttft=split.ttft.mean < together.ttft.mean,
        split_wins_itl=split.itl.p99 < together.itl.p99,
        split_wins_e2e=split.e2e.mean < together.e2e.mean,
        transfers=apart.transfers,
        transfer_bytes=round(apart.transfer_bytes),
        transfer_ms=1e3 * apart.mean_transfer_seconds,
        prefill_busy=busy(apart.prefill),
        decode_busy=busy(apart.decode),
    )
