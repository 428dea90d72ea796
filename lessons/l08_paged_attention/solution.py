"""Reference solutions of lesson 08."""

# ruff: noqa: E402, F811

# exercise 08.1
import torch
from torch import Tensor


def gather(cache: Tensor, table: list[int], length: int) -> tuple[Tensor, Tensor]:
    num_blocks = -(-length // cache.shape[3])
    blocks = cache[torch.tensor(table[:num_blocks])]  # a copy: [n, 2, kv_heads, block_size, head_dim]
    keys, values = blocks.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :length]
    return keys, values


# exercise 08.2
import torch
from torch import Tensor


def decode_attention(query: Tensor, cache: Tensor, table: list[int], length: int, scale: float) -> Tensor:
    kv_heads, block_size = cache.shape[2], cache.shape[3]
    grouped = scale * query.float().unflatten(0, (kv_heads, -1))  # [kv_heads, group, head_dim]
    top = torch.full((*grouped.shape[:2], 1), -torch.inf)
    total, out = torch.zeros_like(top), torch.zeros_like(grouped)
    for index in range(-(-length // block_size)):
        count = min(block_size, length - index * block_size)
        keys, values = cache[table[index], :, :, :count].float()  # [kv_heads, count, head_dim]
        scores = grouped @ keys.mT
        new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
        shrink, weights = (top - new_top).exp(), (scores - new_top).exp()
        total = total * shrink + weights.sum(-1, keepdim=True)
        out = out * shrink + weights @ values
        top = new_top
    return (out / total).flatten(0, 1).to(query.dtype)


# exercise 08.3
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

TILE = 128  # queries per call: most of a larger triangle would be masked


def paged_attention(
    query: Tensor,
    cache: Tensor,
    query_start_loc: list[int],
    seq_lens: list[int],
    block_table: Tensor,
    scale: float,
) -> Tensor:
    _, _, kv_heads, block_size, head_dim = cache.shape
    page = block_size * head_dim  # one head's keys, or values, of one block: a run of memory
    step = cache.stride(0) // page
    pages = cache.as_strided(((cache.shape[0] - 1) * step + 2 * kv_heads, page), (page, 1))
    index = block_table.long()[:, None] * step + torch.arange(2 * kv_heads)[:, None]
    space = cache.new_empty(
        2 * kv_heads * -(-max(seq_lens) // block_size), page
    )  # for one row after the other
    out = torch.empty_like(query)
    for row, (begin, end) in enumerate(pairwise(query_start_loc)):
        wanted = index[row, :, : -(-seq_lens[row] // block_size)].flatten()
        found = torch.index_select(pages, 0, wanted, out=space[: len(wanted)])
        keys, values = found.view(2, 1, kv_heads, -1, head_dim)[:, :, :, : seq_lens[row]]
        if end - begin == 1:  # no mask, and no key repeated: the heads of a KV head stand where queries stand
            grouped = query[begin].view(1, kv_heads, -1, head_dim)
            out[begin] = scaled_dot_product_attention(grouped, keys, values, scale=scale).view(-1, head_dim)
        else:
            out[begin:end] = _causal(query[begin:end], keys, values, scale)
    return out


def _causal(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Return attention of the last tokens of a row, tile by tile. keys, values: [1, kv_heads, length, head_dim]."""
    out = torch.empty_like(query)
    before = keys.shape[2] - len(query)
    for first in range(0, len(query), TILE):
        last = min(first + TILE, len(query))
        seen = before + last
        mask = torch.arange(seen) <= torch.arange(before + first, seen)[:, None]
        tile = query[None, first:last].transpose(1, 2)
        result = scaled_dot_product_attention(
            tile, keys[:, :, :seen], values[:, :, :seen], mask, scale=scale, enable_gqa=True
        )
        out[first:last] = result[0].transpose(0, 1)
    return out
