"""Every C++ form of every operation agrees with the reference, and a row alone has the bits that it has in a batch."""

from __future__ import annotations

import pytest
import torch

from kernels.check.run import check
from kernels.cpu import build
from kernels.operations import OPERATIONS
from tests.kernels.cpu_mutants import FLOATS, SIZES

if problem := build.load_library().problem:
    pytest.skip(problem, allow_module_level=True)

WITHOUT_HALF = {"linear", "gated_linear", "norm_linear", "lora_shrink", "lora_expand"}
NORMS = {"rms_norm", "fused_add_rms_norm"}  # take fp32 beside 16 bits in the reference only: one case


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", [op for op, entry in OPERATIONS.items() if "cpu" in entry.forms])
def test_every_case_agrees_with_the_reference(op: str, dtype: torch.dtype, size: str) -> None:
    report = check(op, "cpu", dtype=dtype, size=size)
    if dtype == torch.float16 and op in WITHOUT_HALF:
        assert report.count("unsupported") == len(report.results)
    else:
        assert report.ok and report.count("unsupported") == (op in NORMS and dtype != torch.float32), report
