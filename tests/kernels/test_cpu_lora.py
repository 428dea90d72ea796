"""Low-rank adapters in C++: every size beyond its tiles, and what may not change a token's bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.cpu import build
from kernels.reference import lora as reference
from tests.kernels.cpu_mutants import assert_noticed, same_with_any_number_of_threads

if problem := build.load_library().problem:
    pytest.skip(problem, allow_module_level=True)

from kernels.cpu import lora
from kernels.cpu.linear import _LANES as LANES
from tests.kernels.cpu_constants import around, constant

OPS = ("lora_shrink", "lora_expand")
STEP = constant("lora.cpp", "COLUMN_VECTORS") * LANES


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def ids(tokens: int, adapters: int = 3) -> Tensor:
    """Adapters in no order, some tokens without one."""
    found = torch.randint(-1, adapters, (tokens,), generator=torch.Generator().manual_seed(tokens))
    return found.int()


def columns_first(matrices: Tensor) -> Tensor:
    """As the manager keeps them: neighbours in memory are neighbouring results."""
    return matrices.transpose(-2, -1).contiguous().transpose(-2, -1)


def assert_shrinks(tokens: int = 5, slices: int = 1, rank: int = 8, depth: int = 20) -> Tensor:
    x, lora_a, adapters = drawn(tokens, depth), columns_first(drawn(slices, 3, rank, depth)), ids(tokens)
    found = same_with_any_number_of_threads(lambda: lora.lora_shrink(x, lora_a, adapters))
    expected = reference.lora_shrink(x.double(), lora_a.double(), adapters).float()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * depth)
    return found


def assert_expands(tokens: int = 5, widths: tuple[int, ...] = (20,), rank: int = 8) -> None:
    shrunk, scaling = drawn(len(widths), tokens, rank), torch.tensor([0.5, 2.0, 1.5])
    lora_b, adapters = [columns_first(drawn(3, width, rank)) for width in widths], ids(tokens)
    start = drawn(tokens, sum(widths))

    def expand() -> Tensor:
        y = start.clone()
        lora.lora_expand(shrunk, lora_b, adapters, y, scaling)
        return y

    expected = start.double()
    wide = [each.double() for each in lora_b]
    reference.lora_expand(shrunk.double(), wide, adapters, expected, scaling.double())
    torch.testing.assert_close(
        same_with_any_number_of_threads(expand), expected.float(), rtol=0, atol=1e-5 * rank
    )


TOKENS = {*range(10), *around("lora.cpp", "TILE"), *around("lora.cpp", "PORTION")}


@pytest.mark.parametrize("tokens", sorted(TOKENS))
def test_any_number_of_tokens(tokens: int) -> None:
    assert_shrinks(tokens=tokens, slices=2)
    assert_expands(tokens=tokens, widths=(20, 7))


@pytest.mark.parametrize(
    "rank", [1, LANES // 2, LANES - 1, LANES, LANES + 1, 2 * LANES + LANES // 2, 3 * LANES + 5]
)
def test_any_rank(rank: int) -> None:
    assert_shrinks(rank=rank)
    assert_expands(rank=rank)


@pytest.mark.parametrize("depth", [*range(1, 10), *around("lora.cpp", "SUMS"), *around("lora.cpp", "AHEAD")])
def test_any_depth(depth: int) -> None:
    assert_shrinks(depth=depth)


@pytest.mark.parametrize(
    "columns", [1, LANES - 1, LANES, 3 * LANES + 1, STEP - 1, STEP, STEP + 1, 2 * STEP + LANES]
)
def test_any_number_of_columns(columns: int) -> None:
    assert_expands(widths=(columns,))


@pytest.mark.parametrize("slices", range(1, constant("lora.cpp", "MAX_SLICES") + 1))
def test_any_number_of_slices(slices: int) -> None:
    assert_shrinks(slices=slices)
    assert_expands(widths=tuple(range(3, 3 + slices)))


def test_more_slices_than_the_kernel_takes_are_left_to_the_reference() -> None:
    most = constant("lora.cpp", "MAX_SLICES")
    y, b = torch.zeros(1, 9), [torch.zeros(1, 1, 2)] * (most + 1)
    given = torch.zeros(most + 1, 1, 2), b, torch.zeros(1, dtype=torch.int32), y, torch.ones(1)
    assert f"{most + 1} slices, supported: up to {most}" in str(lora.unsupported_lora_expand(*given))


def test_a_batch_that_is_worth_several_threads() -> None:
    tokens, rank = 300, 32
    size = constant("lora.cpp", "WORTH_THREADS") // (tokens * rank) + 5
    shrunk = assert_shrinks(tokens=tokens, rank=rank, depth=size)
    assert shrunk.any()
    assert_expands(tokens=tokens, rank=rank, widths=(size, 9))


def test_a_token_is_the_same_alone_and_among_many_of_its_adapter() -> None:
    tokens = 2 * constant("lora.cpp", "PORTION") + 3
    x, lora_a, adapters = drawn(tokens, 99), columns_first(drawn(2, 3, 20, 99)), ids(tokens)
    together = lora.lora_shrink(x, lora_a, adapters)
    for token in range(0, tokens, 7):
        own = slice(token, token + 1)
        assert torch.equal(lora.lora_shrink(x[own], lora_a, adapters[own]), together[:, own])


FAULTS = {
    "the last depth of some sums is dropped": (
        "lora_shrink",
        "for (int i = 0; i < SUMS - 1; i++)\n        if (k + i",
        "for (int i = 0; i < SUMS - 2; i++)\n        if (k + i",
    ),
    "a portion loses its last token": ("lora_shrink", "begin + PORTION));", "begin + PORTION - 1));"),
    "ranks beyond a vector read the first": ("lora_shrink", "LANES>(p, x, a + r,", "LANES>(p, x, a,"),
    "slices beyond the third are the third": (
        "lora_expand",
        "p.parts[slice];",
        "p.parts[std::min<int64_t>(slice, 2)];",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_notices(fault: str, tmp_path: Path) -> None:
    op, right, wrong = FAULTS[fault]
    assert_noticed(op, lora, f"_{op}", "lora.cpp", (right, wrong), tmp_path, size="small")
