"""The inner loop of a paged decode kernel, one query and one head, as plain loops."""


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def attention(
    query: list[float],
    key_blocks: list[list[list[float]]],  # [block][offset][head_dim]
    value_blocks: list[list[list[float]]],
    block_table: list[int],
    seq_len: int,
    block_size: int,
) -> float:
    attention_score = 0.0
    for token in range(seq_len):
        block = block_table[token // block_size]
        offset = token % block_size
        attention_score += dot(query, key_blocks[block][offset])
    return attention_score
