"""Simulate one replica: from a deployment and a workload to a report."""

from __future__ import annotations

from collections.abc import Iterable

from engine.config import CacheConfig, ConfigError, SchedulerConfig
from engine.config.cache import TierConfig
from engine.sim.cost import CostModel, Rates
from engine.sim.engine import SimEngine
from engine.sim.memory import Deployment, MemoryPlan, divide_memory, plan_memory, require_room
from engine.sim.report import RunReport, summarise
from engine.sim.speculation import Speculation
from engine.sim.workload import SimRequest, Tell
from prep_common.text import GIB


def scheduler_config(deployment: Deployment, policy: str = "fcfs", long_prefill: int = 0) -> SchedulerConfig:
    return SchedulerConfig(
        max_num_batched_tokens=deployment.max_num_batched_tokens,
        max_num_seqs=min(deployment.max_num_seqs, deployment.max_num_batched_tokens),
        max_model_len=deployment.max_model_len,
        policy=policy,  # type: ignore[arg-type]
        long_prefill_token_threshold=long_prefill,
    )


def make_engine(
    deployment: Deployment,
    *,
    plan: MemoryPlan | None = None,
    rates: Rates | None = None,
    num_blocks: int | None = None,
    enable_prefix_caching: bool = True,
    scheduler: SchedulerConfig | None = None,
    fast_forward: bool = True,
    speculation: Speculation | None = None,
    swap_space: float = 0.0,
    kv_offloading_size: float = 0.0,
) -> SimEngine:
    """Return a replica with the largest KV cache that fits, or `num_blocks` (including the null block).

    `swap_space`, `kv_offloading_size`: GiB of host memory per device, for preempted and for evicted blocks.
    """
    require_room(deployment)
    if num_blocks is None:
        num_blocks = (plan or plan_memory(deployment)).num_blocks
    elif num_blocks > (most := divide_memory(deployment).num_blocks):
        size = deployment.kv_bytes_per_token_per_device * deployment.block_size * num_blocks / GIB
        raise ConfigError(
            f"{num_blocks:,} KV blocks take {size:.1f} GiB per device, and {deployment.hardware.name} has room for "
            f"{most:,} beside {deployment.model.name}; lower the number of blocks, or leave it out to use all"
        )
    tiers = _tiers(deployment, swap_space, kv_offloading_size)
    cache = CacheConfig(
        num_blocks,
        deployment.block_size,
        enable_prefix_caching,
        deployment.kv_cache_dtype,
        sliding_window=None if speculation or tiers.num_host_blocks else deployment.model.sliding_window,
        tiers=tiers,
    )
    cost, scheduler = CostModel(deployment, rates), scheduler or scheduler_config(deployment)
    return SimEngine(scheduler, cache, cost, fast_forward=fast_forward, speculation=speculation)


def _tiers(deployment: Deployment, swap_space: float, kv_offloading_size: float) -> TierConfig:
    block_bytes = deployment.kv_bytes_per_token_per_device * deployment.block_size
    if swap_space < 0 or kv_offloading_size < 0:
        raise ConfigError("swap_space and kv_offloading_size are GiB of host memory and cannot be negative")
    return TierConfig(
        int((swap_space + kv_offloading_size) * GIB // block_bytes),
        swap=swap_space > 0,
        offload=kv_offloading_size > 0,
        block_bytes=round(block_bytes),
    )


def simulate(engine: SimEngine, requests: Iterable[SimRequest], tell: Tell | None = None) -> RunReport:
    """Serve the requests and summarise."""
    engine.run(requests, tell)
    return summarise([engine.recorder], engine.scheduler.kv.pool.num_usable, engine.rejected)
