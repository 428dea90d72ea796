"""Adapters by arithmetic, and slots on paper."""

from quizzes.oracles.models import SHAPES

HEAD_NORMS = {"qwen3-8b": 2 * 128}
"""Numbers per layer, beside the two norms of the hidden state."""


def matrices(model: str) -> dict[str, tuple[int, int]]:
    """(out, in) of a layer's matrices."""
    _, hidden, intermediate, heads, kv_heads, dim, _ = SHAPES[model]
    q, kv = heads * dim, kv_heads * dim
    return {
        "q": (q, hidden),
        "k": (kv, hidden),
        "v": (kv, hidden),
        "o": (hidden, q),
        "gate": (intermediate, hidden),
        "up": (intermediate, hidden),
        "down": (hidden, intermediate),
    }


def adapter_bytes(model: str, rank: int, modules: list[str], value_bytes: int = 2) -> int:
    """A [rank, in] and B [out, rank] of each adapted matrix."""
    a_and_b = sum(
        rank * (rows + columns) for name, (rows, columns) in matrices(model).items() if name in modules
    )
    return SHAPES[model][0] * a_and_b * value_bytes


def adapter_mb(model: str, rank: int, modules: list[str], value_bytes: int = 2) -> float:
    return adapter_bytes(model, rank, modules, value_bytes) / 1e6


def slot_bytes(model: str, max_rank: int, max_loras: int, value_bytes: int = 2) -> int:
    """All slots: every one has room for every matrix at max_rank."""
    return max_loras * adapter_bytes(model, max_rank, list(matrices(model)), value_bytes)


def rounds(adapters: list[str], max_loras: int, output: int) -> int:
    """Steps when all come at once and each adapter's requests run together: groups of max_loras adapters in turn.

    Holds where no adapter has requests behind those of another that waits: every adapter in one run of the list.
    """
    different = len(dict.fromkeys(adapters))
    return -(-different // max_loras) * output


def cached_by_adapter(adapters: list[str], prompt: int, block_size: int) -> list[int]:
    """Hits of equal prompts sent one after the other: only what the same adapter computed counts, and the last
    token is always computed."""
    seen: set[str] = set()
    hits = []
    for name in adapters:
        hits.append((prompt - 1) // block_size * block_size if name in seen else 0)
        seen.add(name)
    return hits


def base_bytes(model: str) -> int:
    """Matrices, norms, embedding and head in 16 bits."""
    layers, hidden, *_, vocabulary = SHAPES[model]
    layer = sum(rows * columns for rows, columns in matrices(model).values())
    layer += 2 * hidden + HEAD_NORMS.get(model, 0)
    return 2 * (2 * vocabulary * hidden + hidden + layers * layer)


def saving(model: str, max_rank: int, adapters: int) -> float:
    """Merged copies over one base with a slot for each."""
    return adapters * base_bytes(model) / (base_bytes(model) + slot_bytes(model, max_rank, adapters))


def loads_in_turn(adapters: list[str], replicas: int, max_loras: int) -> int:
    """Loads if request i goes to engine i modulo `replicas` and each engine keeps the last max_loras adapters."""
    kept: list[list[str]] = [[] for _ in range(replicas)]
    loads = 0
    for index, name in enumerate(adapters):
        engine = kept[index % replicas]
        loads += name not in engine
        if name in engine:
            engine.remove(name)
        engine.append(name)
        del engine[:-max_loras]
    return loads
