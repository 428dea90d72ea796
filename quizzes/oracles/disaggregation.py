"""Hand-overs by arithmetic."""

from quizzes.oracles.models import SHAPES

LINKS_GB = {"nvlink4": 450.0, "ib-ndr": 50.0, "ib-hdr": 25.0, "ethernet-100g": 12.5, "pcie5": 64.0}


def bytes_per_token(model: str, value_bytes: int = 2) -> int:
    layers, _, _, _, heads, dim, _ = SHAPES[model]
    return sum(2 * heads * dim * value_bytes for _ in range(layers))


def kv_bytes(model: str, prompt: int, value_bytes: int = 2) -> int:
    return prompt * bytes_per_token(model, value_bytes)


def transfer_ms(
    model: str, prompt: int, link: str, tp: int, share: float = 0.8, latency_s: float = 12e-6
) -> float:
    """Each of tp senders moves its heads over a link of its own."""
    per_link = kv_bytes(model, prompt) / tp
    return 1e3 * (per_link / (LINKS_GB[link] * 1e9 * share) + latency_s)


def placed_blocks(prompt: int, block_size: int) -> int:
    """Only full blocks have a name that the other side can ask for."""
    return prompt // block_size


def first_step(prompt: int, block_size: int) -> int:
    """Tokens of the decode replica's first step: the rest of the last block, and the first token."""
    return prompt - placed_blocks(prompt, block_size) * block_size + 1
