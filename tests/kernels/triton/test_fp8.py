"""The W8A8 product in e4m3, interpreted: through fp32, which holds every e4m3 number and every product exactly."""

from __future__ import annotations

import pytest
import torch

from kernels.reference.fp8 import quantise_fp8
from kernels.triton_ops import fp8, split_k, w8a8
from kernels.triton_ops.split_k import num_splits


def test_parts_in_programs_of_their_own_add_up_to_the_bits_of_one_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(0)
    quantised = quantise_fp8(torch.randn(40, 1100, generator=generator))
    x = torch.randn(3, 1100, generator=generator)
    assert num_splits(40, 1100) == 2
    monkeypatch.setattr(w8a8, "num_splits", lambda *_: 2)  # whatever the number of programs wanted
    results = []
    for programs_wanted in (0, 10**6):
        monkeypatch.setattr(split_k, "PROGRAMS_WANTED", programs_wanted)
        results.append(fp8.fp8_linear(x, *quantised))
    assert torch.equal(*results)


def test_a_nan_makes_its_own_row_nan_and_no_other() -> None:
    x = torch.ones(3, 64)
    x[1, 5] = float("nan")
    out = fp8.fp8_linear(x, *quantise_fp8(torch.ones(20, 64)))
    assert out[1].isnan().all()
    assert out[[0, 2]].isfinite().all()
