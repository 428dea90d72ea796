"""Lab triton-rope: turn a step's queries and keys by their positions; one program per token.

The seam is rotary_embedding of kernels/ops.py; every attention layer calls it once a step, between the projection to
qkv and the KV write (RoFormer: Su et al. 2021, 2104.09864; NeoX layout: dimension i turns with i + rotary_dim / 2).
vLLM: _custom_ops.py, rotary_embedding: in place, too, on query and key as two views.

    qkv of a token   | query 0 | ... | query H - 1 | key 0 | ... | key K - 1 | value 0 | ... | value K - 1 |
                     |<------- heads + kv_heads heads are turned ----------->|<----- keep their bits ----->|

    a head           | x: rotary_dim / 2 | y: rotary_dim / 2 | head_dim - rotary_dim pass through |

    with cos and sin of pair i from the row of the token's position:
        x[i]' = x[i] cos[i] - y[i] sin[i]          y[i]' = y[i] cos[i] + x[i] sin[i]

positions[t] is the position of token t in its own request: a step holds tokens of many requests, in any order, and
positions repeat. Everything that is not turned keeps its bits. Errors up to 1e-6 of the length of a pair, sqrt(x^2 +
y^2), are accepted.

qkv        fp32 [tokens, heads + 2 kv_heads, head_dim], changed in place
positions  int64 [tokens], each a row of table
table      fp32 [max_position, rotary_dim]: cos of the rotary_dim / 2 pairs, then sin

rotary_dim is even, 2 <= rotary_dim <= head_dim; no size needs to be a power of two. The checks run it in Triton's
interpreter.

Mask every load and store that would leave its tensor; a lane that a mask hides has no value unless `other` gives one.
Kernels store each number that a function returns or changes: torch only makes the tensors.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rotary_embedding(
    qkv, positions, table,
    TURNED: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Do one token. TURNED of its HEADS heads are turned; ROWS >= TURNED and WIDTH >= HALF are powers of two."""
    token = tl.program_id(0)
    # given up to here
    head, pair = tl.arange(0, ROWS)[:, None], tl.arange(0, WIDTH)[None, :]
    inside = (head < TURNED) & (pair < HALF)
    row = table + tl.load(positions + token) * (2 * HALF) + pair
    cos = tl.load(row, mask=pair < HALF, other=0.0)
    sin = tl.load(row + HALF, mask=pair < HALF, other=0.0)
    at = qkv + token.to(tl.int64) * (HEADS * DIM) + head * DIM + pair
    first = tl.load(at, mask=inside, other=0.0)
    second = tl.load(at + HALF, mask=inside, other=0.0)
    tl.store(at, first * cos - second * sin, mask=inside)
    tl.store(at + HALF, second * cos + first * sin, mask=inside)


def rotary_embedding(qkv: Tensor, positions: Tensor, table: Tensor, heads: int, kv_heads: int) -> None:
    """Write in place into qkv."""
    half, turned = table.shape[1] // 2, heads + kv_heads
    _rotary_embedding[(len(qkv),)](
        qkv, positions, table,
        TURNED=turned, HEADS=qkv.shape[1], DIM=qkv.shape[2], HALF=half,
        ROWS=triton.next_power_of_2(turned), WIDTH=triton.next_power_of_2(half),
    )  # fmt: skip
