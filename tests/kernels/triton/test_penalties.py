"""Penalties, interpreted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels.check.run import check
from kernels.triton_ops.penalties import apply_penalties
from tests.kernels.triton.mutants import assert_noticed

FAULTS = {
    "negative logits are divided too": ("values > 0, tl.div_rn", "values < 9e9, tl.div_rn"),
    "the prompt is forgotten": ("(count > 0) | (prompted != 0)", "count > 0"),
    "presence as often as the token": ("tl.where(count > 0, presence, 0.0)", "presence * count"),
    "frequency once": ("values -= frequency * count", "values -= frequency * (count > 0)"),
    "a row returns early": ("(repetition == 1) & (presence", "(repetition > 1) | (presence"),
}


def test_every_case_agrees_with_the_reference_and_every_row_with_itself_alone() -> None:
    report = check("apply_penalties", "triton")
    assert report.ok, report


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault: str, tmp_path: Path) -> None:
    assert_noticed("apply_penalties", "penalties.py", *FAULTS[fault], tmp_path, only="3 x 77")


def test_each_penalty_alone_is_not_taken_for_none() -> None:
    for repetition, presence, frequency, want in ((2.0, 0, 0, 1.0), (1, 0.5, 0, 1.5), (1, 0, 0.25, 1.5)):
        logits, counts = torch.full((1, 3), 2.0), torch.tensor([[0, 2, 0]], dtype=torch.int32)
        columns = [torch.tensor([float(value)]) for value in (repetition, presence, frequency)]
        apply_penalties(logits, counts > 9, counts, *columns)
        assert logits.tolist() == [[2.0, want, 2.0]]
