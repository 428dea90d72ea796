"""Paged attention in C++: online softmax over pages, and what may not change a query's bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.attention_batch import AttentionBatch
from kernels.cpu import build
from kernels.reference import attention as reference
from tests.kernels.cpu_constants import constant
from tests.kernels.cpu_mutants import FLOATS, assert_noticed, same_with_any_number_of_threads

if problem := build.load_library().problem:
    pytest.skip(problem, allow_module_level=True)

from kernels.cpu import attention
from kernels.cpu.linear import _LANES as LANES

CHUNK = 4 * LANES
STALE = 2**20


def batch(query_start_loc: list[int], seq_lens: list[int], table: Tensor) -> AttentionBatch:
    starts, lens = (torch.tensor(values, dtype=torch.int32) for values in (query_start_loc, seq_lens))
    return AttentionBatch(starts, lens, table)


class Request:
    """One request in pages of its own, scattered; slots after its end hold NaN."""

    def __init__(
        self,
        length: int,
        *,
        kv_heads: int = 2,
        group: int = 2,
        head_dim: int = 32,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.length, self.block_size, self.scale = length, block_size, head_dim**-0.5
        num_blocks = -(-length // block_size)
        shape = num_blocks + 3, 2, kv_heads, block_size, head_dim
        self.kv = torch.full(shape, torch.nan, dtype=dtype)
        self.blocks = torch.randperm(num_blocks + 2)[:num_blocks] + 1
        self.query = torch.randn(length, kv_heads * group, head_dim).to(dtype)
        for position in range(length):
            block, slot = self.blocks[position // block_size], position % block_size
            self.kv[block, :, :, slot] = torch.randn(2, kv_heads, head_dim)
        table = torch.full((1, num_blocks + 2), STALE, dtype=torch.int32)
        table[0, :num_blocks] = self.blocks
        self.table = table

    def attend(self, start: int, end: int, window: int | None = None) -> Tensor:
        """Queries start .. end - 1, when so many tokens are in the cache."""
        return attention.paged_attention(
            self.query[start:end],
            self.kv,
            batch([0, end - start], [end], self.table),
            scale=self.scale,
            sliding_window=window,
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [None, 1, 40, CHUNK])
@pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7])
def test_a_prompt_in_one_piece_in_chunks_or_token_by_token_gives_the_same_bits(
    length: int, window: int | None, dtype: torch.dtype
) -> None:
    request = Request(length, dtype=dtype)
    whole = request.attend(0, length, window)
    decoded = torch.cat([request.attend(i, i + 1, window) for i in range(length)])
    assert torch.equal(decoded, whole)
    for piece in (3, 17, 50):
        chunks = [request.attend(i, min(i + piece, length), window) for i in range(0, length, piece)]
        assert torch.equal(torch.cat(chunks), whole), piece


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("block_size", [1, 4, 16, 32, 48])
def test_the_size_of_pages_changes_nothing(block_size: int, dtype: torch.dtype) -> None:
    """A vector of keys that lies in one page is read in another way than one from several pages."""
    torch.manual_seed(0)
    request = Request(150, block_size=block_size, dtype=dtype)
    paged = Request(150, dtype=dtype)
    dense = request.kv[request.blocks].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :150]
    for position in range(150):
        paged.kv[paged.blocks[position // 16], :, :, position % 16] = dense[:, :, position]
    paged.query = request.query
    for start in (0, 146, 149):
        assert torch.equal(request.attend(start, 150), paged.attend(start, 150)), start


def assert_rows_are_the_same_alone(
    requests: list[Request], query_lens: list[int], query: Tensor, kv: Tensor, kv_scale: Tensor | None = None
) -> None:
    """kv: the caches of all requests, one behind the other."""
    offsets = torch.tensor([0, *(len(request.kv) for request in requests)]).cumsum(0)
    table = torch.full((len(requests), 24), STALE, dtype=torch.int32)
    for row, request in enumerate(requests):
        table[row, : len(request.blocks)] = request.blocks + offsets[row]
    starts, lengths = torch.tensor([0, *query_lens]).cumsum(0).tolist(), [each.length for each in requests]

    def attend(tokens: slice, rows: AttentionBatch) -> Tensor:
        return attention.paged_attention(query[tokens], kv, rows, scale=0.2, kv_scale=kv_scale)

    out = same_with_any_number_of_threads(lambda: attend(slice(None), batch(starts, lengths, table)))
    for row in range(len(requests)):
        own = slice(starts[row], starts[row + 1])
        one = batch([0, query_lens[row]], [lengths[row]], table[row : row + 1])
        assert torch.equal(attend(own, one), out[own]), row


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_row_is_the_same_alone_and_in_a_batch_for_all_threads(dtype: torch.dtype) -> None:
    requests = [Request(length) for length in (1, 16, 17, 63, 64, 65, 200, 130)]
    query_lens = [1, 1, 1, 63, 5, 65, 1, 33]
    query = torch.cat([r.query[r.length - n :] for r, n in zip(requests, query_lens, strict=True)])
    kv = torch.cat([request.kv for request in requests])
    assert_rows_are_the_same_alone(requests, query_lens, query.to(dtype), kv.to(dtype))


@pytest.mark.parametrize("cache", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8], ids=str)
def test_rows_of_a_large_batch_are_the_same_alone(cache: torch.dtype) -> None:
    """Many rows: each is one task with all of its heads. Alone, a head is a task."""
    requests, query_lens = (
        [Request(5 + 17 * row, group=1) for row in range(20)],
        [1 + row % 3 for row in range(20)],
    )
    assert sum(request.length for request in requests) > constant("attention.cpp", "WORTH_THREADS")
    kv, kv_scale = torch.cat([request.kv for request in requests]).nan_to_num(), None
    if cache == torch.int8:
        kv, kv_scale = kv * 40, torch.rand(kv.shape[:4]) / 40
    elif cache == torch.float8_e4m3fn:
        kv_scale = torch.tensor([0.5, 2.0])
    query = torch.randn(sum(query_lens), 2, 32).to(cache if cache == torch.bfloat16 else torch.float32)
    assert_rows_are_the_same_alone(requests, query_lens, query, kv.to(cache), kv_scale)


@pytest.mark.parametrize("group", [1, 6, 8])
def test_many_rows_of_a_model_with_as_many_heads_as_a_task_holds_and_with_more(group: int) -> None:
    heads = 8
    assert constant("attention.cpp", "MAX_QUERIES") == 6 * heads
    requests = [Request(5 + 17 * row, kv_heads=heads, group=group) for row in range(20)]
    query, kv = torch.randn(20, heads * group, 32), torch.cat([request.kv for request in requests])
    assert_rows_are_the_same_alone(requests, [1] * 20, query, kv)


@pytest.mark.parametrize("more", [0, 1])
def test_more_tasks_than_are_taken_one_by_one(more: int) -> None:
    """As many rows as still are one task for each head of the cache."""
    rows = constant("attention.cpp", "MANY_ROWS") - 1
    heads = constant("attention.cpp", "MANY_TASKS") // rows + more
    assert (rows * heads > constant("attention.cpp", "MANY_TASKS")) == bool(more)
    requests = [Request(3 + 11 * row, kv_heads=heads, group=1, head_dim=16) for row in range(rows)]
    query, kv = torch.randn(rows, heads, 16), torch.cat([request.kv for request in requests])
    assert_rows_are_the_same_alone(requests, [1] * rows, query, kv)


def test_a_nan_in_another_requests_pages_or_in_unused_slots_does_not_matter() -> None:
    """`Request` fills what it does not own with NaN; here a second request is NaN from end to end."""
    clean, spoiled = Request(37), Request(70)
    spoiled.kv[:] = torch.nan
    kv = torch.cat((clean.kv, spoiled.kv))
    table = torch.full((2, 7), STALE, dtype=torch.int32)
    table[0, :3] = clean.blocks
    table[1, :5] = spoiled.blocks + len(clean.kv)
    query = torch.cat((clean.query[-1:], spoiled.query[-1:]))
    out = attention.paged_attention(query, kv, batch([0, 1, 2], [37, 70], table), scale=clean.scale)
    assert torch.equal(out[:1], clean.attend(36, 37))
    assert out[1].isnan().all()


@pytest.mark.parametrize("length", [20, 90])
def test_a_nan_in_a_query_stays_with_that_query_and_head(length: int) -> None:
    request = Request(length)
    expected = request.attend(0, length)
    request.query[7, 2, 5] = torch.nan
    found = request.attend(0, length)
    assert found[7, 2].isnan().all()
    found[7, 2] = expected[7, 2]
    assert torch.equal(found, expected)


def test_padding_tokens_get_zeros_and_rows_without_queries_nothing() -> None:
    request = Request(20)
    query = torch.cat((request.query[-2:], torch.full((3, 4, 32), torch.nan)))
    table = torch.cat((request.table, torch.full_like(request.table, STALE)))
    out = attention.paged_attention(query, request.kv, batch([0, 2, 2], [20, 0], table), scale=request.scale)
    assert torch.equal(out[:2], request.attend(18, 20)) and (out[2:] == 0).all()
    without_rows = batch([0], [], table[:0])
    padding = attention.paged_attention(query[2:], request.kv, without_rows, scale=1.0)
    assert padding.shape == (3, 4, 32) and (padding == 0).all()
    empty = attention.paged_attention(query[:0], request.kv, without_rows, scale=1.0)
    assert empty.shape == (0, 4, 32)


@pytest.mark.parametrize("spread", [1e-3, 1.0, 30.0, 3000.0])
def test_softmax_holds_for_flat_and_for_sharp_scores(spread: float) -> None:
    """A peak that moves from chunk to chunk is what the factor exp(m - m') is for."""
    request = Request(5 * CHUNK)
    request.query *= spread
    expected = reference.paged_attention(
        request.query[-1:].double(),
        request.kv.double(),
        batch([0, 1], [request.length], request.table),
        scale=request.scale,
    )
    found = request.attend(request.length - 1, request.length)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=2e-6 * max(1.0, spread))


def test_what_the_kernel_does_not_take_is_told_with_what_it_takes() -> None:
    def ask(head_dim: int = 32, group: int = 1, dtype: torch.dtype = torch.float32) -> str | None:
        query, kv = torch.zeros(1, group, head_dim), torch.zeros(2, 2, 1, 4, head_dim, dtype=dtype)
        row = batch([0, 1], [1], torch.tensor([[1]], dtype=torch.int32))
        return attention.unsupported_paged_attention(query, kv, row, scale=1.0)

    assert ask() is None and ask(head_dim=1, group=100) is None
    assert "a cache of float64; supported: float32" in ask(dtype=torch.float64)
    assert ask(dtype=torch.int8) == "a cache of int8 needs kv_scale"


SHAPES = [(1, 1), (2, 3), (8, 2), (8, 48), (LANES, 49), (LANES + 1, 5), (20, 1), (24, 7), (64, 7), (80, 100)]
"""(head_dim, query heads for one kv head): less than a vector, parts of one, more queries than a task usually has."""


@pytest.mark.parametrize("head_dim, group", SHAPES)
def test_every_head_size_and_group_agrees_with_the_reference(head_dim: int, group: int) -> None:
    request = Request(CHUNK + 9, group=group, head_dim=head_dim)
    row = batch([0, 3], [request.length], request.table)
    expected = reference.paged_attention(request.query[-3:], request.kv, row, scale=request.scale)
    torch.testing.assert_close(
        request.attend(request.length - 3, request.length), expected, rtol=0, atol=2e-6
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("head_dim, group", SHAPES)
def test_every_head_size_and_group_gives_the_same_bits_in_chunks(
    head_dim: int, group: int, window: int | None, dtype: torch.dtype
) -> None:
    request = Request(CHUNK + 9, group=group, head_dim=head_dim, dtype=dtype)
    whole = request.attend(0, request.length, window)
    for piece in (1, 7, 33):
        cuts = range(0, request.length, piece)
        chunks = [request.attend(i, min(i + piece, request.length), window) for i in cuts]
        assert torch.equal(torch.cat(chunks), whole), piece


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int8], ids=str)
def test_a_head_of_20_in_a_small_cache_agrees_with_the_reference(dtype: torch.dtype) -> None:
    length, kv_scale = CHUNK + 9, None
    kv = torch.randn(length // 16 + 2, 2, 2, 16, 20)
    if dtype == torch.int8:
        kv, kv_scale = kv * 40, torch.rand(kv.shape[:4]) / 40
    elif dtype == torch.float8_e4m3fn:
        kv_scale = torch.tensor([0.5, 2.0])
    row = batch([0, 5], [length], torch.randperm(len(kv) - 1)[None].int() + 1)
    arguments = (torch.randn(5, 6, 20), kv.to(dtype), row)
    expected = reference.paged_attention(*arguments, scale=0.2, kv_scale=kv_scale)
    found = attention.paged_attention(*arguments, scale=0.2, kv_scale=kv_scale)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


FAULTS = {
    "the last slot of a page is not reached": (
        "slot++, key += cache.head_dim)",
        "slot++, key += slot + 1 < cache.block_size ? cache.head_dim : 0)",
    ),
    "the first page again and again": ("i < count; slot = 0, block++", "i < count; slot = 0"),
    "no causal mask": ("std::min(chunk.count, position + 1 - chunk.first)", "chunk.count"),
    "the mask one too wide": ("position + 1 - chunk.first", "position + 2 - chunk.first"),
    "the window one too wide": (
        "position - batch.window + 1 - chunk.first",
        "position - batch.window - chunk.first",
    ),
    "a wrong scale": ("to_float(from[d]) * batch.scale", "to_float(from[d]) * batch.scale * 1.01f"),
    "nothing rescaled to the new peak": ("exp_nonpositive(before - now)", "splat(1)"),
    "mass not rescaled to the new peak": ("* scratch.factors[i];", ";"),
    "the first kv head's keys for all heads of a task": (
        "slots_(slots), head_(head)",
        "slots_(slots), head_(0)",
    ),
    "few queries take words from the first key": ("from + lane * head_dim", "from"),
    "the first kv head's queries for all": (
        "+\n                        head * batch.head_stride",
        "+\n                        (query % group) * batch.head_stride",
    ),
    "queries lie densely": (") * batch.token_stride", ") * batch.heads * head_dim"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_notices(fault: str, tmp_path: Path) -> None:
    args = ("paged_attention", attention, "_paged_attention", "attention.cpp", FAULTS[fault], tmp_path)
    assert_noticed(*args, size="small" if "rescaled" in fault else "tiny")
