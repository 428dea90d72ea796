"""The W4A16 product, interpreted."""

from __future__ import annotations

import pytest
import torch

from kernels.reference.int4 import int4_linear as reference
from kernels.reference.int4 import quantise_int4
from kernels.triton_ops import int4, split_k
from kernels.triton_ops.split_k import MAX_SPLITS, num_splits


def test_parts_in_programs_of_their_own_add_up_to_the_bits_of_one_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(0)
    quantised = quantise_int4(torch.randn(40, 1536, generator=generator), 128)
    x = torch.randn(3, 1536, generator=generator)
    assert num_splits(40, 1536) == 3
    monkeypatch.setattr(int4, "num_splits", lambda *_: 3)  # whatever the number of programs wanted
    results = []
    for programs_wanted in (0, 10**6):
        monkeypatch.setattr(split_k, "PROGRAMS_WANTED", programs_wanted)
        results.append(int4.int4_linear(x, *quantised, 128))
    assert torch.equal(*results)
    torch.testing.assert_close(
        results[0].double(), reference(x.double(), *quantised, 128), rtol=1e-4, atol=1e-4
    )


def test_no_split_is_one_program_per_tile_that_writes_the_result() -> None:
    """As for K = 0, which has no groups to split."""
    out = torch.empty(3, 40)
    grid, target = split_k.plan(out, split_k.Tile(16, 64, 4, 3), 0, torch.float32)
    assert grid == (1, 1) and target is out


def test_a_nibble_in_the_mantissa_adds_itself() -> None:
    """`less_zero` relies on this, also for bf16, which the interpreter cannot compute with."""
    nibbles = torch.arange(16, dtype=torch.int16)
    assert (nibbles | 0x6400).view(torch.float16).tolist() == [1024 + nibble for nibble in range(16)]
    assert (nibbles | 0x4300).view(torch.bfloat16).tolist() == [128 + nibble for nibble in range(16)]


def test_the_number_of_parts_fills_a_gpu_and_never_cuts_too_fine() -> None:
    assert num_splits(4096, 4096) == 4
    assert num_splits(128256, 4096) == 1
    assert num_splits(64, 512) == 1
    assert num_splits(64, 2**20) == MAX_SPLITS


def test_other_types_and_groups_are_refused_by_name() -> None:
    x = torch.zeros(1, 48)
    quantised = quantise_int4(torch.zeros(4, 48), 48)
    assert int4.unsupported_int4_linear(x, *quantised, 48) == "group_size 48 is not a multiple of 32"
    assert "float64" in (int4.unsupported_int4_linear(x.double(), *quantised, 32) or "")
