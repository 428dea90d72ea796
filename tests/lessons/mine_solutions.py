"""Stand-ins for reference solutions of lessons that are not written yet: delete each when its lesson lands."""

SOURCES = {}
SOURCES["07.1"] = """
# exercise 07.1
from collections import deque
class BlockAllocator:
    def __init__(self, num_blocks):
        self._free = deque(range(num_blocks)); self._refs = [0] * num_blocks
    @property
    def num_free(self): return len(self._free)
    def take(self, count):
        if count > len(self._free): raise MemoryError("few")
        out = [self._free.popleft() for _ in range(count)]
        for b in out: self._refs[b] = 1
        return out
    def share(self, block): self._refs[block] += 1
    def release(self, blocks):
        for b in blocks:
            if not self._refs[b]: raise ValueError(b)
            self._refs[b] -= 1
            if not self._refs[b]: self._free.append(b)
    def ref_count(self, block): return self._refs[block]
"""
SOURCES["08.3"] = '''
# exercise 08.3
import torch
import torch.nn.functional as F
from torch import Tensor

TILE = 128


def paged_attention(
    query: Tensor,
    cache: Tensor,
    query_start_loc: list[int],
    seq_lens: list[int],
    block_table: Tensor,
    scale: float,
) -> Tensor:
    """Causal attention of query [T, heads, head_dim] over ragged rows of a paged cache; the same shape out."""
    _, _, kv_heads, block_size, head_dim = cache.shape
    page = block_size * head_dim  # keys or values of one head in a block: one run of memory
    step = cache.stride(0) // page
    pages = cache.as_strided(((cache.shape[0] - 1) * step + 2 * kv_heads, page), (page, 1))
    index = block_table.long()[:, None] * step + torch.arange(2 * kv_heads)[:, None]
    buffer = cache.new_empty(2 * kv_heads * -(-max(seq_lens) // block_size), page)
    out = torch.empty_like(query)
    for row, length in enumerate(seq_lens):
        begin, end = query_start_loc[row], query_start_loc[row + 1]
        wanted = index[row, :, : -(-length // block_size)].flatten()
        found = torch.index_select(pages, 0, wanted, out=buffer[: len(wanted)])
        key, value = found.view(2, 1, kv_heads, -1, head_dim).to(query.dtype)
        if end - begin == 1:  # the query heads of a kv head take the place of query positions
            grouped = query[begin].view(1, kv_heads, -1, head_dim)
            result = F.scaled_dot_product_attention(
                grouped, key[:, :, :length], value[:, :, :length], scale=scale
            )
            out[begin] = result.view(-1, head_dim)
            continue
        for first in range(begin, end, TILE):
            last = min(first + TILE, end)
            seen = length - (end - last)
            mask = torch.arange(seen) <= torch.arange(seen - (last - first), seen)[:, None]
            tile = query[None, first:last].transpose(1, 2)
            result = F.scaled_dot_product_attention(
                tile, key[:, :, :seen], value[:, :, :seen], mask, scale=scale, enable_gqa=True
            )
            out[first:last] = result[0].transpose(0, 1)
    return out
'''
SCHED = """
# exercise {num}
from lessons.given.scheduling import Plan
class {name}:
    def __init__(self, max_num_seqs, token_budget, block_size):
        self.seqs, self.budget, self.size = max_num_seqs, token_budget, block_size
    def schedule(self, running, waiting, num_free_blocks):
        running, free, budget = list(running), num_free_blocks, self.budget
        rows, preempted = [], []
        chunks = {chunks}
        i = 0
        while i < len(running) and budget:
            s = running[i]
            n = min(s.known - s.computed, budget)
            need = max(0, -(-(s.computed + n) // self.size) - s.blocks)
            while need > free and len(running) > i:
                v = running.pop(); free += v.blocks; preempted.append(v.id)
            if i >= len(running): break
            free -= need; budget -= n; rows.append((s.id, n)); i += 1
        if not preempted and i == len(running):
            seats = self.seqs - len(running)
            for s in waiting:
                n = min(s.known - s.computed, budget)
                need = -(-s.known // self.size) - s.blocks
                if not seats or not n or need > free: break
                if n < s.known - s.computed and not chunks: break
                free -= need; budget -= n; seats -= 1; rows.append((s.id, n))
        return Plan(rows, preempted)
"""
SOURCES["09.2"] = SCHED.format(num="09.2", name="Scheduler", chunks=False)
