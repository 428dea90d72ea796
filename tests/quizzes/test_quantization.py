"""Quantisation experiments: grids, outliers, scales, methods."""

from __future__ import annotations

import pytest

from engine.quant.layouts import AWQ_ORDER
from quizzes.experiments.context import Context
from quizzes.experiments.quantization.effective_bits import effective_bits
from quizzes.experiments.quantization.grids import (
    awq_scales,
    fp4_block,
    fp8_round,
    int8_grid,
    kv_bytes,
    kv_scales,
)
from quizzes.experiments.quantization.layouts import Layout, marlin_tile, packed_layout
from quizzes.experiments.quantization.shop import answers, calibration_shift, int4_methods, outliers
from quizzes.experiments.registry import BadArguments


def test_one_outlier_sends_small_numbers_to_zero() -> None:
    assert int8_grid(values=[0.1, 0.2, 0.3]).zeros == 0
    assert int8_grid(values=[0.1, 0.2, 0.3, 100.0]).zeros == 3


def test_fp8_keeps_relative_precision_and_saturates() -> None:
    found = fp8_round(values=[0.3, 300.0, 1000.0])
    assert found.saturated == 1 and found.stored[2] == 448
    assert found.worst_relative <= 1 / 16


def test_nvfp4_puts_the_largest_weight_on_the_grid() -> None:
    found = fp4_block(values=[0.7, -1.9, 3.3, 5.0])
    assert found.nv_restored[3] == pytest.approx(5.0) and found.mx_restored[3] == 4.0
    assert found.nv_error < found.mx_error


def test_with_an_outlier_channel_one_scale_per_token_is_not_enough() -> None:
    calm, loud = outliers(factor=1), outliers(factor=64)
    assert loud.w8a8_token > 5 * calm.w8a8_token
    assert loud.llm_int8 < loud.w8a8_token / 3 and loud.smoothquant < loud.w8a8_token / 3
    assert loud.llm_int8 == pytest.approx(calm.llm_int8, rel=0.1), "outliers and their weights stay floats"
    assert loud.w8a8_tensor > loud.w8a8_token
    assert loud.fp8 == pytest.approx(calm.fp8, rel=0.1), "a floating grid does not care"


def test_finer_scales_leave_smaller_errors_in_the_cache() -> None:
    found = kv_scales(Context())
    assert found.order == ["int8_token_head", "int8_token", "int8_tensor"] and found.saturated > 0


def test_int8_with_scales_is_not_quite_half() -> None:
    found = kv_bytes(head_dim=128)
    assert found.fp8_ratio == 2 and found.int8_ratio == pytest.approx(256 / 132)


@pytest.mark.slow
def test_calibrated_methods_beat_rounding_on_their_own_language() -> None:
    found = int4_methods(samples=6)
    assert found.order[-1] == "rtn" and found.gptq < found.rtn


@pytest.mark.slow
def test_the_wrong_language_costs_gptq_something_and_rtn_nothing() -> None:
    assert calibration_shift(method="rtn", samples=4, cases=0).gap == 0
    assert calibration_shift(method="gptq", samples=6, cases=0).gap > 0.02


def test_what_stays_float_is_counted() -> None:
    found = effective_bits(model="llama-3-8b", method="awq")
    assert found.matrix_bits == pytest.approx(4 + 20 / 128)
    assert found.file_bits > 5.5
    with pytest.raises(BadArguments, match="dense"):
        effective_bits(model="mixtral-8x7b")


def test_eight_bit_caches_leave_the_answers_as_they_were() -> None:
    found = answers(Context(), quantization="none", kv_cache_dtype="int8_per_token_head", cases=12)
    assert found.right == found.right_float > 0 and found.kv_bytes_ratio > 3


def test_awq_protects_the_channel_with_loud_inputs() -> None:
    found = awq_scales(Context())
    assert found.protected == found.loud_channel and found.gain > 1 and found.changes_with_inputs
    assert awq_scales(Context(), loud=1).protected != found.loud_channel


@pytest.mark.parametrize(
    ("layout", "rows_in_word", "columns_in_word"),
    [
        ("awq", [AWQ_ORDER[i] for i in range(8)], [0] * 8),
        ("gptq", [0] * 8, list(range(8))),
        ("compressed-tensors", [0] * 8, list(range(8))),
        ("engine", [0] * 8, list(range(8))),
        ("marlin", [0, 0, 8, 8] * 2, [0, 8, 0, 8, 1, 9, 1, 9]),
    ],
)
def test_a_word_holds_the_weights_that_the_layout_describes(
    layout: Layout, rows_in_word: list[int], columns_in_word: list[int]
) -> None:
    rows, columns = (64, 16) if layout == "marlin" else (16, 24)
    found = packed_layout(layout=layout, rows=rows, columns=columns)
    assert (found.rows_in_word, found.columns_in_word) == (rows_in_word, columns_in_word)
    assert found.is_permutation and found.words == rows * columns // 8
    assert found.in_order == (layout not in ("awq", "marlin"))
    assert (found.neighbours == "both") == (layout == "marlin")


def test_the_next_word_continues_along_the_outputs_in_gptq_and_along_the_inputs_elsewhere() -> None:
    second = {
        layout: packed_layout(layout=layout, rows=16, columns=24, word=1) for layout in ("gptq", "engine")
    }
    assert (second["gptq"].rows_in_word, second["gptq"].columns_in_word) == ([1] * 8, list(range(8)))
    assert (second["engine"].rows_in_word, second["engine"].columns_in_word) == ([0] * 8, list(range(8, 16)))
    with pytest.raises(BadArguments, match="from 0 to 47"):
        packed_layout(rows=16, columns=24, word=48)
    with pytest.raises(BadArguments, match="multiples of 64 and columns in multiples of 16, got 16 x 16"):
        packed_layout(layout="marlin")


@pytest.mark.parametrize(("lane", "instruction", "tile"), [(0, 0, 0), (5, 3, 1), (31, 7, 3), (18, 4, 2)])
def test_a_lane_of_marlin_holds_the_b_fragment_of_its_instruction(
    lane: int, instruction: int, tile: int
) -> None:
    """PTX ISA, mma.m16n8k16: b0 to b3 are the inputs 2 (lane % 4) + 0, 1, 8, 9 of the output lane / 4."""
    found = marlin_tile(rows=128, columns=32, lane=lane, instruction=instruction, tile=tile)
    along_inputs, along_outputs = divmod(tile, 128 // 64)
    assert found.inputs_of_lane == [16 * along_inputs + 2 * (lane % 4) + place for place in (0, 1, 8, 9)]
    assert found.outputs_of_lane == [64 * along_outputs + 8 * instruction + lane // 4] * 4
    assert found.words_of_lane == [128 * tile + 4 * lane + word for word in range(4)]
    assert found.tiles == 4 and found.is_round_trip
