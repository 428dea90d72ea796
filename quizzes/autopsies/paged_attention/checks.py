"""Requirements on paged attention.

PagedAttention(num_heads, num_kv_heads, head_dim, block_size).forward(query, key_cache, value_cache,
block_tables, seq_lens) -> [batch, tokens, heads, head_dim]; the queries are the last tokens of each sequence."""

import torch

from quizzes.autopsies.programs import Program

TOLERANCE = 1e-5


def _cache(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values: [num_blocks, block_size, kv_heads, head_dim]."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def _dense(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Attention of one sequence, a query and a head at a time: [tokens, heads, head_dim]."""
    tokens, heads, head_dim = query.shape
    length, group = keys.shape[0], heads // keys.shape[1]
    output = torch.zeros_like(query)
    for t in range(tokens):
        seen = length - tokens + t + 1
        for h in range(heads):
            scores = keys[:seen, h // group] @ query[t, h] / head_dim**0.5
            output[t, h] = torch.softmax(scores, 0) @ values[:seen, h // group]
    return output


def _compare(
    program: Program,
    seq_lens: list[int],
    tokens: int,
    *,
    heads: int = 4,
    kv_heads: int = 4,
    head_dim: int = 8,
    block_size: int = 4,
) -> None:
    max_blocks = -(-max(seq_lens) // block_size)
    keys, values = _cache(len(seq_lens) * max_blocks + 3, block_size, kv_heads, head_dim)
    generator = torch.Generator().manual_seed(2)
    query = torch.randn(len(seq_lens), tokens, heads, head_dim, generator=generator)
    tables = torch.randperm(len(seq_lens) * max_blocks, generator=generator).view(len(seq_lens), max_blocks)
    module = program.PagedAttention(heads, kv_heads, head_dim, block_size)
    output = module.forward(query, keys, values, tables, torch.tensor(seq_lens))
    assert list(output.shape) == list(query.shape), f"shape {list(output.shape)}, wanted {list(query.shape)}"
    for i, length in enumerate(seq_lens):
        own_keys, own_values = (torch.cat([*cache[tables[i]]])[:length] for cache in (keys, values))
        gap = float((output[i] - _dense(query[i], own_keys, own_values)).abs().max())
        assert gap < TOLERANCE, f"sequence {i} of length {length}: differs from dense attention by {gap:.2g}"


def check_a_decode_equals_dense_attention(program: Program) -> None:
    """One query at the end of a sequence sees all of it, through a scrambled block table."""
    _compare(program, [8], 1)


def check_sequences_of_different_lengths(program: Program) -> None:
    """In a batch of lengths 3, 9 and 16 each sequence sees its own tokens and no rest of a block."""
    _compare(program, [3, 9, 16], 1)


def check_a_prompt_is_causal(program: Program) -> None:
    """Query t of a whole prompt sees keys 0 to t."""
    _compare(program, [6], 6)


def check_a_chunk_knows_its_position(program: Program) -> None:
    """The queries are the last tokens: with 3 queries and 11 keys the first query sees 9."""
    _compare(program, [11, 7], 3)


def check_grouped_query_heads(program: Program) -> None:
    """Query head h reads KV head h // (num_heads / num_kv_heads)."""
    _compare(program, [10], 2, heads=8, kv_heads=2)


def check_any_shape(program: Program) -> None:
    """Heads, head_dim, block_size and lengths may be any that fit each other."""
    rng = program.rng
    for _ in range(3):
        kv_heads, group, tokens = rng.randint(1, 3), rng.randint(1, 3), rng.choice([1, 4, 5, 7])
        seq_lens = [rng.randint(tokens, 40) for _ in range(rng.choice([1, 4, 5]))]
        head_dim, block_size = rng.choice([2, 6, 16, 24]), rng.choice([1, 2, 5, 7])
        _compare(
            program,
            seq_lens,
            tokens,
            heads=kv_heads * group,
            kv_heads=kv_heads,
            head_dim=head_dim,
            block_size=block_size,
        )


def check_half_precision_works(program: Program) -> None:
    """fp16 queries and caches give fp16 output without inf or nan."""
    keys, values = _cache(4, 4, 4, 8)
    query = torch.randn(1, 2, 4, 8, generator=torch.Generator().manual_seed(3))
    module = program.PagedAttention(4, 4, 8, 4)
    tables, seq_lens = torch.tensor([[2, 0]]), torch.tensor([7])
    output = module.forward(query.half(), keys.half(), values.half(), tables, seq_lens)
    assert output.dtype == torch.float16, f"output is {output.dtype}"
    assert bool(torch.isfinite(output).all()), "inf or nan in the output"


def check_what_lies_behind_a_sequence_does_not_matter(program: Program) -> None:
    """Slots beyond seq_len may hold anything, nan too: they are not read into the result."""
    keys, values = _cache(3, 4, 2, 8)
    query = torch.randn(1, 1, 2, 8, generator=torch.Generator().manual_seed(4))
    module = program.PagedAttention(2, 2, 8, 4)
    args = (torch.tensor([[1, 2]]), torch.tensor([5]))
    clean = module.forward(query, keys, values, *args)
    keys[2, 1:] = float("nan")
    values[2, 1:] = float("nan")
    dirty = module.forward(query, keys, values, *args)
    assert torch.equal(clean, dirty), "what lies behind the sequence changed its output"
