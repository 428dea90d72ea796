"""Return values of the loop."""

import random
from types import ModuleType
from typing import Any


def case(length: int, head_dim: int, block_size: int, seed: int = 0) -> dict[str, Any]:
    """A query and a scrambled paged cache."""
    rng = random.Random(seed)
    blocks = -(-length // block_size)

    def vector() -> list[float]:
        return [rng.gauss(0, 1) for _ in range(head_dim)]

    def cache() -> list[list[list[float]]]:
        return [[vector() for _ in range(block_size)] for _ in range(blocks)]

    table = list(range(blocks))
    rng.shuffle(table)
    return {
        "query": vector(),
        "key_blocks": cache(),
        "value_blocks": cache(),
        "block_table": table,
        "seq_len": length,
        "block_size": block_size,
    }


def numbers_returned(given: ModuleType, *, length: int = 20, head_dim: int = 8) -> int:
    """Return the count of numbers that come back for one query of head_dim numbers."""
    out = given.attention(**case(length, head_dim, 4))
    return len(out) if isinstance(out, list) else 1


def depends_on_values(given: ModuleType, *, length: int = 20) -> bool:
    """Whether other values in the cache give another result."""
    one = case(length, 8, 4)
    other = {**one, "value_blocks": case(length, 8, 4, seed=9)["value_blocks"]}
    return bool(given.attention(**one) != given.attention(**other))


def grows_with_repeats(given: ModuleType, *, repeats: int = 4) -> float:
    """The cache holds one token, then the same token several times: how many times larger is the result?

    Attention over copies of one token is that token's value, however many there are.
    """
    key, value = [1.0, 2.0], [3.0, 4.0]

    def run(times: int) -> float:
        out = given.attention([0.5, 1.0], [[key] * times], [[value] * times], [0], times, times)
        return out[0] if isinstance(out, list) else out

    return round(run(repeats) / run(1), 6)
