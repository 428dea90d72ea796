"""Writing to the paged cache and copying its blocks, interpreted."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from kernels.reference.copy import contiguous_runs
from kernels.triton_ops.copy import copy_blocks
from kernels.triton_ops.quantise import round_half_even, to_e4m3


@triton.jit
def quantise_kernel(x, fp8, rounded, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + index)
    tl.store(fp8 + index, to_e4m3(values))
    tl.store(rounded + index, round_half_even(values))


def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    fp8, rounded = torch.empty_like(x, dtype=torch.uint8), torch.empty_like(x)
    quantise_kernel[(1,)](x, fp8, rounded, BLOCK=x.numel())
    return fp8, rounded


def test_fp8_has_the_bits_that_torch_gives_on_every_border_between_two_codes() -> None:
    codes = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (codes[1:] + codes[:-1]) / 2
    infinity = torch.tensor(float("inf"))
    x = torch.cat([codes, middles, middles.nextafter(infinity), middles.nextafter(-infinity)])
    x = torch.nn.functional.pad(torch.cat([x, -x]), (0, 1024 - 2 * len(x)))
    fp8, _ = quantise(x)
    assert torch.equal(fp8, x.to(torch.float8_e4m3fn).view(torch.uint8))


def test_fp8_saturates_and_keeps_nan() -> None:
    x = torch.tensor([448.0, 464.0, 1e9, float("inf"), -500.0, float("-inf"), float("nan"), -float("nan")])
    fp8, _ = quantise(x)
    assert fp8.tolist() == [0x7E] * 4 + [0xFE] * 2 + [0x7F] * 2


def test_integers_are_rounded_half_to_even() -> None:
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.4, -126.50001])
    _, rounded = quantise(x)
    assert torch.equal(rounded, x.round())


def test_runs_join_blocks_that_follow_each_other_on_both_sides() -> None:
    pairs = [[3, 7], [4, 8], [5, 9], [1, 2], [2, 4], [3, 5], [9, 9]]
    assert list(contiguous_runs(pairs)) == [(3, 7, 3), (1, 2, 1), (2, 4, 2), (9, 9, 1)]
    assert list(contiguous_runs([])) == []


def test_between_devices_blocks_are_copied_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device is another device; it has no content, so what is copied is recorded."""
    copied = []
    source, target = torch.empty(10, 4), torch.empty(10, 4, device="meta")

    def record(self: torch.Tensor, blocks: torch.Tensor, non_blocking: bool) -> None:
        copied.append((blocks.storage_offset() // 4, self.storage_offset() // 4, len(blocks), non_blocking))

    monkeypatch.setattr(torch.Tensor, "copy_", record)
    copy_blocks(source, target, torch.tensor([[1, 4], [2, 5], [7, 0]]))
    assert copied == [(1, 4, 2, True), (7, 0, 1, True)]
