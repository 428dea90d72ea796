"""The inner loop of a paged decode kernel: online softmax, one pass over keys and values."""

import math


def attention(
    query: list[float],
    key_blocks: list[list[list[float]]],
    value_blocks: list[list[list[float]]],
    block_table: list[int],
    seq_len: int,
    block_size: int,
) -> list[float]:
    scale = 1.0 / math.sqrt(len(query))
    top, total = -math.inf, 0.0
    output = [0.0] * len(query)
    for token in range(seq_len):
        block, offset = block_table[token // block_size], token % block_size
        key, value = key_blocks[block][offset], value_blocks[block][offset]
        score = scale * sum(q * k for q, k in zip(query, key, strict=True))
        new_top = max(top, score)
        shrink, weight = math.exp(top - new_top), math.exp(score - new_top)
        total = total * shrink + weight
        output = [o * shrink + weight * v for o, v in zip(output, value, strict=True)]
        top = new_top
    return [o / total for o in output]
