"""Token ids to vectors, and vectors back to scores over the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.layers.linear import Linear, empty_parameter
from kernels import ops


class TokenEmbedding(nn.Module):
    """ids [T] -> rows of the table [T, hidden]."""

    def __init__(self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = empty_parameter(vocab_size, hidden_size, dtype=dtype)

    def forward(self, input_ids: Tensor) -> Tensor:
        return ops.embedding(self.weight, input_ids)


class LMHead(Linear):
    """hidden [S, hidden] -> logits fp32 [S, vocab].

    A tied head starts from the embedding's own table: there is one tensor in the checkpoint.
    """

    def __init__(
        self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype, tied_to: TokenEmbedding | None = None
    ) -> None:
        super().__init__(hidden_size, vocab_size, bias=False, dtype=dtype)
        if tied_to is not None:
            self.weight = tied_to.weight

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden).float()
