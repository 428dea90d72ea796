"""Lab triton-int4-gemv: a vector times a matrix of 4-bit weights, dequantised by groups.

The seam is int4_linear of kernels/ops.py for one token: a decoding request times a matrix of 4-bit weights (W4A16; AWQ:
Lin et al. 2023, 2306.00978; GPTQ: Frantar et al. 2022, 2210.17323, both after repacking).

    row n   k = 0     1   |   2     3   | ...        byte j has column 2 j in its low, 2 j + 1 in its high four bits
    byte       low  high  |  low  high  | ...

    weight[n][k] = (nibble - zero[n][g]) * scale[n][g]        nibble, zero: 0 to 15, unsigned;  g = k / group_size
    out[n]       = sum over k of x[k] * weight[n][k]

group_size divides columns. Numbers of x may be as large as 1e4. Errors up to 1e-5 of the sum over k of |x[k]| *
scale[n][g] are accepted.

x        fp32 [columns]                      scale  fp32 [rows, columns / group_size]
qweight  uint8 [rows, columns / 2]           zero   uint8 [rows, columns / group_size]
out      fp32 [rows]

group_size is a power of two from 8 on; rows is any size >= 1. The report counts a program for each 4 rows. The checks
run it in Triton's interpreter.

Mask every load and store that would leave its tensor; a lane that a mask hides has no value unless `other` gives one.
Kernels store each number that a function returns or changes: torch only makes the tensors.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _int4_gemv(
    x, qweight, scale, zero, out, rows, groups, GROUP_SIZE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Do ROWS rows, a group at a time."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    # given up to here
    real = row < rows
    byte = tl.arange(0, GROUP_SIZE // 2)
    row_bytes = row.to(tl.int64)[:, None] * (groups * (GROUP_SIZE // 2))
    sums = tl.zeros([ROWS], tl.float32)
    for group in range(groups):
        even = tl.load(x + group * GROUP_SIZE + 2 * byte)[None, :]
        odd = tl.load(x + group * GROUP_SIZE + 2 * byte + 1)[None, :]
        pairs = tl.load(
            qweight + row_bytes + group * (GROUP_SIZE // 2) + byte[None, :], mask=real[:, None], other=0
        )
        offset = tl.load(zero + row * groups + group, mask=real, other=0).to(tl.float32)[:, None]
        low, high = (pairs & 15).to(tl.float32) - offset, (pairs >> 4).to(tl.float32) - offset
        dots = tl.sum(low * even + high * odd, axis=1)
        sums += dots * tl.load(scale + row * groups + group, mask=real, other=0.0)
    tl.store(out + row, sums, mask=real)


def int4_gemv(x: Tensor, qweight: Tensor, scale: Tensor, zero: Tensor, group_size: int) -> Tensor:
    """Return out [rows]."""
    rows, groups = scale.shape
    out = torch.empty(rows, device=x.device)
    # one warp: with groups of 128 each lane loads 8 bytes
    _int4_gemv[(triton.cdiv(rows, 4),)](
        x, qweight, scale, zero, out, rows, groups, GROUP_SIZE=group_size, ROWS=4, num_warps=1,
    )  # fmt: skip
    return out
