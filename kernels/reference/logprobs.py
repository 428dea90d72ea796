"""Likelihood of a given token: its log-probability and its rank."""

from __future__ import annotations

from torch import Tensor

from kernels.reference.precision import wide


def gather_logprobs(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    logits = wide(logits)
    chosen = logits.gather(-1, token_ids[:, None])
    logprobs = logits.log_softmax(-1).gather(-1, token_ids[:, None])
    ranks = (logits > chosen).sum(-1) + 1
    return logprobs.squeeze(-1), ranks
