"""Performance experiments: rooflines, tiles, sectors, timelines."""

from __future__ import annotations

import pytest

from engine.config import ConfigError
from quizzes.experiments.context import Context
from quizzes.experiments.performance.device import launches, moe_tiles, occupancy
from quizzes.experiments.performance.feeding import host_overlap, tokeniser_load
from quizzes.experiments.performance.fusion import Op, fusion
from quizzes.experiments.performance.host import PARTS, cpu_path
from quizzes.experiments.performance.kernels import coalescing, gemm_tiles, graph_padding, reduction_order
from quizzes.experiments.performance.overlap import step_gap
from quizzes.experiments.performance.products import batch_invariance, gemm_tokens, rows_computed
from quizzes.experiments.performance.roofline import batch_scaling, moe_reads, precision_speedup, roofline
from quizzes.experiments.registry import BadArguments


def test_decode_is_bound_by_memory_and_prefill_by_arithmetic() -> None:
    decode = roofline(rows=8, context=1000)
    prefill = roofline(tokens_per_row=2048, context=0)
    assert (decode.bound, prefill.bound) == ("memory", "compute")
    assert decode.mbu > 0.9 > decode.mfu and prefill.mfu > 0.9


def test_a_small_prefill_is_bound_by_memory_too() -> None:
    assert roofline(tokens_per_row=100, context=0).bound == "memory"


def test_the_knee_is_where_the_intensity_passes_the_ridge() -> None:
    found = batch_scaling()
    below, above = (roofline(rows=rows) for rows in (found.knee - 1, found.knee))
    assert (below.bound, above.bound) == ("memory", "compute")


def test_the_parts_of_a_step_are_its_time() -> None:
    found = roofline(rows=3, context=500)
    assert found.linear_ms + found.head_ms + found.attention_ms == pytest.approx(found.step_ms)


def test_an_unknown_device_is_named_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match="h100"):
        roofline(hardware="h1000")


def test_int4_speeds_up_decode_and_not_prefill() -> None:
    decode = precision_speedup(other="int4", rows=1)
    prefill = precision_speedup(other="int4", tokens_per_row=4096, context=0)
    assert decode.linear > 3.5 and prefill.linear == pytest.approx(1)


def test_a_mixture_needs_more_tokens_to_be_bound_by_arithmetic() -> None:
    assert moe_reads().knee > 3 * batch_scaling().knee
    with pytest.raises(BadArguments, match="no experts"):
        moe_reads(model="llama-3-8b")


def test_tiles_at_the_edge_load_less_and_count_as_whole_tiles() -> None:
    found = gemm_tiles(m=130, n=256, k=64, tile_m=128, tile_n=128, sms=3)
    assert (found.tiles, found.waves) == (4, 2)
    assert found.loaded_mb == pytest.approx(64 * 2 * (2 * (128 + 128) + 2 * (2 + 128)) / 1e6)


def test_neighbouring_lanes_share_sectors() -> None:
    assert coalescing(stride=1).sectors == 4
    assert coalescing(stride=32).sectors == 32
    assert coalescing(stride=0).sectors == 1
    assert coalescing(stride=1, offset=4).sectors == 5


def test_overlap_hides_the_shorter_of_host_and_device() -> None:
    found = host_overlap(host_ms=2, device_ms=10, steps=50)
    assert found.overlapped_ms == pytest.approx(2 + 50 * 10)
    starved = host_overlap(host_ms=10, device_ms=2, steps=50)
    assert starved.overlapped_ms == pytest.approx(50 * 10 + 2)


def test_graphs_round_a_batch_up() -> None:
    assert graph_padding(batches=[1, 3, 9, 512]).sizes == [1, 4, 16, 512]


def test_the_order_of_additions_shows_in_floats_and_not_in_integers() -> None:
    found = reduction_order(Context())
    assert found.distinct > 1 and found.is_exact_in_integers


def test_neighbours_change_no_bit_of_a_result() -> None:
    found = batch_invariance(Context(), neighbours=3, generated=4)
    assert found.is_same_bits and found.same_tokens and found.int8_difference == 0


def test_a_token_among_many_is_cheaper_while_both_are_busy() -> None:
    found = gemm_tokens(many=64, size=512)
    assert found.lo <= found.per_token <= found.hi
    assert found.busy_few > 0.5 and found.busy_many > 0.5
    assert found.intensity_many == 64 * found.intensity_few


def test_the_parts_of_the_cpu_path_add_up() -> None:
    found = cpu_path(Context(), batch=2, output=4)
    assert sum(getattr(found, part) for part in PARTS) + found.other == pytest.approx(1, abs=0.02)
    assert found.steps >= 4 and found.forward > 0


def test_prefill_computes_all_rows_and_the_logits_of_one() -> None:
    plain, scored = (rows_computed(Context(), prompt=30, prompt_logprobs=asked) for asked in (False, True))
    assert (plain.prefill_qkv, plain.prefill_logits) == (30, 1)
    assert scored.prefill_logits == 30
    assert (plain.decode_qkv, plain.decode_keys) == (1, 31)


def test_more_output_leaves_the_device_more_time_to_wait_for_the_tokeniser() -> None:
    short, long = (tokeniser_load(Context(), output=output) for output in (1, 100))
    assert short.device_us < long.device_us and short.lo <= short.tokenise_us <= short.hi


def test_registers_and_shared_memory_limit_what_an_sm_holds() -> None:
    assert occupancy(threads=128, registers=255, shared_kib=0).limited_by == "registers"
    large = occupancy(threads=128, registers=32, shared_kib=100)
    assert (large.blocks, large.limited_by) == (2, "shared memory")
    with pytest.raises(BadArguments, match="163 KiB"):
        occupancy(arch=80, shared_kib=200)


def test_little_loads_in_flight_leave_bandwidth_unused() -> None:
    found = occupancy(threads=128, registers=255, shared_kib=100, bytes_per_thread=16)
    assert found.in_flight == found.blocks * 128 * 16
    assert found.bandwidth_share == pytest.approx(found.in_flight / (3350 * 700 / 132))


def test_small_steps_wait_for_launches_and_large_ones_do_not() -> None:
    small, large = launches(), launches(model="llama-3-8b", rows=1, tokens_per_row=4000, context=0)
    assert small.idle > 0.4 and small.eager_ms == pytest.approx(
        small.host_ms + small.graph_ms / small.kernels
    )
    assert large.speedup == pytest.approx(1, abs=0.01)


def test_tiles_of_a_mixture_never_cross_experts() -> None:
    one = moe_tiles(Context(0), num_experts=8, top_k=8, tokens=20, block_m=16)
    assert (one.tiles, one.used_experts, one.largest, one.useful) == (16, 8, 20, 160 / 256)
    sparse = moe_tiles(Context(0), num_experts=128, top_k=8, tokens=2, block_m=16)
    assert sparse.tiles == sparse.used_experts and sparse.useful < 0.1
    assert moe_tiles(Context(0), skew=1.5, top_k=1).largest > moe_tiles(Context(0), top_k=1).largest
    with pytest.raises(BadArguments, match="cannot choose"):
        moe_tiles(Context(0), num_experts=4, top_k=8)


def test_planning_ahead_hands_over_a_step_before_the_last_one_ends() -> None:
    found = step_gap(Context(), rows=4, output=12)
    assert found.same_tokens
    assert found.planned_ahead == 0.0 < found.planned_ahead_overlapped
    assert min(found.gaps_us) >= 0.0 and len(found.gaps_us) == 10  # 12 tokens, of which the prefill gives one


@pytest.mark.parametrize("op", ["fused_add_rms_norm", "rms_norm", "silu_and_mul", "rotary_embedding"])
def test_a_fused_kernel_moves_its_arguments_and_results_once(op: Op) -> None:
    found = fusion(op=op, tokens=8, width=128, dtype="float32")
    assert found.max_error < 1e-5, "both forms compute the same"
    assert found.launches == len(found.operators) > 1 and found.traffic_ratio > 1


def test_bytes_of_a_fused_and_an_unfused_activation_are_those_on_paper() -> None:
    found = fusion(op="silu_and_mul", tokens=10, width=64, dtype="float32")
    tensor = 10 * 64 * 4
    assert found.operators == ["silu", "mul"]
    assert (found.unfused_read, found.unfused_written) == (3 * tensor, 2 * tensor)
    assert (found.fused_read, found.fused_written) == (2 * tensor, tensor)


def test_a_norm_fused_with_its_residual_reads_two_tensors_and_writes_two() -> None:
    found = fusion(op="fused_add_rms_norm", tokens=10, width=64, dtype="bfloat16")
    tensor = 10 * 64 * 2
    assert (found.fused_read, found.fused_written) == (2 * tensor + 64 * 2, 2 * tensor)
