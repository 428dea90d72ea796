"""Steps on paper: bytes over bandwidth, arithmetic over peak. Shapes and datasheet rates are written here once more."""

from math import ceil

from quizzes.oracles.models import SHAPES

# bytes/s, then dense FLOP/s in 16 bits and in 8 bits: NVIDIA's datasheets, sparsity taken out
DEVICES = {
    "a100-80": (2039e9, 312e12, 624e12),
    "h100": (3350e9, 989.4e12, 1978.9e12),
    "h200": (4800e9, 989.4e12, 1978.9e12),
    "b200": (8000e9, 2250e12, 4500e12),
}
WEIGHT_BITS = {"bfloat16": 16, "fp8": 8, "int8": 8, "int4": 4 + 16 / 128 + 4 / 128}


def _linear_params(model: str) -> int:
    """Parameters used by every token, norms included, without embedding and head."""
    layers, hidden, inner, heads, kv_heads, dim, _ = SHAPES[model]
    query, kv = heads * dim, kv_heads * dim
    bias = query + 2 * kv if model.startswith("qwen2.5") else 0
    attention = hidden * query + 2 * hidden * kv + query * hidden + bias
    return layers * (attention + 3 * hidden * inner + 2 * hidden) + hidden


def _peak(hardware: str, dtype: str) -> float:
    return DEVICES[hardware][2 if dtype in ("fp8", "int8") else 1]


def _limits(model: str, hardware: str, dtype: str, tokens: int) -> tuple[float, float]:
    """Seconds to move the linear layers' weights, seconds to multiply with them."""
    params = _linear_params(model)
    moving = params * WEIGHT_BITS[dtype] / 8 / DEVICES[hardware][0]
    return moving, 2 * params * tokens / _peak(hardware, dtype)


def ridge_point(hardware: str, dtype: str = "bfloat16") -> float:
    """FLOP per byte."""
    return _peak(hardware, dtype) / DEVICES[hardware][0]


def knee(hardware: str, dtype: str = "bfloat16") -> int:
    """Each weight of w bytes is used for 2 FLOP per row: 2 T / w must pass the ridge."""
    rows = ridge_point(hardware, dtype) * WEIGHT_BITS[dtype] / 8 / 2
    return int(rows) + 1


def decode_step_ms(
    model: str, hardware: str, rows: int = 1, context: int = 1000, dtype: str = "bfloat16"
) -> float:
    """Linear layers, 16-bit head and 16-bit KV, each at the longer of moving and multiplying."""
    layers, hidden, _, heads, kv_heads, dim, vocabulary = SHAPES[model]
    bandwidth = DEVICES[hardware][0]
    head = max(2 * vocabulary * hidden / bandwidth, 2 * vocabulary * hidden * rows / _peak(hardware, dtype))
    positions = rows * (context + 1)
    kv = positions * layers * 2 * kv_heads * dim * 2 / bandwidth
    scores = positions * layers * 4 * heads * dim / _peak(hardware, "bfloat16")
    return 1e3 * (max(_limits(model, hardware, dtype, rows)) + head + max(kv, scores))


def decode_rate(
    model: str, hardware: str, rows: int = 1, context: int = 1000, dtype: str = "bfloat16"
) -> float:
    """Tokens per second."""
    return 1e3 * rows / decode_step_ms(model, hardware, rows, context, dtype)


def batch_speedup(model: str, hardware: str, batches: list[int], context: int = 1000) -> float:
    """Tokens per second of the last batch over the first."""
    first, last = (decode_rate(model, hardware, rows, context) for rows in (batches[0], batches[-1]))
    return last / first


def kv_equals_weights(model: str, context: int) -> int:
    """Rows whose KV is as large as the weights that a step reads, both in 16 bits."""
    layers, hidden, _, _, kv_heads, dim, vocabulary = SHAPES[model]
    weights = 2 * (_linear_params(model) + vocabulary * hidden)
    return ceil(weights / ((context + 1) * layers * 2 * kv_heads * dim * 2))


def linear_speedup(hardware: str, other: str, tokens: int, base: str = "bfloat16") -> float:
    """Time of the linear layers in `base` over `other`; the model's size cancels."""
    before, after = (max(_limits("llama-3-8b", hardware, dtype, tokens)) for dtype in (base, other))
    return before / after


def prefill_speedup(hardware: str, other: str, prompt_tokens: int) -> float:
    return linear_speedup(hardware, other, prompt_tokens)


def prefill_ms(model: str, hardware: str, tokens_per_row: int) -> float:
    """The linear layers alone, of a prompt read in one piece."""
    return 1e3 * max(_limits(model, hardware, "bfloat16", tokens_per_row))


def mfu_percent(model: str, hardware: str, rows: int, context: int) -> float:
    """Model FLOPs utilisation of a decode step, in percent."""
    layers, hidden, _, heads, _, dim, vocabulary = SHAPES[model]
    flops = 2 * rows * (_linear_params(model) + vocabulary * hidden)
    flops += rows * (context + 1) * layers * 4 * heads * dim
    seconds = decode_step_ms(model, hardware, rows, context) / 1e3
    return 100 * flops / seconds / _peak(hardware, "bfloat16")


def experts_read(experts: int, top_k: int, tokens: int) -> float:
    """Expected experts that some token chose: the chain over tokens, adding those that are new."""
    read = 0.0
    for _ in range(tokens):
        read += (experts - read) * top_k / experts
    return read


def num_tiles(m: int, n: int, tile_m: int, tile_n: int) -> int:
    return ceil(m / tile_m) * ceil(n / tile_n)


def num_waves(m: int, n: int, tile_m: int, tile_n: int, sms: int) -> int:
    return ceil(num_tiles(m, n, tile_m, tile_n) / sms)


def tile_intensity(tile_m: int, tile_n: int, bytes_per_number: int = 2) -> float:
    """2 tile_m tile_n k FLOP for (tile_m + tile_n) k numbers, where tiles divide the matrix."""
    return 2 * tile_m * tile_n / ((tile_m + tile_n) * bytes_per_number)


def sectors(stride: int, bytes_per_lane: int) -> int:
    """Sectors that 32 lanes touch from an aligned start: those in the span, at most one per lane."""
    gap = stride * bytes_per_lane
    if gap >= 32:
        return 32
    return (31 * gap + bytes_per_lane - 1) // 32 + 1


def serial_ms(host_ms: float, device_ms: float, steps: int) -> float:
    return steps * (host_ms + device_ms)


def overlapped_ms(host_ms: float, device_ms: float, steps: int) -> float:
    """The first step must be prepared; then the slower of the two sets the pace; the last step must be computed."""
    return host_ms + (steps - 1) * max(host_ms, device_ms) + device_ms


def graph_size(rows: int) -> int:
    """The smallest recorded size that holds the batch: 1, 2, 4 to 8, then multiples of 8."""
    recorded: list[int] = [1, 2, 4, 5, 6, 7, 8, *range(16, 513, 8)]
    return next(size for size in recorded if size >= rows)


def free_chunk(hardware: str, rows: int) -> int:
    """Prompt tokens that fit into a decode step before the ridge."""
    return knee(hardware) - rows


def free_drafts(hardware: str, rows: int) -> int:
    """rows (k + 1) tokens must stay below the border."""
    return max(0, (knee(hardware) - 1) // rows - 1)


def kv_percent(model: str, rows: int, context: int, kv_cache_dtype: str = "bfloat16") -> float:
    """Share of all bytes that a decode step reads; weights in 16 bits."""
    layers, hidden, _, _, kv_heads, dim, vocabulary = SHAPES[model]
    width = 1 if kv_cache_dtype == "fp8" else 2
    kv = rows * (context + 1) * layers * 2 * kv_heads * dim * width
    return 100 * kv / (kv + 2 * (_linear_params(model) + vocabulary * hidden))


# layers, hidden, heads, kv heads, head dim, expert size, experts, chosen, numbers of the head norms
MIXTURES = {
    "mixtral-8x7b": (32, 4096, 32, 8, 128, 14336, 8, 2, 0),
    "qwen3-30b-a3b": (48, 2048, 32, 4, 128, 768, 128, 8, 256),
}


def moe_knee(model: str, hardware: str) -> int:
    """All weights are moved for the arithmetic of the active ones."""
    layers, hidden, heads, kv_heads, dim, inner, experts, chosen, norms = MIXTURES[model]
    attention = 2 * hidden * heads * dim + 2 * hidden * kv_heads * dim + norms
    shared = layers * (attention + hidden * experts + 2 * hidden) + hidden
    expert = layers * 3 * hidden * inner
    ratio = (shared + experts * expert) / (shared + chosen * expert)
    return int(ratio * ridge_point(hardware)) + 1
