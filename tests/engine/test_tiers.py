"""Swap and host tier over a real model: the same tokens with and without, and what was copied."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.config import ConfigError, EngineArgs
from engine.config.cache import TierConfig
from engine.engine_core import EngineCore
from engine.resolve import resolve
from engine.trace.reader import TraceReader
from prep_common.text import GIB
from tests.engine.harness import request, run, tokens

MakeEngine = Callable[..., EngineCore]
MIB = 1 / 1024
"""In GiB: what a tiny model's blocks need."""


def workload(count: int = 6, max_tokens: int = 24) -> list:
    rng = random.Random(0)
    prompts = [[rng.randrange(2, 128) for _ in range(rng.randint(9, 30))] for _ in range(count)]
    return [
        request(f"r{i}", prompt, seed=i, temperature=i % 2, max_tokens=max_tokens)
        for i, prompt in enumerate(prompts)
    ]


def small(make_engine: MakeEngine, **settings: object) -> EngineCore:
    """Room for about two of the workload's six requests at their full length."""
    return make_engine(num_gpu_blocks_override=28, max_num_batched_tokens=64, max_num_seqs=6, **settings)


@pytest.mark.parametrize("caching", [True, False])
def test_tokens_are_the_same_with_swap_with_recomputation_and_without_pressure(
    make_engine: MakeEngine, caching: bool
) -> None:
    plain = tokens(run(make_engine(enable_prefix_caching=caching), workload()))
    recomputed = small(make_engine, enable_prefix_caching=caching)
    swapped = small(make_engine, enable_prefix_caching=caching, preemption_mode="swap", swap_space=MIB)
    outputs = run(swapped, workload())
    assert tokens(run(recomputed, workload())) == plain
    assert tokens(outputs) == plain
    assert sum(outs[-1].num_preemptions for outs in outputs.values()) > 0
    assert swapped.scheduler.kv.host.pool.num_used == 0


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8_per_token_head"])
def test_a_block_comes_back_from_the_host_as_it_went(make_engine: MakeEngine, kv_cache_dtype: str) -> None:
    """The scales of an int8 cache are part of its blocks."""
    engine = small(make_engine, preemption_mode="swap", swap_space=MIB, kv_cache_dtype=kv_cache_dtype)
    cache = engine.executor.worker.runner.kv_cache.blocks
    copy = engine.executor.worker.host_pool.copy
    went: dict[int, torch.Tensor] = {}
    came = []

    def spy(out: object) -> None:
        for device_block, host_block in out.copy_out:
            went[host_block] = cache[device_block].clone()
        copy(out)
        for host_block, device_block in out.copy_in:
            came.append(torch.equal(cache[device_block], went[host_block]))

    engine.executor.worker.host_pool.copy = spy
    run(engine, workload())
    assert len(came) > 5 and all(came)


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8_per_token_head"])
def test_an_evicted_prefix_is_found_on_the_host(make_engine: MakeEngine, kv_cache_dtype: str) -> None:
    engine = small(make_engine, kv_offloading_size=MIB, kv_cache_dtype=kv_cache_dtype)
    first = run(engine, [request("first", list(range(2, 42)))])
    for index in range(4):  # 4 x 20 blocks through a cache of 27: the prefix leaves the device
        run(engine, [request(f"other{index}", [3 + index] * 80)])
    again = run(engine, [request("again", list(range(2, 42)))])
    assert again["again"][0].num_cached_tokens == 36
    assert tokens(again)["again"] == tokens(first)["first"]


def test_the_trace_of_a_run_over_all_tiers_verifies(make_engine: MakeEngine, tmp_path: Path) -> None:
    path = tmp_path / "run.itrace"
    disk = {"kv_connector": "DiskConnector", "kv_connector_extra_config": {"path": str(tmp_path / "kv")}}
    tiers = {
        "preemption_mode": "swap",
        "swap_space": MIB,
        "kv_offloading_size": MIB,
        "kv_transfer_config": disk,
    }
    engine = small(make_engine, trace=str(path), **tiers)
    plain = tokens(run(make_engine(), workload()))
    for _ in range(2):
        assert tokens(run(engine, workload())) == plain
        engine.reset_prefix_cache()
    engine.shutdown()
    reader = TraceReader(path)
    assert reader.problems == [] and reader.is_complete
    totals: Counter[str] = Counter()
    for step in map(reader.step, range(reader.num_steps)):
        totals.update(step.counters)
        copied = len(step.copy_out) + len(step.copy_in)
        block_bytes = engine.config.cache.tiers.block_bytes
        moved = step.counters.get("host_bytes_out", 0) + step.counters.get("host_bytes_in", 0)
        assert moved == copied * block_bytes
    for name in ("num_blocks_swapped_out", "num_blocks_offloaded", "num_blocks_copied_in"):
        assert totals[name] > 0, name
    assert totals["kv_bytes_sent"] > 0


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"preemption_mode": "swap", "swap_space": 0}, "swap_space=0 allows none"),
        ({"preemption_mode": "swap", "swap_space": 1e-9}, "holds no KV block"),
        ({"swap_space": 1e6}, "more host memory than"),
        ({"swap_space": -1}, "non-negative"),
        ({"preemption_mode": "swop"}, "one of recompute, swap"),
        ({"kv_offloading_size": "many"}, "non-negative number"),
        ({"kv_offloading_size": 1, "kv_offloading_backend": "lmcache"}, "is not supported"),
        ({"kv_offloading_size": MIB, "enable_prefix_caching": False}, "enable_prefix_caching=False"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    make_engine: MakeEngine, settings: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make_engine(**settings)


def test_swap_space_as_people_type_it() -> None:
    def tiers(free_gib: float = 100, **settings: object) -> TierConfig:
        memory = resolve(EngineArgs.create(model="shop-draft", **settings)).memory
        return TierConfig.sized(memory, 1 << 20, int(free_gib * GIB))

    assert tiers() == TierConfig(block_bytes=1 << 20)
    assert tiers(preemption_mode="swap").num_host_blocks == 4096
    assert tiers(preemption_mode="swap", free_gib=4).num_host_blocks == 1024
    assert tiers(swap_space=2) == TierConfig(2048, swap=True, block_bytes=1 << 20)
    assert tiers(swap_space=2, preemption_mode="recompute").num_host_blocks == 0
    both = tiers(preemption_mode="swap", swap_space=1, kv_offloading_size=0.5)
    assert both == TierConfig(1536, swap=True, offload=True, block_bytes=1 << 20)
