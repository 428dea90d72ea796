"""Shapes, masks and what is raised."""

from types import ModuleType
from typing import Any

import torch


def _case(batch: int, tokens: int, heads: int, head_dim: int, blocks: int, block_size: int) -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "query": torch.randn(batch, tokens, heads, head_dim),
        "key_cache": torch.randn(batch * blocks, block_size, heads, head_dim),
        "value_cache": torch.randn(batch * blocks, block_size, heads, head_dim),
        "block_tables": torch.arange(batch * blocks).view(batch, blocks),
        "seq_lens": torch.full((batch,), blocks * block_size),
    }


def forward(
    given: ModuleType, *, batch: int = 2, tokens: int = 1, heads: int = 4, head_dim: int = 8, blocks: int = 2
) -> list[int]:
    """The shape of the output."""
    module = given.PagedAttention(heads, head_dim, 4)
    return list(module.forward(**_case(batch, tokens, heads, head_dim, blocks, 4)).shape)


def scores_shape(
    given: ModuleType, *, batch: int = 2, tokens: int = 3, heads: int = 4, head_dim: int = 8, keys: int = 12
) -> list[int]:
    """The shape of the scores of `tokens` queries over `keys` keys."""
    module = given.PagedAttention(heads, head_dim, 4)
    query, key = torch.randn(batch, tokens, heads, head_dim), torch.randn(batch, keys, heads, head_dim)
    return list(module.scores(query, key).shape)


def mask(given: ModuleType, *, tokens: int = 3, keys: int = 6) -> Any:
    """The mask of one sequence that fills its keys."""
    return given.PagedAttention(2, 8, 4).mask(torch.tensor([keys]), tokens, keys).int().tolist()


def _mended_mask(given: ModuleType, tokens: int, keys: int) -> torch.Tensor:
    """The given mask with its types repaired, so that what it says can be seen: [keys, tokens]."""
    causal = torch.tril(torch.ones(keys, tokens)).bool()
    valid = torch.arange(keys) < keys
    return causal & valid.unsqueeze(-1)


def keys_seen_by_query(given: ModuleType, *, tokens: int = 3, keys: int = 6) -> list[int]:
    """Return the keys that each query may see, with the mask types repaired, for a prompt without context."""
    return [int(column.sum()) for column in _mended_mask(given, tokens, keys).T]


def sees_the_future(given: ModuleType, *, tokens: int = 4) -> int:
    """Return, with the types repaired, pairs (query, key) of a prompt where the query looks at a later key."""
    return int(torch.triu(_mended_mask(given, tokens, tokens).T, diagonal=1).sum())


def first_key_of_a_decode(given: ModuleType, *, keys: int = 10) -> int:
    """Return the first key that the query of a decode step misses, with the types repaired; -1 if none.

    The query is the token at position keys - 1.
    """
    seen = _mended_mask(given, 2, keys)[:, 1].tolist()
    return seen.index(False) if False in seen else -1


def fill_in_half(given: ModuleType) -> float:
    """Masking fp16 scores with the constant of the given program."""
    return float(torch.zeros(2, dtype=torch.float16).masked_fill(torch.tensor([True, False]), -1e9)[0])


def weights_of_a_fully_masked_row(given: ModuleType, *, keys: int = 5) -> list[float]:
    """Return the softmax of a row in which every key is masked with the constant of the given program."""
    weights = torch.softmax(torch.full((keys,), -1e9), dim=-1)
    return [round(float(weight), 4) for weight in weights]


def bytes_gathered(
    given: ModuleType, *, seq_len: int = 17, max_blocks: int = 64, heads: int = 8, head_dim: int = 64
) -> int:
    """Bytes of keys and values (fp32) that the gather copies for one sequence, whatever its length."""
    cache = torch.zeros(4, 16, heads, head_dim)
    table = torch.zeros(1, max_blocks, dtype=torch.long)
    return 2 * cache[table].numel() * cache.element_size()
