"""The W8A8 product in integers, interpreted."""

from __future__ import annotations

import pytest
import torch

from kernels.reference.int8 import int8_linear as reference
from kernels.reference.int8 import quantise_int8
from kernels.triton_ops import int8, split_k, w8a8
from kernels.triton_ops.split_k import num_splits


@pytest.mark.parametrize("programs_wanted", [0, 10**6])
def test_the_sums_are_exact_so_that_fp32_results_have_the_reference_s_bits(
    programs_wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert num_splits(40, 1100) == 2
    monkeypatch.setattr(w8a8, "num_splits", lambda *_: 2)  # whatever the number of programs wanted
    monkeypatch.setattr(split_k, "PROGRAMS_WANTED", programs_wanted)
    generator = torch.Generator().manual_seed(0)
    quantised = quantise_int8(torch.randn(40, 1100, generator=generator))
    x = torch.randn(3, 1100, generator=generator)
    assert torch.equal(int8.int8_linear(x, *quantised), reference(x, *quantised))


def test_the_largest_sum_that_llama_can_make_fits_into_int32() -> None:
    x, qweight = torch.full((1, 14336), -3.0), torch.full((1, 14336), -127, dtype=torch.int8)
    out = int8.int8_linear(x, qweight, torch.ones(1))
    torch.testing.assert_close(out, torch.tensor([[3.0 * 127 * 14336]]))


def test_a_nan_makes_its_own_row_nan_and_no_other() -> None:
    x = torch.ones(3, 64)
    x[1, 5] = float("nan")
    out = int8.int8_linear(x, *quantise_int8(torch.ones(20, 64)))
    assert out[1].isnan().all()
    assert out[[0, 2]].isfinite().all()


def test_a_sum_that_could_overflow_is_refused() -> None:
    x = torch.zeros(1, int8.MAX_K + 1)
    assert "overflow int32" in (int8.unsupported_int8_linear(x, x.to(torch.int8), x[:, :1]) or "")
