"""Batching experiments against oracles."""

from __future__ import annotations

from random import Random

import pytest

from quizzes.experiments.registry import BadArguments
from quizzes.oracles import batching as paper
from tests.quizzes.runs import runner

run = runner("batching")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_waits_equal_the_oracle_with_and_without_a_window(seed: int) -> None:
    rng = Random(seed)
    count, slots, window = rng.randint(1, 12), rng.randint(1, 4), rng.randint(0, 9)
    arrivals = sorted(rng.randint(0, 30) for _ in range(count))
    lens = [rng.randint(1, 15) for _ in range(count)]
    result = run("batch_window", slots=slots, window=window, arrivals=arrivals, lens=lens)
    assert result.collected_waits == paper.collected_waits(slots, window, arrivals, lens)
    assert sum(result.continuous_waits) == paper.continuous_total_wait(slots, arrivals, lens)


@pytest.mark.parametrize("seed", range(20))
def test_each_request_ends_when_list_scheduling_predicts(seed: int) -> None:
    rng = Random(seed)
    slots = rng.randint(1, 5)
    lens = [rng.randint(1, 40) for _ in range(rng.randint(1, 15))]
    result = run("static_vs_continuous", slots=slots, lens=lens)
    for which, finished in enumerate(result.continuous_finished):
        assert finished == paper.finish_step(slots, lens, which)


def test_the_gain_follows_the_spread_of_lengths() -> None:
    gains = {
        shape: run("length_distributions", shape=shape).speedup
        for shape in ("fixed", "uniform", "exponential")
    }
    assert gains["fixed"] == 1
    assert gains["fixed"] < gains["uniform"] < gains["exponential"]


@pytest.mark.parametrize("seed", range(20))
def test_a_packed_batch_computes_the_prompts_and_nothing_else(seed: int) -> None:
    rng = Random(seed)
    lens = [rng.randint(1, 500) for _ in range(rng.randint(1, 10))]
    block_size = rng.choice([1, 8, 16, 64])
    result = run("ragged_vs_padded", lens=lens, block_size=block_size)
    assert result.ragged_tokens == sum(lens)
    assert result.query_start_loc == paper.row_starts(lens)
    assert result.unused_slots == paper.last_block_tails(lens, block_size)


def test_the_live_model_gets_one_packed_list_of_tokens_and_gives_the_same_answers() -> None:
    result = run("packed_forward", lens=[5, 40, 1, 22], output=4)
    assert result.input_shape == [68]
    assert result.forward_passes == 1
    assert result.equal_outputs == result.requests == 4


def test_padded_attention_is_exact_and_computes_padding() -> None:
    result = run("padded_attention", lens=[3, 40, 11])
    assert result.right_rows == result.rows == 3
    assert result.useful_pairs == sum(n * (n + 1) // 2 for n in (3, 40, 11))
    assert result.padded_pairs == 3 * 40 * 40


def test_decode_batches_are_padded_to_the_next_captured_size() -> None:
    batches = list(range(1, 520))
    result = run("graph_padding", batches=batches[:256], max_num_seqs=256)
    assert result.padded == [paper.capture_size(rows, 512) for rows in batches[:256]]
    assert result.num_graphs == 51
    above = run("graph_padding", batches=[513], max_num_seqs=256)
    assert above.is_eager == [True] and above.wasted_rows == [0]


def test_the_sizes_of_engine_are_those_of_its_decode_graphs() -> None:
    result = run("graph_padding", batches=[3, 7, 9, 250], sizes="engine")
    assert result.padded == [4, 7, 16, 256]


def test_arguments_that_do_not_match_are_refused_by_name() -> None:
    with pytest.raises(BadArguments, match="one length for each arrival"):
        run("batch_window", arrivals=[0, 1], lens=[3])
