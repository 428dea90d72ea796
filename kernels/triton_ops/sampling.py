"""One token per row without sorting a vocabulary.

Everything is said in a token's depth below the peak, d = (peak - logit) / temperature >= 0. Then softmax weights are
exp(-d), and the bits of a non-negative float, read as an integer, keep its order. min_p, top_k and top_p
each say "keep what is at most so deep", and the strictest of the three ceilings counts:

    min_p    d <= -log(min_p)
    top_k    the smallest D with   number of tokens with d <= D  >=  k
    top_p    the smallest D with   mass of tokens with d <= D  >=  p * (mass of what the two above keep)

A ceiling is found by bisection over the integers, 31 steps at most, and it is exact: the smallest integer that
reaches the target is the depth of some token. A bisection over 128,256 tokens would read them 31 times, so
first the field is narrowed:

    pass 1   peak                              all tokens       ends here if greedy
    pass 2   histogram of the depths           all tokens       where must the ceiling lie at the latest?
    pass 3   ids of the tokens above that      all tokens       usually some hundreds
    bisect   top_k, then top_p                 candidates
    draw     argmax of noise - d               candidates       or all tokens, if there is neither top_k nor top_p

The histogram counts tokens. That settles in which bin the ceiling of top_k lies. For top_p it gives a bound on the
mass beyond a bin: every token of a bin weighs at most exp(-the bin's start). Both only decide how many
candidates there are, never which token wins.

    depth bits   0eee eeee emmm m...      a bin is an exponent and 4 bits of mantissa: 16 bins from d to 2 d,
                 `----- bin ----'         from 2^-6 to 2^10, which fits any temperature

The noise is the hash of `reference/sampling.py`, computed where it is needed and never stored.

Sources: to search pivots instead of sorting is the idea of FlashInfer (Ye et al. 2025) and Qrita (Park et al. 2026);
the noise in place of a random number generator is the Gumbel-max trick.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.reference.sampling import MURMUR_1, MURMUR_2, TOKEN_STRIDE, UNIFORM_SCALE

MAX_BLOCK = 4096
MAX_PROGRAMS = 264
"""Two for each multiprocessor of an H100. Each has room for one row's candidates; with more rows it takes several."""

_TOKEN_STRIDE = tl.constexpr(TOKEN_STRIDE)
_MURMUR_1 = tl.constexpr(MURMUR_1)
_MURMUR_2 = tl.constexpr(MURMUR_2)
_UNIFORM_SCALE = tl.constexpr(UNIFORM_SCALE)

_NUM_BINS = tl.constexpr(256)
_BIN_SHIFT = tl.constexpr(19)
_FIRST_BIN = tl.constexpr((127 - 6) << 4)  # the exponent 2^-6
_LARGEST_FINITE = tl.constexpr(0x7F7FFFFF)


@triton.jit
def gumbel_noise(first, second, token):
    """-log(-log(1 - u)), u from the hash of (key, token)."""
    bits = first ^ (token.to(tl.uint32) * _TOKEN_STRIDE)
    bits = (bits ^ (bits >> 16)) * _MURMUR_1
    bits = ((bits ^ (bits >> 13)) + second) * _MURMUR_2
    bits = bits ^ (bits >> 16)
    u = (bits.to(tl.float32) + 0.5) * _UNIFORM_SCALE
    # log1p(-u) = log(v) * -u / (v - 1) with v = 1 - u as rounded: the quotient undoes the rounding (Kahan).
    v = 1.0 - u
    small = v == 1.0
    exponential = tl.where(small, u, tl.log(v) * u / tl.where(small, 1.0, v - 1.0))
    return -tl.log(exponential)


@triton.jit
def depth_bits(logits, peak, temperature):
    """Depth below the peak as ordered integers; a forbidden token (-inf) is deeper than _LARGEST_FINITE."""
    return tl.div_rn(peak - logits, temperature).to(tl.int32, bitcast=True)


@triton.jit
def row_peak(row, vocab_size, BLOCK: tl.constexpr):
    """(highest logit, its lowest id); NaN and any id if there is a NaN."""
    lane = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_id = lane
    has_nan = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocab_size, BLOCK):
        token = start + lane
        logits = tl.load(row + token, mask=token < vocab_size, other=float("-inf"))
        has_nan |= (logits != logits).to(tl.int32)
        better = logits > best
        best = tl.where(better, logits, best)
        best_id = tl.where(better, token, best_id)
    peak = tl.max(best, 0)
    token = tl.min(tl.where(best == peak, best_id, vocab_size), 0)
    return tl.where(tl.max(has_nan, 0) > 0, float("nan"), peak), tl.minimum(token, vocab_size - 1)


@triton.jit
def depth_histogram(row, vocab_size, peak, temperature, ceiling, BLOCK: tl.constexpr):
    """(int32 [bins], mass): how the tokens that are not deeper than `ceiling` are spread."""
    counts = tl.zeros([_NUM_BINS], tl.int32)
    mass = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab_size, BLOCK):
        token = start + tl.arange(0, BLOCK)
        logits = tl.load(row + token, mask=token < vocab_size, other=float("-inf"))
        bits = depth_bits(logits, peak, temperature)
        stays = bits <= ceiling
        bin_of = tl.minimum(tl.maximum((bits >> _BIN_SHIFT) - _FIRST_BIN, 0), _NUM_BINS - 1)
        counts += tl.histogram(bin_of, _NUM_BINS, mask=stays)
        mass += tl.where(stays, tl.exp(-bits.to(tl.float32, bitcast=True)), 0.0)
    return counts, tl.sum(mass, 0)


@triton.jit
def latest_ceiling(counts, mass, top_k, top_p, ceiling):
    """A depth that the ceiling of top_k, or without it that of top_p, cannot exceed: the end of a bin."""
    index = tl.arange(0, _NUM_BINS)
    if tl.sum(counts, 0) > top_k:
        enough = tl.cumsum(counts, 0) >= top_k
    else:
        upper_end = ((index + _FIRST_BIN) << _BIN_SHIFT).to(tl.float32, bitcast=True)
        weight = counts.to(tl.float32) * tl.where(index == 0, 1.0, tl.exp(-upper_end))
        mass_below = tl.sum(weight, 0) - tl.cumsum(weight, 0)
        enough = mass_below <= (1.0 - top_p) * mass * 0.9999  # what rounding may have added to the right side
    last_bin = tl.min(tl.where(enough, index, _NUM_BINS - 1), 0)
    end = ((last_bin + _FIRST_BIN + 1) << _BIN_SHIFT) - 1
    return tl.where(last_bin == _NUM_BINS - 1, ceiling, tl.minimum(end, ceiling))


@triton.jit
def gather_candidates(row, vocab_size, peak, temperature, ceiling, candidates, BLOCK: tl.constexpr):
    """Write the ids of the tokens that are not deeper than `ceiling` to `candidates`, in order: their number."""
    count = 0
    for start in range(0, vocab_size, BLOCK):
        token = start + tl.arange(0, BLOCK)
        logits = tl.load(row + token, mask=token < vocab_size, other=float("-inf"))
        stays = (depth_bits(logits, peak, temperature) <= ceiling).to(tl.int32)
        in_tile = tl.sum(stays, 0)
        if in_tile > 0:  # most tiles hold none, and are spared the scan
            tl.store(candidates + count + tl.cumsum(stays, 0) - 1, token, mask=stays > 0)
            count += in_tile
    tl.debug_barrier()  # other threads of this program read them
    return count


@triton.jit
def smallest_ceiling(
    row, candidates, count, peak, temperature, ceiling, target, MASS: tl.constexpr, BLOCK: tl.constexpr
):
    """The smallest depth within which the number (MASS: the mass) of candidates reaches `target`; `ceiling` if none.

    Invariant: low does not reach the target, high does (or is the ceiling).
    """
    low, high = -1, ceiling
    while high - low > 1:
        middle = low + (high - low) // 2
        reached = tl.zeros([BLOCK], tl.float32)
        for start in range(0, count, BLOCK):
            place = start + tl.arange(0, BLOCK)
            token = tl.load(candidates + place, mask=place < count, other=0)
            logits = tl.load(row + token, mask=place < count, other=float("-inf"))
            bits = depth_bits(logits, peak, temperature)
            weight = tl.exp(-bits.to(tl.float32, bitcast=True)) if MASS else 1.0
            reached += tl.where(bits <= middle, weight, 0.0)
        if tl.sum(reached, 0) >= target:
            high = middle
        else:
            low = middle
    return high


@triton.jit
def mass_within(row, candidates, count, peak, temperature, ceiling, BLOCK: tl.constexpr):
    """The sum of exp(-d) over the candidates that are not deeper than `ceiling`."""
    mass = tl.zeros([BLOCK], tl.float32)
    for start in range(0, count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        token = tl.load(candidates + place, mask=place < count, other=0)
        logits = tl.load(row + token, mask=place < count, other=float("-inf"))
        bits = depth_bits(logits, peak, temperature)
        mass += tl.where(bits <= ceiling, tl.exp(-bits.to(tl.float32, bitcast=True)), 0.0)
    return tl.sum(mass, 0)


@triton.jit
def draw(row, candidates, count, ranked, peak, temperature, ceiling, first, second, BLOCK: tl.constexpr):
    """The token with the highest noise - d; candidates are read if `ranked`, else every id below count is one."""
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_id = tl.zeros([BLOCK], tl.int32)
    for start in range(0, count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        token = place
        if ranked:
            token = tl.load(candidates + place, mask=place < count, other=0)
        logits = tl.load(row + token, mask=place < count, other=float("-inf"))
        bits = depth_bits(logits, peak, temperature)
        score = gumbel_noise(first, second, token) - bits.to(tl.float32, bitcast=True)
        better = (bits <= ceiling) & (score > best)
        best = tl.where(better, score, best)
        best_id = tl.where(better, token, best_id)
    return tl.min(tl.where(best == tl.max(best, 0), best_id, 0x7FFFFFFF), 0)


@triton.jit
def sample_kernel(
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    keys,
    token_ids,
    peaks,
    scratch,
    num_rows,
    vocab_size,
    row_stride,
    BLOCK: tl.constexpr,
):
    """Program i takes the rows i, i + programs, ... and has row i of scratch [programs, V] for candidates."""
    candidates = scratch + tl.program_id(0).to(tl.int64) * vocab_size
    for index in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        row = logits + tl.cast(index, tl.int64) * row_stride
        peak, token = row_peak(row, vocab_size, BLOCK)
        temperature = tl.load(temperatures + index)
        if (temperature > 0) & (tl.abs(peak) < float("inf")):  # no draw where the peak is NaN or infinite
            top_k, top_p = tl.load(top_ks + index), tl.load(top_ps + index)
            min_p_depth = tl.maximum(0.0 - tl.log(tl.load(min_ps + index)), 0.0)
            ceiling = tl.minimum(min_p_depth.to(tl.int32, bitcast=True), _LARGEST_FINITE)
            ranked = (top_k < vocab_size) | (top_p < 1.0)
            count = vocab_size
            if ranked:
                counts, mass = depth_histogram(row, vocab_size, peak, temperature, ceiling, BLOCK)
                limited = tl.sum(counts, 0) > top_k
                ceiling = latest_ceiling(counts, mass, top_k, top_p, ceiling)
                count = gather_candidates(row, vocab_size, peak, temperature, ceiling, candidates, BLOCK)
                if limited:
                    ceiling = smallest_ceiling(
                        row, candidates, count, peak, temperature, ceiling, top_k.to(tl.float32), False, BLOCK
                    )
                    mass = mass_within(row, candidates, count, peak, temperature, ceiling, BLOCK)
                if top_p < 1.0:
                    ceiling = smallest_ceiling(
                        row, candidates, count, peak, temperature, ceiling, top_p * mass, True, BLOCK
                    )
            first = tl.load(keys + 2 * index).to(tl.uint32, bitcast=True)
            second = tl.load(keys + 2 * index + 1).to(tl.uint32, bitcast=True)
            token = draw(row, candidates, count, ranked, peak, temperature, ceiling, first, second, BLOCK)
            tl.debug_barrier()  # the next row's candidates overwrite these
        tl.store(token_ids + index, token.to(tl.int64))
        tl.store(peaks + index, peak)


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, keys: Tensor
) -> tuple[Tensor, Tensor]:
    num_rows, vocab_size = logits.shape
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    peaks = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    if num_rows:
        programs = min(num_rows, MAX_PROGRAMS)
        scratch = torch.empty(programs, vocab_size, dtype=torch.int32, device=logits.device)
        sample_kernel[(programs,)](
            *(logits, temperature, top_k, top_p, min_p, keys.contiguous()),
            *(token_ids, peaks, scratch, num_rows, vocab_size, logits.stride(0)),
            BLOCK=min(triton.next_power_of_2(vocab_size), MAX_BLOCK),
            num_warps=16,
        )
    return token_ids, peaks


def unsupported_sample(logits: Tensor, *_: Tensor) -> str | None:
    return None if logits.dtype == torch.float32 else f"logits are {logits.dtype}; supported: float32"


def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
    def column(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(256, *shape, dtype=dtype, device="meta")

    number = column(torch.float32)
    args = column(torch.float32, 128256), number, column(torch.int32), number, number, column(torch.int32, 2)
    return {"256 x 128256": lambda: sample(*args)}
