"""Bytes, blocks and holes, worked out on paper."""

from quizzes.oracles.lifecycle import blocks_at_end
from quizzes.oracles.prefix_cache import window_most

WIDTH = {"float32": 4.0, "auto": 2.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "int8_per_token_head": 1.0}
"""Bytes of a number; auto for a 16-bit model."""


def vector_bytes(head_dim: int, kv_dtype: str) -> float:
    """One key (or value) of one head; int8 keeps a 4-byte scale beside it."""
    return head_dim * WIDTH[kv_dtype] + (4 if kv_dtype == "int8_per_token_head" else 0)


def kv_per_token(layers: int, kv_heads: int, head_dim: int, kv_dtype: str) -> int:
    """A key and a value for each head of each layer."""
    return round(sum(2 * vector_bytes(head_dim, kv_dtype) for _ in range(layers * kv_heads)))


def kv_per_sequence_gib(layers: int, kv_heads: int, head_dim: int, kv_dtype: str, tokens: int) -> float:
    return kv_per_token(layers, kv_heads, head_dim, kv_dtype) * tokens / 2**30


def copies(kv_heads: int, tp: int) -> float:
    """GPUs that hold the same head when there are more GPUs than heads."""
    return max(1.0, tp / kv_heads)


def kv_per_gpu(layers: int, kv_heads: int, head_dim: int, tp: int) -> float:
    """KV bytes in 16 bits: all heads once, times the copies, over the GPUs."""
    return layers * 2 * kv_heads * head_dim * 2 * copies(kv_heads, tp) / tp


def mla_per_token(layers: int, latent: int, rope: int, kv_dtype: str) -> int:
    """One compressed vector and one rotary key for each layer, whatever the number of heads."""
    return int((latent + rope) * layers * WIDTH[kv_dtype])


def hybrid_gib(
    full_layers: int, window_layers: int, window: int, kv_heads: int, head_dim: int, tokens: int
) -> float:
    """16 bits: count (layer, token) pairs that can still be read."""
    pairs = full_layers * tokens + window_layers * min(window, tokens)
    return pairs * kv_heads * head_dim * 4 / 2**30


def hybrid_saving(full_layers: int, window_layers: int, window: int, tokens: int) -> float:
    kept = full_layers / (full_layers + window_layers)
    return (1 - kept) * (1 - min(window, tokens) / tokens)


window_peak = window_most


def pool_bytes(num_blocks: int, block_size: int, kv_dtype: str) -> int:
    """`shop` on a CPU: 6 layers, 4 heads of 32; float32 where the cache is not quantised."""
    width = 4 if kv_dtype == "auto" else 1
    scale = 4 if kv_dtype == "int8_per_token_head" else 0
    slots = num_blocks * block_size
    return slots * 6 * 4 * 2 * (32 * width + scale)


def blocks_by_request(lens: list[int], block_size: int) -> list[int]:
    return [-(-length // block_size) for length in lens]


def total_blocks(lens: list[int], block_size: int) -> int:
    return sum(blocks_by_request(lens, block_size))


def wasted_slots(lens: list[int], block_size: int) -> int:
    """Slots missing to the next multiple of the block size."""
    return sum(-length % block_size for length in lens)


def hit_tokens(shared: int, block_sizes: list[int]) -> list[int]:
    """Only full blocks can be shared."""
    return [shared - shared % size for size in block_sizes]


def slot_of(free_order: list[int], token: int, block_size: int) -> int:
    """Write out all slots in the order in which the sequence fills them."""
    slots = [block * block_size + offset for block in free_order for offset in range(block_size)]
    return slots[token]


def steps_with_a_new_block(prompt: int, output: int, block_size: int) -> list[int]:
    """Step s > 0 writes token prompt + s - 1; it needs a block if that token is the first of one."""
    return [step for step in range(1, output) if (prompt + step - 1) % block_size == 0]


peak_blocks = blocks_at_end


def reserved_at_once(slots: int, max_len: int, prompts: list[int]) -> int:
    return min(slots // max_len, len(prompts))


def buddies_at_once(slots: int, prompts: list[int], outputs: list[int]) -> int:
    """Powers of two without frees: a size that fits into the sum fits, since all free sizes differ."""
    left, count = slots, 0
    for prompt, output in zip(prompts, outputs, strict=True):
        size = 1
        while size < prompt + output - 1:
            size *= 2
        if size > left:
            break
        left, count = left - size, count + 1
    return count


def paged_at_once(slots: int, prompts: list[int], block_size: int) -> int:
    """Only prompts need room in the first step."""
    left, count = slots // block_size, 0
    for blocks in blocks_by_request(prompts, block_size):
        if blocks > left:
            break
        left, count = left - blocks, count + 1
    return count


def free_blocks_in(hole_sizes: list[int], block_size: int) -> int:
    return sum(size // block_size for size in hole_sizes)


def table_share(layers: int, kv_heads: int, head_dim: int, block_size: int) -> float:
    """4 bytes of block table over a block of 16-bit keys and values."""
    return 4 / (4 * layers * kv_heads * head_dim * block_size)
