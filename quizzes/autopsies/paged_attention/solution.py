"""Attention over a paged KV cache, in plain torch: gather a sequence's slots, then attend."""

import torch


class PagedAttention:
    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, block_size: int = 16) -> None:
        self.group = num_heads // num_kv_heads
        self.head_dim = head_dim
        self.block_size = block_size

    def forward(
        self,
        query: torch.Tensor,  # [batch, tokens, heads, head_dim], the last tokens of each sequence
        key_cache: torch.Tensor,  # [blocks, block_size, kv_heads, head_dim]
        value_cache: torch.Tensor,
        block_tables: torch.Tensor,  # [batch, max_blocks]
        seq_lens: torch.Tensor,  # [batch]
    ) -> torch.Tensor:
        output = torch.empty_like(query)
        for i, length in enumerate(seq_lens.tolist()):
            keys = self._own(key_cache, block_tables[i], length)
            values = self._own(value_cache, block_tables[i], length)
            output[i] = self._attend(query[i], keys, values)
        return output

    def _own(self, cache: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
        """[length, heads, head_dim]: the sequence's tokens, KV heads repeated for their queries."""
        position = torch.arange(length)
        tokens = cache[table[position // self.block_size], position % self.block_size]
        return tokens.repeat_interleave(self.group, dim=1)

    def _attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        tokens, length = query.shape[0], keys.shape[0]
        scores = torch.einsum("thd,shd->hts", query.float(), keys.float()) / self.head_dim**0.5
        position = torch.arange(length - tokens, length)
        future = torch.arange(length)[None, :] > position[:, None]
        weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
        return torch.einsum("hts,shd->thd", weights, values.float()).to(query.dtype)
