"""Log-probabilities of given tokens, interpreted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels.check.run import check
from kernels.triton_ops import logprobs
from tests.kernels.triton.mutants import assert_noticed

FAULTS = {
    "ranks count from 0": (".to(tl.int64) + 1)", ".to(tl.int64))", "3 x 77"),
    "equal logits push down": ("values > chosen", "values >= chosen", "many ties"),
    "lanes are joined without their peaks": ("rescaled(total, peak, highest)", "total", "3 x 77"),
}


def test_every_case_agrees_with_the_reference_and_every_row_with_itself_alone() -> None:
    report = check("gather_logprobs", "triton")
    assert report.ok, report


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault: str, tmp_path: Path) -> None:
    right, wrong, case = FAULTS[fault]
    assert_noticed("gather_logprobs", "logprobs.py", right, wrong, tmp_path, only=case)


def test_a_lane_rescales_its_sum_when_it_meets_a_higher_logit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "MAX_BLOCK", 16)
    logits = torch.arange(100.0).repeat(2, 1)
    logits[1, :50] = float("-inf")
    got, ranks = logprobs.gather_logprobs(logits, torch.tensor([3, 60]))
    torch.testing.assert_close(got, logits.log_softmax(-1)[[0, 1], [3, 60]])
    assert ranks.tolist() == [97, 40]
