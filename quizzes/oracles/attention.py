"""Tables, tiles and chunks on paper."""

from math import ceil, exp

from quizzes.oracles.scheduling import reread_tokens


def first_table(prompts: list[int], block_size: int, last: int) -> list[int]:
    """Blocks of the last of several requests if none has left: ids count up from 1, 0 is the null block."""
    before = sum(ceil(n / block_size) for n in prompts)
    return list(range(before + 1, before + 1 + ceil(last / block_size)))


def reused_table(
    prompts: list[int], block_size: int, last: int, finished: list[int], num_blocks: int
) -> list[int]:
    """The same when some have left: what they held is handed out first, the last that left before the others, each
    from its first block on; then blocks that were never used."""
    starts, taken = [], 0
    for n in prompts:
        starts.append(taken + 1)
        taken += ceil(n / block_size)
    free = list(range(taken + 1, num_blocks + 1))
    for index in finished:
        own = list(range(starts[index], starts[index] + ceil(prompts[index] / block_size)))
        free = own + free
    return free[: ceil(last / block_size)]


def reused_table_in_vllm(
    prompts: list[int], block_size: int, last: int, finished: list[int], num_blocks: int
) -> list[int]:
    """vLLM 0.32's free queue: a request's uncached blocks are prepended as one list, its last block first."""
    taken = [0]
    for n in prompts:
        taken.append(taken[-1] + ceil(n / block_size))
    queue = list(range(taken[-1] + 1, num_blocks + 1))
    for index in finished:
        queue = list(range(taken[index + 1], taken[index], -1)) + queue
    return queue[: ceil(last / block_size)]


def first_slot(prompts: list[int], block_size: int, last: int, position: int) -> int:
    """Slots are counted over the whole pool, block by block."""
    table = first_table(prompts, block_size, last)
    return table[position // block_size] * block_size + position % block_size


def table_percent(context: int, block_size: int, head_dim: int, bytes_per_number: int = 2) -> float:
    """4 bytes of table for each block's keys and values of one head, in percent of both."""
    table = ceil(context / block_size) * 4
    kv = context * 2 * head_dim * bytes_per_number
    return 100 * table / (table + kv)


def rescales(scores: list[int], tile: int) -> int:
    """Tiles whose maximum exceeds all earlier scores."""
    peaks = [max(scores[start : start + tile]) for start in range(0, len(scores), tile)]
    return sum(peak > max(peaks[:index]) for index, peak in enumerate(peaks) if index)


def flash_ratio(queries: int, keys: int, head_dim: int, tile: int) -> float:
    """Numbers moved: the textbook's four passes over the scores against keys and values once per tile of queries."""
    textbook = 4 * queries * keys + 2 * (queries + keys) * head_dim
    fused = 2 * queries * head_dim + ceil(queries / tile) * 2 * keys * head_dim
    return textbook / fused


def split_programs(lens: list[int], kv_heads: int, split: int) -> int:
    return sum(kv_heads * ceil(n / split) for n in lens)


def merged(m1: float, l1: float, o1: float, m2: float, l2: float, o2: float) -> float:
    """Two normalised partial outputs, by the weight exp(m) l that each stands for."""
    first, second = exp(m1) * l1, exp(m2) * l2
    return (first * o1 + second * o2) / (first + second)


def positions_with(prompt: int, generated: int) -> int:
    """The last token is never fed back."""
    return prompt + generated - 1


def positions_without(prompt: int, generated: int) -> int:
    return generated * (2 * prompt + generated - 1) // 2


chunk_reads = reread_tokens


def num_chunks(prompt: int, chunk: int) -> int:
    return ceil(prompt / chunk)


def mla_saving(heads: int, latent: int, rope: int, nope: int, value: int) -> float:
    """Numbers per token and layer: all heads' keys and values over latent and rotary key."""
    return heads * (nope + rope + value) / (latent + rope)


def mla_intensity(heads: int, latent: int, rope: int) -> float:
    """Each 16-bit number of the latent is used twice by each head, each of the rotary key once; 2 FLOP a use."""
    return heads * (2 * latent + latent * 2 + 2 * rope) / (2 * latent + 2 * rope)


def sectors_along_dim(bytes_per_number: int) -> int:
    return 32 * bytes_per_number // 32


def block_bytes(num_layers: int, kv_heads: int, block_size: int, head_dim: int, bytes_per_number: int) -> int:
    return num_layers * 2 * kv_heads * head_dim * bytes_per_number * block_size


def mla_break_even(latent: int, rope: int, nope: int, value: int) -> float:
    """Per head and cached token: making keys and values against what each pair then saves."""
    saved = (2 * latent + rope) - (nope + rope + value)
    return latent * (nope + value) / saved
