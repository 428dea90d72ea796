"""Lab triton-top-k-top-p: one token for each row of logits: temperature, top-k, top-p, one draw; no sort of a row.

The seam is sample of kernels/ops.py, without min_p and with the noise given. Gumbel-max: Maddison et al. 2014
(1411.0030); nucleus sampling: Holtzman et al. 2019 (1904.09751); filters without a sort: FlashInfer's sampling
kernels, Qrita (Park et al. 2026, 2602.01518). vLLM 0.32: v1/sample/ops/topk_topp_sampler.py (sorts),
topk_topp_triton.py (Qrita).

    x[i]     = (logits[i] - highest logit) / temperature        never above 0, so exp(x) never overflows
    top_k    keeps the tokens whose logit is at least the top_k-th highest
    top_p    of these it keeps the most probable, up to and including the one with which their sum of exp(x) reaches
             top_p times the sum over all that top_k keeps
    token    = the one with the highest x + noise among what stays; the lowest id of equals

With Gumbel noise, -log(-log(u)), that token is a sample of the softmax over what stays. Noise may be any finite
number.

Tokens with equal logits stay or go together, as in this engine. So each filter is a floor, found without an order.
(vLLM keeps all that tie with the k-th logit where it sorts; its Triton kernel keeps k, the lowest ids of those that
tie.)

top_k is 1 to vocab, and vocab switches it off; top_p is above 0 and at most 1, and 1 switches it off. Temperature 0
takes the highest logit, the lowest id of equals, whatever the rest says; other temperatures are at least 1e-5. A
logit of -INFINITY forbids a token: it is never drawn, and every row has another. There are no NaN. Sums in fp32 are
exact enough: in the checks no share of the sum lies within 1e-4 of top_p, and different logits and different scores
x + noise lie apart.

logits, noise  fp32 [rows, vocab]        temperature, top_p  fp32 [rows]
token_ids      int32 [rows]              top_k               int32 [rows]

vocab is any size >= 1. The checks run it in Triton's interpreter.

Mask every load and store that would leave its tensor; a lane that a mask hides has no value unless `other` gives one.
Kernels store each number that a function returns or changes: torch only makes the tensors.
"""

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
    """Do one row, BLOCK logits at a time."""
    row = tl.program_id(0)
    # given up to here
    logits_row, noise_row = logits + row.to(tl.int64) * vocab, noise + row.to(tl.int64) * vocab
    temperature, top_k, top_p = (
        tl.load(temperatures + row), tl.load(top_ks + row), tl.load(top_ps + row),
    )  # fmt: skip
    highest = tl.full([BLOCK], -float("inf"), tl.float32)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        highest = tl.maximum(highest, tl.load(logits_row + token, mask=token < vocab, other=-float("inf")))
    peak = tl.max(highest, axis=0)
    limit = _LARGEST_FINITE
    greedy = temperature == 0
    if greedy:
        limit = 0
        temperature = 1.0
    else:
        if top_k < vocab:
            limit = _search(logits_row, vocab, peak, temperature, limit, top_k.to(tl.float32), False, BLOCK)
        if top_p < 1:
            limit = _search(logits_row, vocab, peak, temperature, limit, top_p, True, BLOCK)
    best = tl.full([BLOCK], -float("inf"), tl.float32)
    best_token = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        stays = token < vocab
        values = tl.load(logits_row + token, mask=stays, other=-float("inf"))
        distance, bits = _distance(values, peak, temperature)
        stays = stays & (bits <= limit)
        score = tl.load(noise_row + token, mask=stays & (not greedy), other=0.0) - distance
        better = stays & (score > best)
        best = tl.where(better, score, best)
        best_token = tl.where(better, token, best_token)
    token = tl.min(tl.where(best == tl.max(best, axis=0), best_token, vocab), axis=0)
    tl.store(token_ids + row, token)


def top_k_top_p(logits: Tensor, noise: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Return token_ids."""
    rows, vocab = logits.shape
    token_ids = torch.empty(rows, dtype=torch.int32, device=logits.device)
    _top_k_top_p[(rows,)](
        logits, noise, temperature, top_k, top_p, token_ids, vocab, BLOCK=BLOCK, num_warps=16,
    )  # fmt: skip
    return token_ids
