"""Every Triton form, interpreted, on the cases of its operation."""

from __future__ import annotations

import pytest
import torch

from kernels.check.run import check
from kernels.operations import OPERATIONS

TRITON = [op for op, entry in OPERATIONS.items() if "triton" in entry.forms]
IN_FP32_ONLY = {
    "apply_penalties", "apply_token_bitmask", "fp8_linear", "gather_logprobs", "paged_attention", "sample",
}  # fmt: skip
"""Logits are fp32; fp8 products take the longest; test_attention.py has some cases of attention in fp16."""
HALF = [op for op in TRITON if op not in IN_FP32_ONLY]


@pytest.mark.parametrize(
    ("op", "dtype"), [*((op, torch.float32) for op in TRITON), *((op, torch.float16) for op in HALF)], ids=str
)
def test_every_case_agrees_with_the_reference_and_every_row_with_itself_alone(
    op: str, dtype: torch.dtype
) -> None:
    report = check(op, "triton", dtype=dtype)
    assert report.ok, report
