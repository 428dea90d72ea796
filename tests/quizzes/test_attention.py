"""Attention experiments against oracles and direct computation."""

from __future__ import annotations

import pytest

from quizzes.experiments.attention.arithmetic import attention_traffic, mla_absorb, online_softmax, split_kv
from quizzes.experiments.attention.counting import block_lookup, chunked_cost, kv_cache_on_off, table_traffic
from quizzes.experiments.attention.live import chunked_equality
from quizzes.experiments.attention.tensors import kv_layout, paged_vs_dense
from quizzes.experiments.context import Context
from quizzes.experiments.registry import BadArguments


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_paged_attention_equals_dense_attention_through_a_shuffled_table(kv_heads: int) -> None:
    found = paged_vs_dense(Context(seed=3), lens=[37, 64, 5, 1], kv_heads=kv_heads, chunk=3)
    assert found.is_equal and found.gather_difference < 1e-5
    assert found.unmapped_difference > 0.1, "the pool's order must not happen to be right"


def test_a_position_sees_nothing_after_itself() -> None:
    assert paged_vs_dense(Context(), lens=[33], chunk=8).future_leak == 0


def test_heads_that_cannot_be_shared_are_refused() -> None:
    with pytest.raises(BadArguments, match="divisor"):
        paged_vs_dense(Context(), heads=8, kv_heads=3)


def test_the_slot_of_a_position_is_that_of_its_physical_block() -> None:
    found = block_lookup(Context(), prompts=[40, 70, 33], finished=[0], last=60, position=37)
    assert found.slot == found.table[37 // 16] * 16 + 37 % 16
    assert not found.is_contiguous and 0 not in found.table


def test_tiles_give_the_softmax_of_the_whole_row_and_need_the_rescaling() -> None:
    found = online_softmax(Context(seed=1), scores=[0, 3, 9, 1, 600, -600, 2], tile=2)
    assert found.is_exact and found.rescales == 2
    assert found.without_rescale > 1e-3


def test_fused_attention_moves_fewer_bytes_and_does_the_same_arithmetic() -> None:
    found = attention_traffic(queries=1024, keys=1024, tile=128)
    assert found.ratio > 1 and found.score_bytes == 2 * 1024 * 1024
    assert attention_traffic(queries=1, keys=1024).ratio < 1.1, "decode has no score matrix to save"


def test_splits_are_joined_exactly_and_not_by_their_mean() -> None:
    found = split_kv(Context(), lens=[4096, 100], split=256)
    assert found.is_exact and found.mean_of_parts > 1e-3
    assert found.programs_split == 8 * (16 + 1)


def test_without_a_cache_every_token_costs_the_whole_sequence() -> None:
    found = kv_cache_on_off(Context(), prompt=10, generated=5)
    assert (found.with_cache, found.without_cache) == (14, 10 + 11 + 12 + 13 + 14)
    assert found.flop_ratio > 1


def test_chunks_read_the_same_prompt_with_more_passes() -> None:
    whole = chunked_cost(Context(), prompt=1000, chunk=1000)
    parts = chunked_cost(Context(), prompt=1000, chunk=300)
    assert (whole.chunks, parts.chunks) == (1, 4)
    assert parts.pairs == whole.pairs and parts.blocks_at_end == whole.blocks_at_end
    assert parts.kv_reads == 300 + 600 + 900 + 1000 and parts.seconds_ratio > 1


def test_chunks_change_no_logits() -> None:
    assert chunked_equality(Context(), prompt=90, chunk=17, generated=4).is_same


def test_absorbed_projections_give_the_same_output_from_a_smaller_cache() -> None:
    found = mla_absorb(Context())
    assert found.is_equal and found.cached_numbers == 576
    assert found.pair_flops_absorbed > found.pair_flops_expanded


def test_strides_equal_those_of_the_cache() -> None:
    found = kv_layout(num_layers=2, kv_heads=4, block_size=16, head_dim=32)
    assert found.block_bytes == 2 * 2 * 4 * 16 * 32 * 2
    assert found.sectors_along_dim < found.sectors_along_tokens


def test_a_block_table_is_small_compared_with_its_kv() -> None:
    found = table_traffic(context=4096, block_size=16)
    assert found.table_share < 0.01 and found.entries == 256
    assert table_traffic(context=4096, block_size=1).table_share > found.table_share


def test_a_reserved_cache_is_read_in_full_where_the_length_is_not_known() -> None:
    known = table_traffic(context=500)
    padded = table_traffic(context=500, reserved=2000)
    assert known.paged_bytes > known.contiguous_bytes == known.kv_bytes
    assert padded.contiguous_bytes == 4 * padded.kv_bytes
