"""Token ids to vectors, and vectors back to scores over the vocabulary."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.layers.linear import empty_parameter


class TokenEmbedding(nn.Module):
    """ids [T] -> rows of the table [T, hidden]."""

    def __init__(self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = empty_parameter(vocab_size, hidden_size, dtype=dtype)

    def forward(self, input_ids: Tensor) -> Tensor:
        return F.embedding(input_ids, self.weight)


class LMHead(nn.Module):
    """hidden [S, hidden] -> logits fp32 [S, vocab].

    A tied head computes with the embedding's own table: one tensor in memory, one in the checkpoint.
    """

    def __init__(
        self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype, tied_to: TokenEmbedding | None = None
    ) -> None:
        super().__init__()
        self.weight = tied_to.weight if tied_to else empty_parameter(vocab_size, hidden_size, dtype=dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.weight).float()
