"""Grids and scales with paper and pencil."""

from math import floor, frexp, ldexp, sqrt

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def int8_zeros(values: list[float]) -> int:
    """Numbers under half a step of max / 127 are stored as 0."""
    step = max(abs(v) for v in values) / 127
    return sum(1 for v in values if v and abs(v) <= step / 2)


def e4m3(x: float) -> float:
    """Nearest number with 3 bits of fraction: eight steps to each power of two from 2**-6 on, 448 at most."""
    size = min(abs(x), 448.0)
    exponent = max(frexp(size)[1] - 1, -6) if size else -6
    step = ldexp(1.0, exponent - 3)
    steps = size / step
    whole = floor(steps)
    rest = steps - whole
    if rest > 0.5 or (rest == 0.5 and whole % 2):
        whole += 1
    return min(whole * step, 448.0) * (1 if x >= 0 else -1)


def saturated(values: list[float], scale: float) -> int:
    return sum(abs(v) / scale > 448 for v in values)


def int8_cache_ratio(head_dim: int) -> float:
    """2 bytes a number against 1, and 4 bytes of scale for each head's key and each head's value."""
    return 2 * head_dim / (head_dim + 4)


def mx_scale(values: list[float]) -> float:
    """The power of two that brings the largest into [4, 8)."""
    return ldexp(1.0, frexp(max(abs(v) for v in values))[1] - 3)


def mx_largest(values: list[float]) -> float:
    """Stored value of the largest weight of an MXFP4 block."""
    scale = mx_scale(values)
    largest = max(values, key=abs)
    size = abs(largest) / scale
    near = min(E2M1, key=lambda level: (abs(level - size), E2M1.index(level) % 2))
    return near * scale * (1 if largest > 0 else -1)


def group_bits(group_size: int, bits: int = 4) -> float:
    """A 16-bit scale and a zero point of `bits` bits for each group."""
    return bits + (16 + bits) / group_size


def awq_gb(
    layers: int,
    hidden: int,
    inner: int,
    heads: int,
    kv_heads: int,
    vocabulary: int,
    tied: bool,
    qk_norms: bool,
    group_size: int,
) -> float:
    """Heads of 128. Matrices in 4 bits with their scales; embedding, head and norms in 16."""
    matrices = layers * (2 * hidden * heads * 128 + 2 * hidden * kv_heads * 128 + 3 * hidden * inner)
    floats = (
        vocabulary * hidden * (1 if tied else 2) + (2 * layers + 1) * hidden + 2 * qk_norms * layers * 128
    )
    return (matrices * group_bits(group_size) / 8 + 2 * floats) / 1e9


def paired_interval(won: int, lost: int, cases: int) -> float:
    """Lower end of the 95 % interval of a paired difference of shares (Agresti & Min 2005), in points."""
    a, b, n = won + 0.5, lost + 0.5, cases + 2
    spread = sqrt(a + b - (a - b) ** 2 / n) / n
    return 100 * ((a - b) / n - 1.96 * spread)


def gate_passes(won: int, lost: int, cases: int, limit: float = -2.0) -> bool:
    return paired_interval(won, lost, cases) >= limit


def e4m3_first(values: list[float]) -> float:
    return e4m3(values[0])


def fp8_back(d: float, scale: float) -> float:
    return e4m3(d / scale) * scale
