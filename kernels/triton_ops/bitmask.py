"""Forbid the tokens whose bit is 0, in place.

    word w of a row   bits 31 ... 1 0   ->   tokens 32 w + 31 ... 32 w + 1, 32 w

Logits are never read: where a bit is 0, -inf is written, elsewhere nothing. A grammar that allows nearly everything
costs little more than its bits. Source of the layout: XGrammar (Dong et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048


@triton.jit
def bitmask_kernel(logits, bitmask, vocab_size, logits_stride, bitmask_stride, BLOCK: tl.constexpr):
    """Program (row, j) looks at BLOCK tokens of a row."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab_size
    word = tl.load(bitmask + row * bitmask_stride + token // 32, mask=inside, other=-1)
    allowed = (word >> (token % 32)) & 1
    forbidden = tl.full([BLOCK], float("-inf"), tl.float32)
    tl.store(logits + row * logits_stride + token, forbidden, mask=inside & (allowed == 0))


def apply_token_bitmask(logits: Tensor, bitmask: Tensor) -> None:
    num_rows, vocab_size = logits.shape
    if num_rows:
        bitmask_kernel[(num_rows, triton.cdiv(vocab_size, BLOCK))](
            logits, bitmask, vocab_size, logits.stride(0), bitmask.stride(0), BLOCK=BLOCK
        )


def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
    logits = torch.empty(256, 128256, device="meta")
    bitmask = torch.empty(256, 128256 // 32, dtype=torch.int32, device="meta")
    return {"256 x 128256": lambda: apply_token_bitmask(logits, bitmask)}
