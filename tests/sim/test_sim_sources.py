"""Figures that the simulator takes from a source, compared with the source at three points or more.

Each expected value is worked out here from the published formula, so a constant in place of a variable shows.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from engine.config.scheduler import default_batch_sizes
from engine.sim.cost import CostModel, StepLoad
from engine.sim.hardware import GPUS, LINKS, get_hardware
from engine.sim.interconnect import step_traffic
from engine.sim.memory import Deployment, divide_memory
from engine.sim.models import get_model

LLAMA_70B = {"hidden_size": 8192, "num_layers": 80, "vocab_size": 128_256, "value_bytes": 2}
NCCL_BASE, NCCL_STEP = 6.6e-6, {"nvlink4": 0.6e-6, "pcie4": 1.0e-6, "ib-ndr": 2.7e-6}
"""NCCL src/graph/tuning.cc, ring and LL: baseLatencies; hwLatencies by kind of link."""


@pytest.mark.parametrize("link", NCCL_STEP)
@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_a_ring_takes_nccls_time_for_each_of_its_steps(link: str, ranks: int) -> None:
    all_reduce = NCCL_BASE + 2 * (ranks - 1) * NCCL_STEP[link]
    assert LINKS[link].ring_latency(2 * (ranks - 1)) == pytest.approx(all_reduce)
    said = step_traffic(**LLAMA_70B, num_tokens=32, num_sampled=0, tensor_parallel_size=ranks)
    payload = 32 * 8192 * 2 * 2 * (ranks - 1) / ranks
    expected = 161 * (all_reduce + payload / LINKS[link].bytes_per_s)
    assert said.seconds(LINKS[link]) == pytest.approx(expected)


def test_eight_ranks_over_nvlink_wait_15_microseconds() -> None:
    assert LINKS["nvlink4"].ring_latency(14) == pytest.approx(15.0e-6)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_gather_has_a_step_for_each_other_rank(ranks: int) -> None:
    said = step_traffic(**LLAMA_70B, num_tokens=1, num_sampled=64, tensor_parallel_size=ranks)
    link = LINKS["nvlink4"]
    without = replace(said, gather_bytes=0).seconds(link)
    latency = NCCL_BASE + (ranks - 1) * NCCL_STEP["nvlink4"]
    expected = latency + (ranks - 1) * 64 * 128_256 / ranks * 4 / link.bytes_per_s
    assert said.seconds(link) - without == pytest.approx(expected)


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (8, 1), (4, 2), (1, 4), (16, 2)])
def test_the_cost_model_and_the_calculator_of_messages_agree(tp: int, pp: int) -> None:
    replica = Deployment(get_model("llama-3.1-70b"), get_hardware("h200"), tp=tp, pp=pp)
    cost, said = (
        CostModel(replica),
        step_traffic(
            **LLAMA_70B, num_tokens=32, num_sampled=32, tensor_parallel_size=tp, pipeline_parallel_size=pp
        ),
    )
    found = cost.parts(StepLoad(32, 32, 32, 32_000))["collectives"]
    assert found == said.seconds(replica.hardware.link, cost.rates.link_share)


@pytest.mark.parametrize(("pp", "layers"), [(1, 61), (2, 31), (4, 16), (8, 8)])
def test_the_kv_of_a_pipeline_is_that_of_its_largest_stage(pp: int, layers: int) -> None:
    replica = Deployment(get_model("deepseek-v3"), get_hardware("b200"), tp=8, pp=pp)
    assert replica.kv_bytes_per_token_per_device == layers * (512 + 64) * 2
    assert replica.kv_bytes_per_token == 61 * (512 + 64) * 2 * 8


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (4, 2), (8, 1), (16, 1)])
def test_kv_heads_are_divided_until_each_rank_has_one(tp: int, heads: int) -> None:
    replica = Deployment(get_model("llama-3.1-70b"), get_hardware("h100"), tp=tp)
    assert replica.kv_bytes_per_token_per_device == 80 * 2 * heads * 128 * 2


@pytest.mark.parametrize("tokens", [1, 8, 64])
def test_experts_that_are_read_are_those_that_random_routing_picks(tokens: int) -> None:
    shape, rng = get_model("qwen3-30b-a3b"), Random(0)
    cost = CostModel(Deployment(shape, get_hardware("h100")))
    picked = [
        len({expert for _ in range(tokens) for expert in rng.sample(range(128), 8)}) for _ in range(2000)
    ]
    read = cost.products(StepLoad(tokens, tokens, tokens))[0][0] / 2 - shape.common_params
    assert read / shape.routed_params * 128 == pytest.approx(sum(picked) / len(picked), rel=0.01)


@pytest.mark.parametrize("budget", [16_384, 32_768, 65_536])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_activations_grow_with_the_budget_and_only_their_wide_part_is_divided(budget: int, tp: int) -> None:
    replica = Deployment(
        get_model("llama-3.1-8b"), get_hardware("h100"), tp=tp, max_num_batched_tokens=budget
    )
    assert divide_memory(replica).activations == budget * (3 * 4096 + 2 * 14_336 / tp) * 2


@pytest.mark.parametrize(("name", "sizes"), [("l4", (8192, 256)), ("a100-80", (8192, 256)), ("h100", (16_384, 1024)),
                                             ("b200", (16_384, 1024))])  # fmt: skip
def test_default_batch_sizes_depend_on_the_card_as_in_vllm(name: str, sizes: tuple[int, int]) -> None:
    """vllm/engine/arg_utils.py, get_batch_defaults: from 70 GiB on, but not for an A100."""
    assert default_batch_sizes("cuda", int(GPUS[name].memory_bytes), name) == sizes
