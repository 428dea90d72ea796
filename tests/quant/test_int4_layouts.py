"""AWQ, GPTQ and packed checkpoints, repacked: bit for bit what the formats' owners take them for.

The references here unpack word by word, as AutoAWQ and AutoGPTQ do, and share nothing with the code under test.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from engine.config import ConfigError
from engine.layers.linear import Linear
from engine.quant.layouts import AWQLayout, GPTQLayout, PackedLayout
from engine.quant.matrices import CheckpointMethod, Int4Weight
from engine.quant.rounding import Rounded

ROWS, COLUMNS = 24, 256
AWQ_NIBBLE_OF_COLUMN = {0: 0, 2: 1, 4: 2, 6: 3, 1: 4, 3: 5, 5: 6, 7: 7}


def groups(group: int) -> tuple[int, int]:
    """(group size, number of groups)"""
    size = COLUMNS if group == -1 else group
    return size, COLUMNS // size


def random_words(*shape: int) -> Tensor:
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int64).to(torch.int32)


def nibble(words: Tensor, row: int, column: int, place: int) -> int:
    return (words[row, column].item() >> (4 * place)) & 15


def byte(words: Tensor, row: int, column: int, place: int) -> int:
    return (words[row, column].item() >> (8 * place)) & 255


def each(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    return ((row, column) for row in range(rows) for column in range(columns))


def awq_reference(tensors: dict[str, Tensor], group: int) -> Tensor:
    """[N, K] in fp32, from AutoAWQ's tensors."""
    weight = torch.empty(ROWS, COLUMNS)
    for n, k in each(ROWS, COLUMNS):
        place, g = AWQ_NIBBLE_OF_COLUMN[n % 8], k // group
        q, zero = nibble(tensors["qweight"], k, n // 8, place), nibble(tensors["qzeros"], g, n // 8, place)
        weight[n, k] = (q - zero) * tensors["scales"][g, n].float()
    return weight


def gptq_reference(tensors: dict[str, Tensor], offset: int) -> Tensor:
    """[N, K] in fp32, from AutoGPTQ's tensors; offset 1 for version 1."""
    weight = torch.empty(ROWS, COLUMNS)
    for n, k in each(ROWS, COLUMNS):
        g = int(tensors["g_idx"][k])
        zero = (nibble(tensors["qzeros"], g, n // 8, n % 8) + offset) % 16
        weight[n, k] = (nibble(tensors["qweight"], k // 8, n, k % 8) - zero) * tensors["scales"][g, n].float()
    return weight


@pytest.mark.parametrize("group", [32, 64, 128, -1])
def test_awq_means_what_autoawq_reads(group: int) -> None:
    torch.manual_seed(group)
    size, count = groups(group)
    tensors = {
        "qweight": random_words(COLUMNS, ROWS // 8),
        "qzeros": random_words(count, ROWS // 8),
        "scales": torch.rand(count, ROWS).half(),
    }
    weight = AWQLayout(size).unpack(tensors, ROWS, COLUMNS)
    assert torch.equal(weight.dequantise(), awq_reference(tensors, size))
    assert weight.scale.dtype == torch.float16, "fp16 scales stay fp16"


@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("act_order", [False, True])
def test_gptq_means_what_autogptq_reads(group: int, version: int, act_order: bool) -> None:
    """Random zero points hold 15 as well, which version 1 wraps around to 0."""
    torch.manual_seed(group + version)
    size, count = groups(group)
    g_idx = torch.arange(COLUMNS) // size
    tensors = {
        "qweight": random_words(COLUMNS // 8, ROWS),
        "qzeros": random_words(count, ROWS // 8),
        "scales": torch.rand(count, ROWS).half(),
        "g_idx": (g_idx[torch.randperm(COLUMNS)] if act_order else g_idx).int(),
    }
    offset = 1 if version == 1 else 0
    weight = GPTQLayout(size, offset).unpack(tensors, ROWS, COLUMNS)
    assert torch.equal(weight.dequantise(), gptq_reference(tensors, offset))
    assert (weight.permutation is not None) == (act_order and group != -1)


@pytest.mark.parametrize("group", [32, -1])
@pytest.mark.parametrize("symmetric", [True, False])
def test_packed_means_what_compressed_tensors_reads(group: int, symmetric: bool) -> None:
    size, count = groups(group)
    tensors = {
        "weight_packed": random_words(ROWS, COLUMNS // 8),
        "weight_scale": torch.rand(ROWS, count).bfloat16(),
        "weight_shape": torch.tensor([ROWS, COLUMNS]),
    }
    if not symmetric:
        tensors["weight_zero_point"] = random_words(ROWS // 8, count)
    expected = torch.empty(ROWS, COLUMNS)
    for n, k in each(ROWS, COLUMNS):
        q = nibble(tensors["weight_packed"], n, k // 8, k % 8) - 8
        zero = 0 if symmetric else nibble(tensors["weight_zero_point"], n // 8, k // size, n % 8) - 8
        expected[n, k] = (q - zero) * tensors["weight_scale"][n, k // size].float()
    assert torch.equal(PackedLayout(size, symmetric).unpack(tensors, ROWS, COLUMNS).dequantise(), expected)


@pytest.mark.parametrize("version", [1, 2])
def test_gptq_with_8_bits_is_bit_for_bit_the_same(version: int) -> None:
    """Kept as high and low nibbles side by side; with fp16 scales both products and their sum are exact in fp32."""
    offset = 1 if version == 1 else 0
    tensors = {
        "qweight": random_words(COLUMNS // 4, ROWS),
        "qzeros": random_words(COLUMNS // 64, ROWS // 4),
        "scales": torch.rand(COLUMNS // 64, ROWS).half(),
        "g_idx": (torch.arange(COLUMNS) // 64)[torch.randperm(COLUMNS)].int(),
    }
    expected = torch.empty(ROWS, COLUMNS)
    for n, k in each(ROWS, COLUMNS):
        g = int(tensors["g_idx"][k])
        zero = (byte(tensors["qzeros"], g, n // 4, n % 4) + offset) % 256
        expected[n, k] = (byte(tensors["qweight"], k // 4, n, k % 4) - zero) * tensors["scales"][g, n].float()
    weight = GPTQLayout(64, offset, bits=8).unpack(tensors, ROWS, COLUMNS)
    assert torch.equal(weight.dequantise(), expected)
    x = torch.randn(3, COLUMNS)
    torch.testing.assert_close(weight.prepared().multiply(x, None), x @ expected.T, rtol=1e-4, atol=2e-2)


@pytest.mark.parametrize("symmetric", [True, False])
def test_packed_with_8_bits_is_bit_for_bit_the_same(symmetric: bool) -> None:
    tensors = {
        "weight_packed": random_words(ROWS, COLUMNS // 4),
        "weight_scale": torch.rand(ROWS, 4).half(),
        "weight_shape": torch.tensor([ROWS, COLUMNS]),
    }
    if not symmetric:
        tensors["weight_zero_point"] = random_words(ROWS // 4, 4)
    expected = torch.empty(ROWS, COLUMNS)
    for n, k in each(ROWS, COLUMNS):
        q = byte(tensors["weight_packed"], n, k // 4, k % 4) - 128
        zero = 0 if symmetric else byte(tensors["weight_zero_point"], n // 4, k // 64, n % 4) - 128
        expected[n, k] = (q - zero) * tensors["weight_scale"][n, k // 64].float()
    weight = PackedLayout(64, symmetric, bits=8).unpack(tensors, ROWS, COLUMNS)
    assert torch.equal(weight.dequantise(), expected)


@pytest.mark.parametrize("group", [32, 128])
def test_writing_and_reading_gives_the_same_numbers(group: int) -> None:
    steps = torch.randint(0, 16, (ROWS, COLUMNS), dtype=torch.uint8)
    scale = torch.rand(ROWS, COLUMNS // group).half()
    zero = torch.randint(0, 16, scale.shape, dtype=torch.uint8)
    g_idx = torch.arange(COLUMNS) // group
    expected = Int4Weight.pack(steps, scale, zero).dequantise()
    rounded = Rounded(steps, scale, zero, g_idx)
    for layout in (
        AWQLayout(group),
        GPTQLayout(group, 1),
        GPTQLayout(group, 0),
        PackedLayout(group, symmetric=False),
    ):
        again = layout.unpack(layout.pack(rounded), ROWS, COLUMNS)
        assert torch.equal(again.dequantise(), expected), layout


def test_a_g_idx_with_unequal_groups_is_refused() -> None:
    tensors = GPTQLayout(32, 1).empty(ROWS, COLUMNS)
    tensors["g_idx"] = (torch.arange(COLUMNS) // 64).int()
    with pytest.raises(ConfigError, match="does not put 32 of 256 columns into each group"):
        GPTQLayout(32, 1).unpack(tensors, ROWS, COLUMNS)


def filled(layer: Linear, orders: list[Tensor]) -> Tensor:
    """Fill a GPTQ layer with random numbers, each part's columns in its own order: the dense matrix."""
    layer.create_weights()
    references = []
    for (_, tensors), order in zip(layer.stored.items(), orders, strict=True):
        tensors["qweight"].copy_(random_words(*tensors["qweight"].shape))
        tensors["qzeros"].copy_(random_words(*tensors["qzeros"].shape))
        tensors["scales"].copy_(torch.rand(tensors["scales"].shape).half())
        tensors["g_idx"].copy_((torch.arange(COLUMNS) // 64)[order])
        references.append(gptq_reference(tensors, 1))
    layer.finish_loading()
    return torch.cat(references)


@pytest.mark.parametrize("orders_agree", [True, False])
def test_merged_parts_keep_their_own_order_of_columns(orders_agree: bool) -> None:
    orders = [torch.randperm(COLUMNS) for _ in range(3)]
    layer = Linear(COLUMNS, dict.fromkeys(("q", "k", "v"), ROWS), bias=True, dtype=torch.float32)
    layer.method = CheckpointMethod(GPTQLayout(64, 1))
    weight = filled(layer, orders[:1] * 3 if orders_agree else orders)
    assert len(layer.matrices) == (1 if orders_agree else 3)
    assert not layer.stored, "the checkpoint's tensors are gone once they are repacked"
    layer.bias.copy_(torch.randn(3 * ROWS))
    x = torch.randn(5, COLUMNS)
    torch.testing.assert_close(layer(x), x @ weight.T + layer.bias, rtol=1e-4, atol=1e-3)
