"""Caught by check_large_scores_do_not_overflow: exponentials of raw scores overflow."""

from __future__ import annotations

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
    total = 0.0
    output = [0.0] * len(query)
    for token in range(seq_len):
        block, offset = block_table[token // block_size], token % block_size
        key, value = key_blocks[block][offset], value_blocks[block][offset]
        score = scale * sum(q * k for q, k in zip(query, key, strict=True))
        new_top = 0.0
        shrink, weight = 1.0, math.exp(score - new_top) if score < 700 else math.inf
        total = total * shrink + weight
        output = [o * shrink + weight * v for o, v in zip(output, value, strict=True)]
    return [o / total for o in output]
