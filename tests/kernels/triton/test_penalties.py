"""Penalties, interpreted."""

from __future__ import annotations

import torch

from kernels.triton_ops.penalties import apply_penalties


def test_each_penalty_alone_is_not_taken_for_none() -> None:
    for repetition, presence, frequency, want in ((2.0, 0, 0, 1.0), (1, 0.5, 0, 1.5), (1, 0, 0.25, 1.5)):
        logits, counts = torch.full((1, 3), 2.0), torch.tensor([[0, 2, 0]], dtype=torch.int32)
        columns = [torch.tensor([float(value)]) for value in (repetition, presence, frequency)]
        apply_penalties(logits, counts > 9, counts, *columns)
        assert logits.tolist() == [[2.0, want, 2.0]]
