"""Attention over a paged KV cache, in plain torch."""

import torch
import torch.nn.functional as F


class PagedAttention:
    def __init__(self, num_heads: int, head_dim: int, block_size: int = 16) -> None:
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.block_size = block_size

    def forward(
        self,
        query: torch.Tensor,  # [batch, tokens, heads, head_dim]
        key_cache: torch.Tensor,  # [blocks, block_size, heads, head_dim]
        value_cache: torch.Tensor,
        block_tables: torch.Tensor,  # [batch, max_blocks]
        seq_lens: torch.Tensor,  # [batch]
    ) -> torch.Tensor:
        batch = query.shape[0]
        max_len = block_tables.shape[1] * self.block_size
        keys = key_cache[block_tables].view(batch, max_len, self.num_heads, self.head_dim)
        values = value_cache[block_tables].view(batch, max_len, self.num_heads, self.head_dim)
        scores = self.scores(query, keys)
        mask = self.mask(seq_lens, query.shape[1], max_len)
        scores = scores.masked_fill(mask == 0, -1e9)
        weights = F.softmax(scores, dim=-1)
        output = torch.matmul(weights.unsqueeze(2), values.unsqueeze(2))
        return output.squeeze(2).squeeze(1)

    def scores(self, query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        query, keys = query.unsqueeze(1), keys.unsqueeze(2)
        scores = torch.matmul(query, keys.transpose(-2, -1)) / self.head_dim**0.5
        return scores.squeeze(2).squeeze(1)

    def mask(self, seq_lens: torch.Tensor, query_len: int, max_len: int) -> torch.Tensor:
        causal = torch.tril(torch.ones(max_len, query_len))
        valid = torch.arange(max_len).expand(seq_lens.shape[0], max_len) < seq_lens.unsqueeze(1)
        return (causal & valid.unsqueeze(-1)).float()
