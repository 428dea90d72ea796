"""Reference solutions of lesson 08."""

# ruff: noqa: E402, F811

# exercise 08.1
import torch
from torch import Tensor


def gather(cache: Tensor, table: list[int], length: int) -> tuple[Tensor, Tensor]:
    """Return the keys and the values of a request's first `length` tokens, each [length, kv_heads, head_dim].

    cache: [num_blocks, 2, kv_heads, block_size, head_dim], keys at 0, values at 1; often a strided view.
    table: block ids in logical order, maybe more than the length needs. length >= 1.
    """
    num_blocks = -(-length // cache.shape[3])
    blocks = cache[torch.tensor(table[:num_blocks])]  # a copy: [n, 2, kv_heads, block_size, head_dim]
    keys, values = blocks.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :length]
    return keys, values


# exercise 08.2
import torch
from torch import Tensor


def decode_attention(query: Tensor, cache: Tensor, table: list[int], length: int, scale: float) -> Tensor:
    """Return softmax(scale * query @ keys) @ values of one query over `length` tokens: [heads, head_dim].

    query: [heads, head_dim]; head h reads kv head h // (heads / kv_heads). cache, table: as in `gather`.
    Reads cache[block] (or a part of it) for one block after the other, each number at most once: running maximum,
    sum and output are all that lives from block to block. Computes in fp32, returns query's dtype.
    """
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
from collections import defaultdict
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

_space: dict[torch.dtype, Tensor] = {}  # gathered pages; fresh memory would cost as much as the copy


def paged_attention(
    query: Tensor,
    cache: Tensor,
    query_start_loc: list[int],
    seq_lens: list[int],
    block_table: Tensor,
    scale: float,
) -> Tensor:
    """Return causal attention of a batch of ragged rows: [T, heads, head_dim], like query.

    query: [T, heads, head_dim]; row r owns tokens query_start_loc[r] to query_start_loc[r + 1] - 1, the last of its
        seq_lens[r] tokens. Their keys and values are in the cache already.
    cache: as in `gather`, in query's dtype, finite in every slot; one head's part of a block is contiguous.
    block_table: int [R, max_blocks], any id of the cache behind a row's last block.
    """
    out, (_, _, kv_heads, block_size, head_dim) = torch.empty_like(query), cache.shape
    alike = defaultdict(list)  # rows for one call: as many queries and, rounded up, as many blocks
    for row, (begin, end) in enumerate(pairwise(query_start_loc)):
        num_blocks = -(-seq_lens[row] // block_size)
        step = max(1, 64 // block_size, 1 << max(0, num_blocks.bit_length() - 3))
        alike[end - begin, -(-num_blocks // step) * step].append(row)
    page = block_size * head_dim
    num_pages = (cache.shape[0] - 1) * cache.stride(0) // page + 2 * kv_heads
    pages = cache.as_strided((num_pages, page), (page, 1))  # one head's keys, or values, of one block
    starts, lens = torch.tensor(query_start_loc), torch.tensor(seq_lens)
    for (num_queries, width), rows in alike.items():
        row, own, slots = torch.tensor(rows)[:, None], torch.arange(num_queries), width * block_size
        blocks = block_table[row, torch.arange(width).clamp_max(block_table.shape[1] - 1)]
        index = (blocks * (cache.stride(0) // page))[:, None] + torch.arange(2 * kv_heads)[:, None]
        tokens = starts[row] + own  # [rows, num_queries]
        grouped = query[tokens].unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4)
        hidden = torch.arange(slots) > (lens[row] - num_queries + own)[:, :, None]
        mask = query.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)[:, None]
        mask = mask.repeat(1, 1, grouped.shape[2] if num_queries > 1 else 1, 1)
        at_once = max(1, (2 << 20) // (width * cache[0].nbytes))  # 2 MiB stay in the processor's cache
        mixed = []
        for some in (slice(first, first + at_once) for first in range(0, len(rows), at_once)):
            gathered = _gathered(pages, index[some].flatten()).view(-1, 2, kv_heads, slots, head_dim)
            keys, values = gathered.unbind(1)
            each = scaled_dot_product_attention(
                grouped[some].flatten(2, 3), keys, values, mask[some], scale=scale
            )
            mixed.append(each)
        out[tokens] = torch.cat(mixed).view(grouped.shape).permute(0, 3, 1, 2, 4).flatten(2, 3)
    return out


def _gathered(pages: Tensor, index: Tensor) -> Tensor:
    size = len(index) * pages.shape[1]
    if pages.dtype not in _space or _space[pages.dtype].numel() < size:
        _space[pages.dtype] = torch.empty(size, dtype=pages.dtype)
    return torch.index_select(pages, 0, index, out=_space[pages.dtype][:size].view(-1, pages.shape[1]))
