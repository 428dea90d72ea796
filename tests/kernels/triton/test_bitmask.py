"""The token bitmask, interpreted."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.check.run import check
from tests.kernels.triton.mutants import assert_noticed

FAULTS = {
    "bits from the other end": ("token % 32)", "31 - token % 32)"),
    "the words of row 0": ("row * bitmask_stride", "0 * bitmask_stride"),
    "allowed tokens are forbidden": ("allowed == 0", "allowed == 1"),
    "half of the tile": ("token < vocab_size", "token < vocab_size // 2"),
}


def test_every_case_agrees_with_the_reference_and_every_row_with_itself_alone() -> None:
    report = check("apply_token_bitmask", "triton")
    assert report.ok, report


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault: str, tmp_path: Path) -> None:
    assert_noticed("apply_token_bitmask", "bitmask.py", *FAULTS[fault], tmp_path, only="3 x 77")
