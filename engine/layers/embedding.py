"""Token ids to vectors, and vectors back to scores over the vocabulary.

In a tensor group each rank has a part of the vocabulary: looking an id up gives zeros on all ranks but its own, and
a sum joins them; scores are computed for the own part and gathered where the next token is chosen.

Source: vLLM model_executor/layers/vocab_parallel_embedding.py, logits_processor.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from engine.layers.linear import Linear, empty_parameter
from engine.parallel import Shard, current_ranks
from kernels import ops


class VocabParallelEmbedding(nn.Module):
    """ids [T] -> rows of the table [T, hidden]."""

    def __init__(self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.group = current_ranks().tensor
        size = self.group.split(vocab_size)
        self.first_id = self.group.rank * size
        self.weight = empty_parameter(size, hidden_size, dtype=dtype)

    def shard_of(self, name: str) -> Shard | None:
        return self.group.shard(0)

    def forward(self, input_ids: Tensor) -> Tensor:
        if self.group.size == 1:
            return ops.embedding(self.weight, input_ids)
        rows = input_ids - self.first_id
        is_elsewhere = (rows < 0) | (rows >= len(self.weight))
        embedded = ops.embedding(self.weight, rows.masked_fill(is_elsewhere, 0))
        return self.group.all_reduce(embedded.masked_fill_(is_elsewhere[:, None], 0))


class ParallelLMHead(Linear):
    """hidden [S, hidden] -> logits fp32 [S, vocab] on the first rank of the tensor group, None on the others.

    A tied head starts from the embedding's own table: there is one tensor in the checkpoint.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        dtype: torch.dtype,
        tied_to: VocabParallelEmbedding | None = None,
    ) -> None:
        self.group = current_ranks().tensor
        super().__init__(hidden_size, self.group.split(vocab_size), bias=False, dtype=dtype)
        self.out_dtype = torch.float32
        self.is_tied = tied_to is not None
        if tied_to is not None:
            self.weight = tied_to.weight

    def create_weights(self) -> None:
        if not self.is_tied:
            super().create_weights()

    def checkpoint_tensors(self, module_name: str) -> Iterator[tuple[str, Tensor]]:
        return iter(()) if self.is_tied else super().checkpoint_tensors(module_name)

    def shard_of(self, name: str) -> Shard | None:
        return self.group.shard(0)

    def forward(self, hidden: Tensor) -> Tensor | None:  # type: ignore[override]  # other ranks get None
        return self.group.gather(super().forward(hidden).float())
