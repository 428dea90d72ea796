"""Repetition, presence and frequency penalties. Sources: CTRL (Keskar et al. 2019) for the first, OpenAI's API."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_penalties(
    logits: Tensor,
    in_prompt: Tensor,
    output_counts: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    in_output = output_counts > 0
    factor = torch.where(in_prompt | in_output, repetition[:, None], 1.0)
    penalised = torch.where(logits > 0, logits / factor, logits * factor)
    penalised -= frequency[:, None] * output_counts
    penalised -= presence[:, None] * in_output
    logits.copy_(penalised)
