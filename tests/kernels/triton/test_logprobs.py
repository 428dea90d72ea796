"""Log-probabilities of given tokens, interpreted."""

from __future__ import annotations

import pytest
import torch

from kernels.triton_ops import logprobs


def test_a_lane_rescales_its_sum_when_it_meets_a_higher_logit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "MAX_BLOCK", 16)
    logits = torch.arange(100.0).repeat(2, 1)
    logits[1, :50] = float("-inf")
    got, ranks = logprobs.gather_logprobs(logits, torch.tensor([3, 60]))
    torch.testing.assert_close(got, logits.log_softmax(-1)[[0, 1], [3, 60]])
    assert ranks.tolist() == [97, 40]
