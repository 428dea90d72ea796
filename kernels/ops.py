"""The only interface to the kernels: one function per operation, whose docstring is the contract.

    T  tokens of a step        R  requests (rows) of a step        S  rows that get a token        V  vocabulary

Inputs may be strided views unless a line says otherwise; the last dimension is contiguous. Arithmetic is fp32
inside for any storage type. Outputs are new tensors unless a line says "in place". A row's result depends only on
that row: it has the same bits alone and in a batch, and a NaN stays in its row.

`registry.py` chooses the implementation by device, dtype and shape, or by the variable PREP_KERNELS. The reference
(`reference/`, plain torch) is the specification and runs everywhere. On float64 inputs it computes in float64, and all
other implementations are tested against that.

The imports below are the rest of the public interface: whether to fuse (`registry.py`), recording C++ calls
(`cpu/graph.py`), and the definitions of the quantised formats (`reference/`).
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernels.attention_batch import AttentionBatch as AttentionBatch
from kernels.cpu.clock import KernelClock as KernelClock
from kernels.cpu.graph import CPUGraph as CPUGraph
from kernels.cpu.memory import Arena as Arena
from kernels.cpu.memory import ArenaFull as ArenaFull
from kernels.cpu.memory import keep_freed_memory as keep_freed_memory
from kernels.cpu.memory import lazy_zeros as lazy_zeros
from kernels.cpu.memory import release_freed_memory as release_freed_memory
from kernels.reference.fp8 import FP8_MAX as FP8_MAX
from kernels.reference.fp8 import dequantise_fp8 as dequantise_fp8
from kernels.reference.fp8 import quantise_fp8 as quantise_fp8
from kernels.reference.fp8 import to_e4m3 as to_e4m3
from kernels.reference.int4 import dequantise_int4 as dequantise_int4
from kernels.reference.int8 import dequantise_int8 as dequantise_int8
from kernels.reference.int8 import quantise_int8 as quantise_int8
from kernels.reference.kv_write import dequantise_pages as dequantise_pages
from kernels.reference.nibbles import pack_int4 as pack_int4
from kernels.reference.precision import wide as wide
from kernels.reference.sampling import floor_of as floor_of
from kernels.registry import call, kind, preferred
from kernels.registry import fuses as fuses

if TYPE_CHECKING:
    from kernels.cpu.int4 import PackedInt4
    from kernels.cpu.int8 import PackedInt8
    from kernels.cpu.linear import PackedPairs, PackedWeight

# --- dense linear algebra ----------------------------------------------------------------------------------


def pack_weight(weight: Tensor, *, gated: bool = False) -> Tensor | PackedWeight | PackedPairs:
    """Return the matrix [out, in] in the layout that `linear` is fastest with on its device.

    gated: the layout for `gated_linear`, which `linear` takes as well. The layout is opaque; a packed matrix has
    `.to_dense()`.
    """
    has_panels = weight.dtype in (torch.float32, torch.bfloat16)
    if has_panels and preferred("linear", weight.device.type) == "cpu":
        from kernels.cpu.linear import pack_weight as pack_panels

        return pack_panels(weight, gated=gated)
    from kernels.reference.linear import pack_weight as pack_plain

    return pack_plain(weight)


def linear(
    x: Tensor,
    weight: Tensor | PackedWeight | PackedPairs,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """x [T, in] @ weight.T + bias [T, out]; weight is [out, in], plain or from `pack_weight`.

    out_dtype: of the result, by default x's. Sums are fp32; with fp32 the C++ form returns them without rounding
    to 16 bits first.
    """
    key = (x.device.type, x.dtype, type(weight), out_dtype)
    return call("linear", key, x, weight, bias, out_dtype)


def gated_linear(
    x: Tensor, weight: Tensor | PackedWeight | PackedPairs, bias: Tensor | None = None
) -> Tensor:
    """silu_and_mul(linear(x, weight, bias)) in one pass: x [T, in] -> [T, out / 2].

    weight [out, in], plain or from `pack_weight(..., gated=True)`: gate in its first half of rows, up in its second.
    Both are rounded to x's dtype in between, so that a form has the same bits as its `linear` and `silu_and_mul`.
    """
    key = (x.device.type, x.dtype, type(weight), getattr(weight, "is_gated", None))
    return call("gated_linear", key, x, weight, bias)


def norm_linear(
    x: Tensor,
    residual: Tensor | None,
    norm_weight: Tensor,
    eps: float,
    weight: Tensor | PackedWeight | PackedPairs,
    bias: Tensor | None = None,
    activated: bool = False,
    rotary: tuple[Tensor, Tensor, int, int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (linear(norm of total), total) in one pass, with total = x + residual, or x itself without a residual.

    x, residual [T, in], norm_weight [in] and eps as in `fused_add_rms_norm`; weight and bias as in `linear`, or with
    activated as in `gated_linear`. rotary, not with activated: (cos, sin, n, head_dim), whose cos and sin are those of
    `rotary_embedding`: the first n heads of the result, which is [T, heads * head_dim] then, are rotated. Everything in
    between is rounded to x's dtype, so that a form has the same bits as its operations one after the other.
    Raises ValueError if the heads do not fit.
    """
    kinds = kind(x, residual, norm_weight, *(rotary[:2] if rotary else ()))
    key = (*kinds, type(weight), getattr(weight, "is_gated", None), activated)
    return call("norm_linear", key, x, residual, norm_weight, eps, weight, bias, activated, rotary)


def embedding(table: Tensor, ids: Tensor) -> Tensor:
    """Return rows of a table [rows, size] by their ids, int64 [T]: [T, size]. Ids are not checked."""
    return call("embedding", kind(table), table, ids)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension.

    x [..., hidden], weight [hidden]; returns weight's dtype. The product with the
    weight is computed in the weight's dtype, as checkpoints were trained. Source: Zhang & Sennrich 2019.
    """
    return call("rms_norm", kind(x, weight), x, weight, eps)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add the residual, then normalise: returns (rms_norm(x + residual), x + residual).

    x, residual [T, hidden], weight [hidden]; the sum has the dtype that torch gives x + residual. A residual may
    be fp32 beside a 16-bit x.
    """
    return call("fused_add_rms_norm", kind(x, residual, weight), x, residual, weight, eps)


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate every head by its token's position; a new tensor like x.

    x [T, heads, head_dim]; cos, sin fp32 [T, rotary_dim / 2], the rows of the tokens' positions, with
    rotary_dim <= head_dim: dimensions from rotary_dim on pass through. Dimension i is paired with
    i + rotary_dim / 2 (NeoX layout). Query and key heads can be rotated in one call. Source: Su et al. 2021.
    """
    return call("rotary_embedding", kind(x), x, cos, sin)


def silu_and_mul(x: Tensor) -> Tensor:
    """silu(first half) * second half of the last dimension: x [T, 2 * n] -> [T, n]. Source: SwiGLU, Shazeer 2020."""
    return call("silu_and_mul", kind(x), x)


# --- the paged KV cache ------------------------------------------------------------------------------------


def reshape_and_cache(
    key: Tensor, value: Tensor, kv: Tensor, slot_mapping: Tensor, kv_scale: Tensor | None = None
) -> None:
    """Write keys and values to their slots of one layer's cache, in place.

    key, value [T, kv_heads, head_dim]; kv [num_blocks, 2, kv_heads, block_size, head_dim], a view with any
    stride between blocks (a cache holds all layers of a block together), contiguous within a block;
    slot_mapping int64 [T] = block_id * block_size + offset. A slot of -1 is padding and writes
    nothing: it must never reach kv[-1]. No slot points into block 0, the null block.
    Keys are converted to the cache's dtype. Quantised caches need kv_scale:

      float8_e4m3fn  fp32 [2], of keys and of values, given: stored = clamp(x / scale, -448, 448)
      float8_e5m2    the same with 57344; in the reference only
      int8           fp32 [num_blocks, 2, kv_heads, block_size], written as well: scale = max|x| / 127 of the
                     token's head, stored = round-half-even(x / scale), 0 where scale is 0
    """
    call("reshape_and_cache", kind(key, kv), key, value, kv, slot_mapping, kv_scale)


def paged_attention(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    kv_scale: Tensor | None = None,
) -> Tensor:
    """Causal attention of packed queries over the paged cache: [T, heads, head_dim], like query.

    query [T, heads, head_dim], its tokens and their keys as `AttentionBatch` says; kv and kv_scale as in
    `reshape_and_cache`, which hold the keys and values of this step already. Only the first ceil(seq_len /
    block_size) columns of a row of the block table are read, and of the last of these blocks only the slots before
    seq_len matter. heads is a multiple of kv_heads; query head h reads kv head h // (heads / kv_heads). scale
    multiplies the scores. With a sliding window of w, position p sees p - w + 1 .. p. Tokens of no row (padding) get
    zeros. Sources: PagedAttention (Kwon et al. 2023), online softmax (Milakov & Gimelshein 2018), FlashAttention-2.
    """
    group, decodes = query.shape[1] // kv.shape[2], batch.max_query_len == 1
    key = (*kind(query, kv), query.shape[2], kv.shape[3], group, decodes)
    options = {"scale": scale, "sliding_window": sliding_window, "kv_scale": kv_scale}
    return call("paged_attention", key, query, kv, batch, **options)


def copy_blocks(source: Tensor, target: Tensor, block_pairs: Tensor) -> None:
    """Copy whole blocks, target[b] = source[a] for every pair (a, b), in place: fork, swap out, swap in.

    source, target [num_blocks, ...] with the same shape after the first dimension and the same dtype, each
    block contiguous; they may be one tensor, and may lie on different devices. block_pairs int64 [n, 2] on the
    CPU. No block is both a source and a target within one tensor, and no target occurs twice.
    """
    places = (source.device.type, target.device.type)
    call("copy_blocks", ("cuda" if "cuda" in places else "cpu", *places), source, target, block_pairs)


# --- quantised weights -------------------------------------------------------------------------------------


def pack_int4_weight(qweight: Tensor, scale: Tensor, zero: Tensor, group_size: int) -> tuple[Any, ...]:
    """Return what `int4_linear` takes after x, in the layout that it is fastest with on its device.

    The layout is opaque; a packed matrix has `.unpack()`, which returns these arguments again.
    """
    if preferred("int4_linear", qweight.device.type) == "cpu":
        from kernels.cpu.int4 import pack_int4_weight as pack_panels

        return (pack_panels(qweight, scale, zero, group_size),)
    return qweight, scale, zero, group_size


def pack_int8_weight(qweight: Tensor, scale: Tensor) -> tuple[Any, ...]:
    """Return what `int8_linear` takes after x, in the layout that it is fastest with on its device."""
    if preferred("int8_linear", qweight.device.type) == "cpu":
        from kernels.cpu.int8 import pack_int8_weight as pack_panels

        return (pack_panels(qweight, scale),)
    return qweight, scale


def int4_linear(
    x: Tensor,
    qweight: Tensor | PackedInt4,
    scale: Tensor | None = None,
    zero: Tensor | None = None,
    group_size: int | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """x [T, K] times a 4-bit matrix, transposed: [T, N] (W4A16; AWQ and GPTQ after repacking).

    qweight uint8 [N, K / 2]: byte j of a row holds column 2j in its low and 2j + 1 in its high nibble.
    scale [N, K / group_size] in fp16, bf16 or fp32, zero uint8 of the same shape:
    weight[n, k] = (nibble - zero[n, g]) * scale[n, g] with g = k // group_size. group_size is even and divides K.
    A matrix from `pack_int4_weight` stands for all four; the C++ form packs any other in each call.
    out_dtype: of the result, as in `linear`.
    """
    key = (*kind(x, scale), type(qweight), x.shape[0] <= 8, out_dtype)
    return call("int4_linear", key, x, qweight, scale, zero, group_size, out_dtype)


def int8_linear(
    x: Tensor,
    qweight: Tensor | PackedInt8,
    scale: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """x [T, K] times an int8 matrix, transposed: [T, N]; x is quantised on the fly (W8A8, dynamic).

    qweight int8 [N, K], scale fp32 [N]: weight[n, k] = qweight[n, k] * scale[n]. Each row of x gets its own
    scale max|x| / 127 and is rounded half to even; the integer sums are exact in int32, so every
    implementation agrees bit for bit before scaling. A row of zeros gives zeros.
    A matrix from `pack_int8_weight` stands for both; the C++ form packs any other in each call.
    out_dtype: of the result, as in `linear`.
    """
    key = (*kind(x), type(qweight), x.shape[0] <= 8, out_dtype)
    return call("int8_linear", key, x, qweight, scale, out_dtype)


def fp8_linear(x: Tensor, qweight: Tensor, scale: Tensor, input_scale: Tensor | None = None) -> Tensor:
    """x [T, K] times an fp8 matrix, transposed: [T, N] in x's dtype (W8A8).

    qweight float8_e4m3fn [N, K], scale fp32 [N]. x is quantised to e4m3 as well: with the given input_scale
    (fp32, one number, static), or each row with max|x| / 448 (dynamic). Values beyond 448 saturate.
    """
    return call("fp8_linear", kind(x), x, qweight, scale, input_scale)


def grouped_linear(x: Tensor, weight: Tensor, group_ends: Tensor) -> Tensor:
    """Rows sorted by group, each group with its own matrix (experts of an MoE): x [T, K] -> [T, N].

    weight [groups, N, K]; group_ends int32 [groups]: group g owns rows group_ends[g - 1] .. group_ends[g] - 1.
    """
    return call("grouped_linear", kind(x, weight), x, weight, group_ends)


# --- LoRA --------------------------------------------------------------------------------------------------


def lora_shrink(x: Tensor, lora_a: Tensor, token_adapter: Tensor) -> Tensor:
    """Return [slices, T, rank] fp32: slice s of token t is lora_a[s, adapter of t] @ x[t].

    x [T, K]; lora_a [slices, adapters, rank, K]; token_adapter int32 [T], -1 for no adapter: zeros.
    lora_a has x's dtype, or is bf16 beside fp32 x. Slices are the parts of a merged projection (q, k, v).
    Source: Punica (Chen et al. 2023), S-LoRA.
    """
    return call("lora_shrink", kind(x, lora_a), x, lora_a, token_adapter)


def lora_expand(
    shrunk: Tensor, lora_b: Sequence[Tensor], token_adapter: Tensor, y: Tensor, scaling: Tensor
) -> None:
    """Add to y in place: y[t, part s] += scaling[adapter of t] * lora_b[s][adapter of t] @ shrunk[s, t].

    shrunk fp32 [slices, T, rank]; lora_b: one [adapters, N_s, rank] per slice; y [T, sum of N_s], whose part s
    follows part s - 1; scaling fp32 [adapters]; rows with adapter -1 stay unchanged. lora_b has y's dtype, or
    is bf16 beside fp32 y.
    """
    call("lora_expand", kind(y, lora_b[0]), shrunk, lora_b, token_adapter, y, scaling)


# --- choosing tokens ---------------------------------------------------------------------------------------


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, keys: Tensor
) -> tuple[Tensor, Tensor]:
    """Choose one token per row without sorting: (token_ids int64 [S], peaks fp32 [S]).

    logits fp32 [S, V], not modified. Per row, all on the logits' device: temperature fp32 [S], 0 for greedy; top_k
    int32 [S], V for off; top_p fp32 [S], 1 for off; min_p fp32 [S], 0 for off; keys int32 [S, 2], the bits
    of a row's noise key. peaks is the row's highest logit (NaN if it holds a NaN; the token is then arbitrary).

    Greedy takes the lowest id among the highest. Otherwise, with x = (logit - peak) / temperature, min_p keeps the
    tokens with exp(x) >= min_p; of these, top_k keeps those at or above the top_k-th highest; of these, top_p keeps
    the most probable ones, up to and including the first at which their renormalised cumulative probability reaches
    top_p. Tokens with equal logits stay or go together. Of the tokens that stay the one with the highest x +
    Gumbel(hash(key, token)) wins: a sample of the softmax that depends only on key and logits. The hash is that of
    `reference/sampling.py`.
    """
    return call("sample", kind(logits), logits, temperature, top_k, top_p, min_p, keys)


def apply_penalties(
    logits: Tensor,
    in_prompt: Tensor,
    output_counts: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Penalise tokens of prompt and output in place.

    logits fp32 [S, V], in_prompt bool [S, V], output_counts int32 [S, V]; the rest fp32 [S]. For tokens in prompt or
    output a positive logit is divided by `repetition`, any other is multiplied by it; then `frequency` times the
    count in the output and, if that count is not zero, `presence` are subtracted. Source: vLLM
    v1/sample/ops/penalties.py.
    """
    inputs = (logits, in_prompt, output_counts, repetition, presence, frequency)
    call("apply_penalties", kind(logits), *inputs)


def gather_logprobs(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """(log-probability fp32 [S], rank int64 [S]) of one token per row, without a table of all log-probabilities.

    logits fp32 [S, V], token_ids int64 [S]. A token's rank is 1 plus the number of tokens with a higher logit.
    """
    return call("gather_logprobs", kind(logits), logits, token_ids)


def apply_token_bitmask(logits: Tensor, bitmask: Tensor) -> None:
    """Forbid tokens, in place: logits fp32 [S, V] becomes -inf where the token's bit is 0.

    bitmask int32 [S, ceil(V / 32)]: token v is bit v % 32 of word v // 32 (xgrammar's layout). Bits past V are
    ignored.
    """
    call("apply_token_bitmask", kind(logits), logits, bitmask)
