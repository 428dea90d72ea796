"""Parallelism experiments against counts by hand."""

from __future__ import annotations

import pytest

from engine.sim.hardware import LINKS
from quizzes.experiments.context import Context
from quizzes.experiments.parallelism.plans import bubble, fit, traffic
from quizzes.experiments.parallelism.tensors import experts, live, shards
from quizzes.oracles import parallelism as oracle
from quizzes.question_bank import load_bank


def test_tensor_parallelism_needs_two_all_reduces_per_layer_and_one_for_the_embedding() -> None:
    found = traffic(model="llama-3.1-70b", tp=8)
    assert found.all_reduces == oracle.all_reduces(80)
    assert found.bytes_per_token == oracle.all_reduces(80) * 8192 * 2
    staged = traffic(model="llama-3.1-70b", tp=1, pp=4)
    assert staged.bytes_per_token == oracle.pipeline_bytes_per_token(4, 8192)


@pytest.mark.parametrize(("stages", "requests"), [(4, 1), (4, 2), (4, 9), (3, 2), (1, 1)])
def test_stages_idle_when_requests_are_fewer_than_stages(stages: int, requests: int) -> None:
    found = bubble(Context(), stages=stages, requests=requests)
    assert found.idle_share == pytest.approx(oracle.idle_share(stages, requests))
    assert found.gap_ticks == pytest.approx(stages, rel=0.05)


def test_a_pipeline_empties_after_its_last_stage() -> None:
    for stages, batches in ((2, 1), (4, 8), (3, 7)):
        assert oracle.busy_ticks(stages, batches) == stages + batches - 1


def test_ranks_hold_slices_stages_hold_layers_replicas_hold_all() -> None:
    tensor, pipeline, data = (shards(split=split) for split in ("tensor", "pipeline", "data"))
    assert sum(tensor.matrix_parameters) == sum(pipeline.matrix_parameters) == data.matrix_parameters[0]
    assert data.parameters == [data.whole, data.whole]
    assert (tensor.layers, pipeline.layers) == ([6, 6], oracle.layer_shares(6, 2))
    assert tensor.kv_heads == [2, 2] and tensor.q_rows == [128, 128]


def test_skewed_routing_makes_one_rank_the_slowest() -> None:
    even, skewed = experts(Context()), experts(Context(), skew=8)
    assert even.total_visits == skewed.total_visits == 64 * 4
    assert skewed.imbalance > even.imbalance > 1


def test_a_seven_billion_model_needs_no_second_large_card() -> None:
    assert fit().fits_one
    assert not fit(model="llama-3.1-70b", tp=4).fits_one


@pytest.mark.slow
def test_two_workers_give_the_same_tokens_and_count_every_message() -> None:
    found = live(Context(), max_tokens=6)
    assert found.same_tokens and found.all_reduces_per_layer == 2


def test_the_shares_of_messages_in_the_spoken_answer_are_those_of_the_calculator() -> None:
    """`explain_tp_pp` says "about a quarter of a decode step of 32 rows", "most of it over Ethernet", 14 steps."""
    said = load_bank().question("parallelism.explain_tp_pp").interview
    assert said is not None
    assert "about a quarter of a decode step of 32 rows" in " ".join(said.long.split())
    assert 0.22 < traffic(tokens=32).share < 0.28 and traffic(tokens=32, link="ethernet-100g").share > 0.5
    waiting, moving = (
        161 * LINKS["nvlink4"].ring_latency(14),
        traffic(tokens=32).all_reduce_bytes * 1.75 / 450e9,
    )
    assert waiting > moving
