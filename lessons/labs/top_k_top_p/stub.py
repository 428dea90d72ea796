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


@triton.jit
def _top_k_top_p(
    logits, noise, temperatures, top_ks, top_ps, token_ids, vocab, BLOCK: tl.constexpr,
):  # fmt: skip
    """Do one row, BLOCK logits at a time."""
    row = tl.program_id(0)


def top_k_top_p(logits: Tensor, noise: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Return token_ids."""
    raise NotImplementedError("write top_k_top_p and its kernel")
