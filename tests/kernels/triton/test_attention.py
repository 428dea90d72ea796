"""Paged attention, interpreted: against the reference in float64, and what its bits may depend on."""

from __future__ import annotations

import pytest
import torch

from kernels.attention_batch import AttentionBatch
from kernels.check.run import check
from kernels.triton_ops import split_kv_decode
from kernels.triton_ops.attention import paged_attention, unsupported_paged_attention
from tests.kernels.triton.rows import expected, inputs_of


@pytest.mark.parametrize(
    "only", ["decode 5 rows, 8/1 heads*", "prefill 3 rows, 4/2 heads of 80*", "*fp8 pages of 32*"]
)
def test_in_fp16(only: str) -> None:
    report = check("paged_attention", "triton", dtype=torch.float16, only=only)
    assert report.ok, report


@pytest.mark.parametrize("most", [64, 2], ids=["splits of 32", "at most 2 splits, which grow"])
def test_rows_of_several_splits(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real splits are longer than what the interpreter can take."""
    monkeypatch.setattr(split_kv_decode, "SPLIT", 32)
    monkeypatch.setattr(split_kv_decode, "MAX_SPLITS", most)
    for seq_len in (32, 33, 64, 65, 100):
        for window in (None, 40):
            inputs = inputs_of([1], [seq_len], max_query_len=1)
            got = paged_attention(*inputs, scale=0.2, sliding_window=window)
            wanted = expected(inputs, scale=0.2, sliding_window=window)
            torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("context", [0, 24, 31, 32, 33])
@pytest.mark.parametrize("window", [None, 1, 32, 33])
def test_around_the_edges_of_tiles_and_query_blocks(context: int, window: int | None) -> None:
    """Some queries see nothing of their program's first tile: for example after 24 tokens with a window of 1."""
    inputs = inputs_of([17], [context + 17])
    got = paged_attention(*inputs, scale=0.2, sliding_window=window)
    wanted = expected(inputs, scale=0.2, sliding_window=window)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-6)


def test_the_number_of_programs_says_who_computes_a_split_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(split_kv_decode, "SPLIT", 32)
    inputs = inputs_of([1, 1], [100, 40], max_query_len=1)
    results = []
    for programs in (1, 8, 1000):
        monkeypatch.setattr(split_kv_decode, "PROGRAMS", programs)
        results.append(paged_attention(*inputs, scale=0.2))
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_a_decoding_row_has_the_same_bits_beside_a_prompt() -> None:
    query, kv, batch = inputs_of([1, 9, 1], [40, 50, 17], max_query_len=9)
    together = paged_attention(query, kv, batch, scale=0.2)
    row = AttentionBatch(batch.query_start_loc[:2], batch.seq_lens[:1], batch.block_table[:1, :3], 1)
    alone = paged_attention(query[:1], kv, row, scale=0.2)
    assert torch.equal(together[:1], alone)


def test_what_is_not_supported_is_named_with_what_is() -> None:
    inputs = inputs_of([1], [5])
    wide = (torch.zeros(1, 4, 320), *inputs[1:])
    assert unsupported_paged_attention(*inputs, scale=1.0) is None
    assert "up to 256" in unsupported_paged_attention(*wide, scale=1.0)
    double = (inputs[0].double(), *inputs[1:])
    assert "float32, float16 and bfloat16 are" in unsupported_paged_attention(*double, scale=1.0)
    odd = (inputs[0], inputs[1].to(torch.uint8), *inputs[2:])
    assert "float8_e4m3fn, int8" in unsupported_paged_attention(*odd, scale=1.0)
