"""The calculator of messages against figures worked out by hand."""

from __future__ import annotations

import pytest

from engine.sim.hardware import LINKS
from engine.sim.interconnect import step_traffic

LLAMA_70B = {"hidden_size": 8192, "num_layers": 80, "vocab_size": 128_256, "value_bytes": 2}


def test_a_decode_step_of_llama_70b_on_eight_ranks() -> None:
    traffic = step_traffic(**LLAMA_70B, num_tokens=32, num_sampled=32, tensor_parallel_size=8)
    assert traffic.num_all_reduces == 161
    assert traffic.all_reduce_bytes == 161 * 32 * 8192 * 2
    assert traffic.gather_bytes == 32 * 16_032 * 4
    assert (traffic.num_boundaries, traffic.seconds(LINKS["nvlink4"])) == (
        0,
        pytest.approx(2.786e-3, rel=0.001),
    )


def test_pipeline_stages_say_little_and_one_process_says_nothing() -> None:
    staged = step_traffic(**LLAMA_70B, num_tokens=32, num_sampled=32, pipeline_parallel_size=2)
    assert (staged.num_boundaries, staged.boundary_bytes) == (1, 2 * 32 * 8192 * 2)
    assert staged.seconds(LINKS["pcie4"]) == pytest.approx(LINKS["pcie4"].latency_s + 1_048_576 / 32e9)
    alone = step_traffic(**LLAMA_70B, num_tokens=32, num_sampled=32)
    assert alone.seconds(LINKS["pcie3"]) == 0


@pytest.mark.parametrize("num_bytes", [0, 1_000, 1_000_000, 100_000_000])
def test_a_link_inside_a_machine_is_faster_than_the_network(num_bytes: int) -> None:
    for inside, between in (("nvlink3", "ib-hdr"), ("nvlink4", "ib-ndr"), ("nvlink4", "ethernet-100g")):
        assert LINKS[inside].seconds(num_bytes) < LINKS[between].seconds(num_bytes)
