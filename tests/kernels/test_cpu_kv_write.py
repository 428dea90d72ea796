"""Storing keys and values in C++: the right slot, the right rounding, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.attention_batch import AttentionBatch
from kernels.cpu import build
from tests.kernels.cpu_constants import constant
from tests.kernels.cpu_mutants import FLOATS, assert_noticed, threads

if problem := build.load_library().problem:
    pytest.skip(problem, allow_module_level=True)

from kernels.cpu import attention, kv_write

FP8 = torch.float8_e4m3fn


def stored(values: Tensor, cache_dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Numbers [n], written as the keys of one token with one head and read back from the cache."""
    kv = torch.zeros(2, 2, 1, 1, len(values)).to(cache_dtype)
    key = values.view(1, 1, -1)
    kv_scale = torch.full((2,), scale) if cache_dtype == FP8 else None
    kv_write.reshape_and_cache(key, key, kv, torch.tensor([1]), kv_scale)
    assert torch.equal(kv[1, 0].view(torch.uint8), kv[1, 1].view(torch.uint8))
    return kv[1, 0, 0, 0]


def bits(values: Tensor) -> Tensor:
    return values.view(torch.uint8 if values.itemsize == 1 else torch.int16)


@pytest.mark.parametrize("given", [torch.float16, torch.bfloat16], ids=str)
def test_every_16_bit_number_rounds_to_fp8_as_in_torch(given: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(given)
    every = every[~every.isnan()]
    assert torch.equal(bits(stored(every, FP8)), bits(every.float().clamp(-448, 448).to(FP8)))
    assert stored(torch.tensor([torch.nan], dtype=given), FP8).float().isnan().all()


def test_floats_between_two_codes_of_fp8_go_to_the_even_one() -> None:
    codes = torch.arange(0, 0x7E, dtype=torch.uint8).view(FP8).float()
    following = torch.arange(1, 0x7F, dtype=torch.uint8).view(FP8).float()
    middle = (codes + following) / 2
    for values in (middle, middle.nextafter(codes), middle.nextafter(following)):
        for signed in (values, -values):
            assert torch.equal(bits(stored(signed, FP8)), bits(signed.to(FP8)))


@pytest.mark.parametrize("cache_dtype", [torch.float16, torch.bfloat16], ids=str)
def test_floats_round_to_16_bit_as_in_torch_but_for_subnormal_bf16(cache_dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    every_kind = torch.randint(-(2**31), 2**31, (100_000,), generator=generator, dtype=torch.int64)
    values = every_kind.to(torch.int32).view(torch.float32)
    values = values[~values.isnan()]
    ties = torch.arange(0, 2**15, 7, dtype=torch.int32).mul(2**16).add(2**15).view(torch.float32)
    values = torch.cat((values, ties[ties.isfinite()]))
    expected = values.to(cache_dtype)
    if cache_dtype == torch.bfloat16:
        is_subnormal = values.abs() < torch.finfo(torch.float32).tiny
        assert is_subnormal.any()
        expected = torch.where(is_subnormal, expected * 0, expected)  # a zero of the same sign
    assert torch.equal(bits(stored(values, cache_dtype)), bits(expected))
    assert stored(torch.tensor([torch.nan]), cache_dtype).isnan().all()


@pytest.mark.parametrize("cache_dtype", [*FLOATS, FP8, torch.int8], ids=str)
def test_only_the_slots_are_written_by_any_number_of_threads(cache_dtype: torch.dtype) -> None:
    """1200 tokens with padding between, into one layer of three; a NaN stays with its token."""
    tokens, heads, head_dim, block_size = 1200, 2, 32, 16
    assert tokens * heads * head_dim > constant("kv_write.cpp", "WORTH_THREADS")
    key, value = torch.randn(2, tokens, heads, head_dim)
    key[5], value[7] = torch.nan, torch.nan
    slots = torch.randperm(90 * block_size)[:tokens] + block_size
    slots[::3] = -1
    caches = []
    for count in (1, 2):
        whole = torch.full((91, 3, 2, heads, block_size, head_dim), 7.0).to(cache_dtype)
        scale = torch.full((91, 3, 2, heads, block_size), 5.0) if cache_dtype == torch.int8 else None
        layer_scale = torch.ones(2) if cache_dtype == FP8 else None if scale is None else scale[:, 1]
        with threads(count):
            kv_write.reshape_and_cache(key, value, whole[:, 1], slots, layer_scale)
        caches.append(bits(whole) if cache_dtype != torch.float32 else whole.view(torch.int32))
    assert torch.equal(*caches)
    written = torch.zeros(91 * block_size, dtype=torch.bool)
    written[slots[slots >= 0]] = True
    untouched = torch.full((1,), 7.0).to(cache_dtype).float()
    layers = whole.float().permute(1, 0, 4, 2, 3, 5).flatten(1, 2)
    assert (layers[[0, 2]] == untouched).all()
    assert (layers[1][~written] == untouched).all()
    clean = [token for token in range(tokens) if slots[token] >= 0 and token not in (5, 7)]
    if cache_dtype == torch.int8:
        scales = scale.permute(1, 0, 4, 2, 3).flatten(1, 2)
        assert (scales[[0, 2]] == 5).all() and (scales[1][~written] == 5).all()
        restored = layers[1] * scales[1][..., None]
        tolerance = {"rtol": 0, "atol": 0.6 * float(scales[1][written].nan_to_num().max())}
    else:
        restored = layers[1]
        tolerance = {"rtol": {FP8: 2**-4}.get(cache_dtype, 2**-8), "atol": 2**-9}
    expected = torch.stack((key, value), dim=1)
    torch.testing.assert_close(restored[slots[clean]], expected[clean], **tolerance)


@pytest.mark.parametrize("place", [0, 1, 16, 31])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_nan_anywhere_in_a_head_makes_its_int8_scale_nan(place: int, dtype: torch.dtype) -> None:
    kv, scale = torch.zeros(2, 2, 2, 1, 32, dtype=torch.int8), torch.zeros(2, 2, 2, 1)
    key, value = torch.randn(2, 1, 2, 32).to(dtype)
    key[0, 1, place] = torch.nan
    kv_write.reshape_and_cache(key, value, kv, torch.tensor([1]), scale)
    assert scale[1, 0, 1].isnan().all() and scale.isnan().sum() == 1


def test_no_tokens_and_nothing_but_padding() -> None:
    kv = torch.full((3, 2, 2, 4, 16), 3.0)
    for tokens in (0, 4):
        rows = torch.randn(tokens, 2, 16)
        kv_write.reshape_and_cache(rows, rows, kv, torch.full((tokens,), -1))
        assert (kv == 3).all()


def test_what_the_kernel_does_not_take_is_told_with_what_it_takes() -> None:
    rows, kv, slots = torch.randn(1, 2, 16), torch.zeros(3, 2, 2, 4, 16), torch.tensor([4])
    ask = kv_write.unsupported_reshape_and_cache
    assert ask(rows, rows, kv, slots) is None
    assert ask(rows, rows, kv.double(), slots).startswith("a cache of float64; supported: float32")
    assert ask(rows, rows, kv.to(torch.int8), slots) == "a cache of int8 needs kv_scale"
    assert "a block is not contiguous" in ask(rows, rows, kv.transpose(2, 3), slots)
    assert "dtypes float64" in ask(rows.double(), rows.double(), kv, slots)


def test_a_cache_of_more_than_2_gib_is_written_and_read_in_its_last_block() -> None:
    """Only the pages of the memory that are written exist."""
    block = torch.Size((2, 1, 16, 128))
    last = 2**31 // block.numel() + 3
    large, small = (torch.empty((n, *block), dtype=torch.int8) for n in (last + 1, 2))
    scales = [torch.empty((len(kv), 2, 1, 16)) for kv in (large, small)]
    key, value, query = torch.randn(3, 16, 1, 128)
    found = []
    for kv, scale, number in ((large, scales[0], last), (small, scales[1], 1)):
        kv_write.reshape_and_cache(key, value, kv, number * 16 + torch.arange(16), scale)
        starts, lengths = torch.tensor([0, 1]).int(), torch.tensor([16]).int()
        batch = AttentionBatch(starts, lengths, torch.tensor([[number]]).int())
        found.append(attention.paged_attention(query[:1], kv, batch, scale=0.1, kv_scale=scale))
    assert torch.equal(*found) and torch.equal(large[last], small[1])


FAULTS = {
    "one slot further": ("slot % cache.block_size;", "(slot + 1) % cache.block_size;"),
    "padding is written": ("slots[token] < 0", "slots[token] < -1"),
    "values where keys belong": (
        "kv_dtype, 1, slots[token]",
        "kv_dtype, 0, slots[token]",
    ),
    "int8 with 128 steps": ("peak / 127", "peak / 128"),
    "fp8 multiplied by its scale": ("to_float(x[i]) / scale);", "to_float(x[i]) * scale);"),
    "steps are cut, not rounded": ("std::nearbyint(to_float(x[i]) / scale)", "std::trunc(to_float(x[i]) / scale)"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_notices(fault: str, tmp_path: Path) -> None:
    args = ("reshape_and_cache", kv_write, "_reshape_and_cache", "kv_write.cpp", FAULTS[fault], tmp_path)
    assert_noticed(*args)
