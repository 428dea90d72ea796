"""Sizes of the graphs that decode steps are replayed from (`engine/worker/decode_graphs.py`)."""


def graph_size(num_tokens: int) -> int:
    """Return the tokens of the graph for a step: exact up to 8 (but 4 for 3, which is faster), then multiples of 8."""
    if num_tokens <= 8:
        return 4 if num_tokens == 3 else num_tokens
    return -(-num_tokens // 8) * 8
