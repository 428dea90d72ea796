"""Adapters by arithmetic, and slots on paper."""

from __future__ import annotations

SHAPES = {
    "llama-3.1-8b": (32, 4096, 14336, 32 * 128, 8 * 128),
    "llama-2-7b": (32, 4096, 11008, 4096, 4096),
    "llama-2-13b": (40, 5120, 13824, 5120, 5120),
    "qwen2.5-7b": (28, 3584, 18944, 28 * 128, 4 * 128),
    "qwen3-8b": (36, 4096, 12288, 32 * 128, 8 * 128),
    "llama-3.1-70b": (80, 8192, 28672, 64 * 128, 8 * 128),
}
"""layers, hidden, intermediate, width of the queries, width of the keys: from the config.json of each."""


def matrices(model: str) -> dict[str, tuple[int, int]]:
    """(out, in) of a layer's matrices."""
    _, hidden, intermediate, q, kv = SHAPES[model]
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
    """A [rank, in] and B [out, rank] of each adapted matrix, layer by layer."""
    total = 0
    for _ in range(SHAPES[model][0]):
        for name, (rows, columns) in matrices(model).items():
            if name in modules:
                total += rank * columns + rows * rank
    return total * value_bytes


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


VOCABULARY = {"llama-3.1-8b": 128_256, "qwen3-8b": 151_936, "llama-2-13b": 32_000}
HEAD_NORMS = {"qwen3-8b": 2 * 128}
"""Per layer, beside the two norms of the hidden state."""


def base_bytes(model: str) -> int:
    """Matrices, norms, embedding and head in 16 bits."""
    layers, hidden, *_ = SHAPES[model]
    total = 2 * VOCABULARY[model] * hidden + hidden
    for _ in range(layers):
        total += sum(rows * columns for rows, columns in matrices(model).values())
        total += 2 * hidden + HEAD_NORMS.get(model, 0)
    return 2 * total


def saving(model: str, max_rank: int, adapters: int) -> float:
    """Merged copies over one base with a slot for each."""
    return adapters * base_bytes(model) / (base_bytes(model) + slot_bytes(model, max_rank, adapters))
