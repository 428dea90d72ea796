"""Solution of lab triton-top-k-top-p. The docstrings of the stub state the contract."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
PIVOTS = tl.constexpr(8)
_LARGEST_FINITE = tl.constexpr(0x7F7FFFFF)


@triton.jit
def _distance(logits, peak, temperature):
    """Return the distance below the peak, and its bits, which have the order of the distances."""
    distance = (peak - logits) / temperature
    return distance, distance.to(tl.int32, bitcast=True)


@triton.jit
def _weigh(row, vocab, peak, temperature, limits, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The number of tokens within each of the limits, or their sums of exp."""
    total = tl.zeros([BLOCK, PIVOTS], tl.float32)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        logits = tl.load(row + token, mask=token < vocab, other=-float("inf"))
        distance, bits = _distance(logits, peak, temperature)
        weight = tl.exp(-distance) if MASS else tl.full([BLOCK], 1.0, tl.float32)
        total += tl.where(bits[:, None] <= limits[None, :], weight[:, None], 0.0)
    return tl.sum(total, axis=0)


@triton.jit
def _search(row, vocab, peak, temperature, limit, target, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The smallest limit within which the tokens reach `target`: low does not reach it, high does.

    PIVOTS limits between the two are weighed in one pass, and one of the PIVOTS + 1 gaps is left: ten passes, not 31.
    """
    if MASS:
        target *= tl.max(
            _weigh(row, vocab, peak, temperature, limit + tl.zeros([PIVOTS], tl.int32), MASS, BLOCK)
        )
    low, high = -1, limit
    while high - low > 1:
        step = tl.maximum((high - low) // (PIVOTS + 1), 1)
        pivots = tl.minimum(low + step * (1 + tl.arange(0, PIVOTS)), high)
        reached = _weigh(row, vocab, peak, temperature, pivots, MASS, BLOCK) >= target
        low = tl.max(tl.where(reached, low, pivots))
        high = tl.min(tl.where(reached, pivots, high))
    return high


@triton.jit
def _top_k_top_p(
    logits, noise, temperatures, top_ks, top_ps, token_ids, vocab, BLOCK: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    row, noise_row = logits + number.to(tl.int64) * vocab, noise + number.to(tl.int64) * vocab
    temperature, top_k, top_p = (
        tl.load(temperatures + number), tl.load(top_ks + number), tl.load(top_ps + number),
    )  # fmt: skip
    highest = tl.full([BLOCK], -float("inf"), tl.float32)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        highest = tl.maximum(highest, tl.load(row + token, mask=token < vocab, other=-float("inf")))
    peak = tl.max(highest, axis=0)
    limit = _LARGEST_FINITE
    greedy = temperature == 0
    if greedy:
        limit = 0
        temperature = 1.0
    else:
        if top_k < vocab:
            limit = _search(row, vocab, peak, temperature, limit, top_k.to(tl.float32), False, BLOCK)
        if top_p < 1:
            limit = _search(row, vocab, peak, temperature, limit, top_p, True, BLOCK)
    best = tl.full([BLOCK], -float("inf"), tl.float32)
    best_token = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        stays = token < vocab
        values = tl.load(row + token, mask=stays, other=-float("inf"))
        distance, bits = _distance(values, peak, temperature)
        stays = stays & (bits <= limit)
        score = tl.load(noise_row + token, mask=stays & (not greedy), other=0.0) - distance
        better = stays & (score > best)
        best = tl.where(better, score, best)
        best_token = tl.where(better, token, best_token)
    token = tl.min(tl.where(best == tl.max(best, axis=0), best_token, vocab), axis=0)
    tl.store(token_ids + number, token)


def top_k_top_p(logits: Tensor, noise: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    rows, vocab = logits.shape
    token_ids = torch.empty(rows, dtype=torch.int32, device=logits.device)
    _top_k_top_p[(rows,)](
        logits, noise, temperature, top_k, top_p, token_ids, vocab, BLOCK=BLOCK, num_warps=16,
    )  # fmt: skip
    return token_ids
