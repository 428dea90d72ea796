"""Budgets, intervals and bills, worked out on paper."""

import math
from statistics import NormalDist

GIB = 2**30
Z = NormalDist().inv_cdf(0.975)


def kv_tokens(
    total_mib: int, utilisation: float, params: int, hidden: int, inner: int, per_token: int
) -> int:
    """A 16-bit model on one card: 1 GiB runtime, activations of 8192 tokens, blocks of 16, one of them unused."""
    free = total_mib * 2**20 * utilisation - 2 * params - GIB - 8192 * 2 * (3 * hidden + 2 * inner)
    return (math.floor(free / (16 * per_token)) - 1) * 16


def node_gb(total_mib: int, utilisation: float, params: int, hidden: int, inner: int, gpus: int) -> float:
    """KV memory of all GPUs of a node, in GB."""
    one = total_mib * 2**20 * utilisation - GIB - 8192 * 2 * (3 * hidden + 2 * inner / gpus)
    return (gpus * one - 2 * params) / 1e9


def tokens_each(
    claimed: int, total_mib: int, utilisation: float, params: int, hidden: int, inner: int, per_token: int
) -> int:
    blocks = kv_tokens(total_mib, utilisation, params, hidden, inner, per_token) // 16
    return 16 * (blocks // claimed)


def requests_of(
    length: int, total_mib: int, utilisation: float, params: int, hidden: int, inner: int, per_token: int
) -> int:
    blocks = kv_tokens(total_mib, utilisation, params, hidden, inner, per_token) // 16
    return blocks // math.ceil(length / 16)


def awq_gb(
    layers: int, hidden: int, inner: int, query: int, key: int, vocab: int, extra: int, group: int
) -> float:
    """4 bits, a 16-bit scale and a 4-bit zero point per group; embedding, head and small tensors in 16 bits."""
    matrices = layers * hidden * (2 * query + 2 * key + 3 * inner)
    small = layers * (2 * hidden + extra) + hidden + 2 * vocab * hidden
    return (matrices * (4 + 20 / group) / 8 + small * 2) / 1e9


def tokens_in(limit_ms: float, ttft_ms: float, tpot_ms: float, hops_ms: list[float] | None = None) -> int:
    """Count tokens until the next one would be late."""
    now, count = sum(hops_ms or []) + ttft_ms, 0
    while now <= limit_ms + 1e-6:
        count, now = count + 1, now + tpot_ms
    return count


def wilson_low(cases: int, right: int) -> float:
    """The share p below the observed one at which the observation is z standard errors away, by bisection."""
    observed = right / cases
    low, high = 0.0, observed
    for _ in range(200):
        middle = (low + high) / 2
        if observed - middle > Z * math.sqrt(middle * (1 - middle) / cases):
            low = middle
        else:
            high = middle
    return low


def cases_needed(gate: float) -> int:
    """All right: n / (n + z^2) reaches the gate."""
    return math.ceil(gate * Z * Z / (1 - gate))


def per_arm(base: float, bad: float) -> int:
    """Fewest requests per arm with power 80 %: search on the power of the test, not on its inverse."""
    normal = NormalDist()
    mean, spread = (base + bad) / 2, base * (1 - base) + bad * (1 - bad)

    def power(count: int) -> float:
        margin = abs(bad - base) * math.sqrt(count) - Z * math.sqrt(2 * mean * (1 - mean))
        return normal.cdf(margin / math.sqrt(spread))

    low, high = 1, 1
    while power(high) < 0.8:
        high *= 2
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if power(middle) < 0.8 else (low, middle)
    return low


def hybrid_bill(self_hosted: float, managed_equivalent: float, served: float, people: float) -> float:
    """Own bill, people, and the part that stays with the service at its price."""
    stays = managed_equivalent * (1 - served) / served
    return self_hosted + people + stays


def hybrid_saving(self_hosted: float, managed_equivalent: float, served: float, people: float) -> float:
    bill = hybrid_bill(self_hosted, managed_equivalent, served, people)
    return 1 - bill / (managed_equivalent + managed_equivalent * (1 - served) / served)


def slot_bytes(max_loras: int, max_lora_rank: int) -> int:
    """`shop`, float32: (in + out) x rank for the seven matrices of each of six layers."""
    sizes = [(256, 256), (256, 128), (256, 128), (256, 256), (256, 640), (256, 640), (640, 256)]
    return max_loras * 6 * 4 * sum((wide + tall) * max_lora_rank for wide, tall in sizes)


def is_enough(rate: float, share: float, base: float, bad: float) -> bool:
    """One hour of a canary."""
    return round(3600 * rate * share) >= per_arm(base, bad)


def low_percent(cases: int, right: int) -> float:
    return 100 * wilson_low(cases, right)


def moe_params(shape: list[int], tied: bool = False) -> int:
    """Every expert of every layer. shape: layers, hidden, query width, key width, head dim of a norm on queries and
    keys (0: none), experts, expert width, vocabulary."""
    layers, hidden, query, key, norm, experts, inner, vocab = shape
    attention = 2 * hidden * query + 2 * hidden * key + 2 * norm
    layer = attention + experts * 3 * hidden * inner + hidden * experts + 2 * hidden
    return layers * layer + hidden + vocab * hidden * (1 if tied else 2)


def moe_gib(shape: list[int], tp: int) -> float:
    """16-bit weights of one GPU."""
    return 2 * moe_params(shape) / tp / GIB


def moe_has_room(shape: list[int], tp: int, gpu: str) -> bool:
    """Whether anything of 92 % is left after weights, 1 GiB, and the hidden states of 8192 tokens (at most 1 GiB)."""
    usable = {"h100": 81_559, "h200": 143_771}[gpu] / 1024 * 0.92
    left = usable - moe_gib(shape, tp) - 1
    if 0 < left < 1.5:
        raise ValueError("too close to tell on paper")
    return left > 0


def one_gpu_tokens(gpu: str, utilisation: float, kv: tuple[str, int]) -> int:
    """KV tokens of Llama-3.1-8B in bf16 with steps of 2,048 tokens; a block of 16 is the null block."""
    mib = {"a10g": 23_028, "l4": 23_034, "a100-40": 40_960, "h100": 81_559}[gpu]
    step = 2048 * 2 * (3 * 4096 + 2 * 14_336)
    free = mib * 2**20 * utilisation - 2 * 8_030_261_248 - GIB - step
    return int(free / kv[1] / 16) * 16 - 16


def one_gpu_concurrency(gpu: str, utilisation: float, kv: tuple[str, int], length: int) -> float:
    return one_gpu_tokens(gpu, utilisation, kv) / length


def fleet_of_listed(labels: list[str], rows: int, context: int, gb_per_s: int) -> float:
    """Tokens per second of the different nodes if a step takes the time to read weights, keys and values."""
    kv = sum(2 * 32 * 128 * 2 for _ in range(32))
    step = (2 * (6_476_271_616 + 131_072_000) + rows * (context + 1) * kv) / gb_per_s / 1e9
    return len(set(labels)) * rows / step
