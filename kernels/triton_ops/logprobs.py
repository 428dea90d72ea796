"""The log-probability and the rank of one token per row, in one pass and without a table of the others.

    logprob = (logit - m) - log(sum over v of exp(logit_v - m))         rank = 1 + number of v with logit_v > logit

The largest logit m is not known before the end. Each lane of the program keeps its own m and rescales its own
sum when it meets a larger one (online softmax, Milakov & Gimelshein 2018); the lanes are joined once, at the end:

    lane i   sees logits i, i + BLOCK, ...  keeps  m_i, s_i = sum exp(logit - m_i), r_i = how many are larger
    join     m = max m_i      s = sum s_i exp(m_i - m)      r = sum r_i
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_BLOCK = 4096


@triton.jit
def rescaled(total, old_peak, new_peak):
    """total * exp(old_peak - new_peak); a lane that has met nothing yet (-inf) holds 0."""
    return tl.where(old_peak == float("-inf"), 0.0, total * tl.exp(old_peak - new_peak))


@triton.jit
def logprobs_kernel(logits, token_ids, logprobs, ranks, vocab_size, row_stride, BLOCK: tl.constexpr):
    """Program r takes row r."""
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * row_stride
    chosen = tl.load(row + tl.load(token_ids + index))
    peak = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    larger = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocab_size, BLOCK):
        token = start + tl.arange(0, BLOCK)
        values = tl.load(row + token, mask=token < vocab_size, other=float("-inf"))
        larger += (values > chosen).to(tl.int32)
        new_peak = tl.maximum(peak, values)
        weight = tl.where(values == float("-inf"), 0.0, tl.exp(values - new_peak))
        total = rescaled(total, peak, new_peak) + weight
        peak = new_peak
    highest = tl.max(peak, 0)
    mass = tl.sum(rescaled(total, peak, highest), 0)
    tl.store(logprobs + index, (chosen - highest) - tl.log(mass))
    tl.store(ranks + index, tl.sum(larger, 0).to(tl.int64) + 1)


def gather_logprobs(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    num_rows, vocab_size = logits.shape
    logprobs = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    ranks = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows:
        block = min(triton.next_power_of_2(vocab_size), MAX_BLOCK)
        logprobs_kernel[(num_rows,)](
            logits, token_ids, logprobs, ranks, vocab_size, logits.stride(0), BLOCK=block, num_warps=8
        )
    return logprobs, ranks


def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
    logits = torch.empty(256, 128256, device="meta")
    return {
        "256 x 128256": lambda: gather_logprobs(logits, torch.empty(256, dtype=torch.int64, device="meta"))
    }
