"""Chains of drafts that cannot be replayed say why."""

from __future__ import annotations

import logging

import pytest
import torch

from engine.spec.chain import Drafted, _Inputs, _Recorder


def test_a_chain_that_computes_more_than_our_kernels_record_says_so_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    value = torch.ones(1, 2)
    recorder = _Recorder(lambda _: Drafted([torch.zeros(1, dtype=torch.int64)], [value * 2]))
    inputs = _Inputs(1, 1, 1, 1, None)
    with caplog.at_level(logging.WARNING):
        recorder.run(inputs)
        assert not recorder.off_reason
        value += 1  # an operation of torch, which is not replayed
        assert recorder.run(inputs).logits[0].tolist() == [[4.0, 4.0]]
    assert recorder.off_reason == "the draft model does more than our kernels record"
    [warning] = caplog.records
    assert recorder.off_reason in warning.message
    value += 1
    assert recorder.run(inputs).logits[0].tolist() == [[6.0, 6.0]]
