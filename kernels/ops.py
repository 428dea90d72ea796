"""The only door to the kernels: one function per operation, and its docstring is the contract.

T is the number of tokens of a step, R the number of requests (rows). Inputs may be strided views;
arithmetic is fp32 inside, whatever the storage type.

Every operation has a reference implementation in plain torch (`kernels/reference/`, for `linear` torch's own),
which says what is right and runs everywhere.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.reference import activation, attention, norm, rotary


def pack_weight(weight: Tensor) -> Tensor:
    """The matrix [out, in] in the layout that `linear` is fastest with on its device; opaque from then on.

    On a CPU in fp32 that is oneDNN's blocked layout. Two things are gained over the plain matrix: products of
    a few rows (decode) do not re-arrange the weights each time, and a row's result no longer
    depends on how many rows there are, which BLAS does not promise (its kernels for one, for two
    or three and for more rows add in different orders). `.to_dense()` gives the plain matrix back.
    """
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        return torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return weight


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, in] @ weight.T + bias [T, out]; weight is [out, in], as it is or from `pack_weight`."""
    if weight.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension.

    x [..., hidden], weight [hidden]; returns weight's dtype and never touches x. The product with the
    weight is taken in the weight's dtype, as checkpoints were trained.
    """
    return norm.rms_norm(x, weight, eps)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add the residual, then normalise: returns (rms_norm(x + residual), x + residual).

    x, residual [T, hidden], weight [hidden]. Neither input is modified: a caller that keeps its
    residual in fp32 finds it unchanged.
    """
    return norm.fused_add_rms_norm(x, residual, weight, eps)


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate every head by its token's position; a new tensor like x.

    x [T, heads, head_dim]; cos, sin fp32 [T, head_dim / 2], the rows of the tokens' positions. The pair
    of dimension i is i + head_dim / 2 (NeoX layout). Query and key heads can be rotated in one call.
    """
    return rotary.rotary_embedding(x, cos, sin)


def silu_and_mul(x: Tensor) -> Tensor:
    """silu(first half) * second half of the last dimension: x [T, 2 * n] -> [T, n]."""
    return activation.silu_and_mul(x)


def reshape_and_cache(key: Tensor, value: Tensor, kv: Tensor, slot_mapping: Tensor) -> None:
    """Write keys and values to their slots of one layer's cache, in place.

    key, value [T, kv_heads, head_dim]; kv [num_blocks, 2, kv_heads, block_size, head_dim];
    slot_mapping int64 [T] = block_id * block_size + offset. A slot of -1 is padding and writes
    nothing: it must never reach kv[-1]. Block 0 is the null block, to which no slot points.
    Keys are converted to the cache's dtype.
    """
    attention.reshape_and_cache(key, value, kv, slot_mapping)


def paged_attention(
    query: Tensor,
    kv: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    *,
    scale: float,
    sliding_window: int | None = None,
) -> Tensor:
    """Causal attention of packed queries over the paged cache: [T, heads, head_dim], like query.

    query [T, heads, head_dim]: row r owns tokens query_start_loc[r] .. query_start_loc[r + 1] - 1, which
    are the last of its seq_lens[r] tokens. kv as in `reshape_and_cache`, already holding them.
    block_table [R, max_blocks]: only the first ceil(seq_len / block_size) columns of a row are read.
    heads is a multiple of kv_heads; query head h reads kv head h // (heads / kv_heads). With a
    sliding window of w, position p sees p - w + 1 .. p. Tokens of no row (padding) get zeros.
    """
    return attention.paged_attention(
        query, kv, query_start_loc, seq_lens, block_table, scale=scale, sliding_window=sliding_window
    )
