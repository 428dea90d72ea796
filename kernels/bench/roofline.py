"""Least bytes and FLOPs of an operation, from its arguments: the roofline model (Williams et al. 2009).

    limit = max( bytes / bandwidth,  FLOPs / FLOP rate )          share = limit / measured time

Bytes: every input that has to be looked at once, every output once, as if caches were perfect within a call and
empty before it. FLOPs: those of matrix products, 2 for a multiplication with an addition; whatever is elementwise hides
behind the memory. In the formulas below T tokens, K and N the sides of a matrix, S rows of V logits:

    linear                  K N + T K + T N elements                                2 T K N
    embedding               rows asked for, twice, and their ids
    rms_norm                x, weight, out
    fused_add_rms_norm      x, residual, weight, out, sum
    rotary_embedding        x, out, cos, sin
    silu_and_mul            x, out (half of x)
    reshape_and_cache       key, value, what is stored of them (and scales)
    paged_attention         query, out, and of every row the keys and values that its first query sees or a later one;
                            4 head_dim for each pair of query head and visible key
    copy_blocks             blocks read and written
    int4_linear             K N / 2, scales, zeros, x, out                          2 T K N in x's type
    int8_linear, fp8_linear K N, scales, x, out                                     2 T K N in that type
    grouped_linear          matrices of groups that have rows, x, out               2 T K N
    lora_shrink             A of adapters in use, x, out                            2 T K rank slices
    lora_expand             B of adapters in use, shrunk, y twice                   2 T rank N
    sample                  S V logits once (a filter needs more passes: that is what its share shows)
    apply_penalties         logits twice, in_prompt, output_counts
    gather_logprobs         S V logits once
    apply_token_bitmask     logits twice, bitmask
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.attention_batch import AttentionBatch
from kernels.bench.limits import Limits

READ_MOSTLY = 8
"""From this many bytes read per byte written the read bandwidth is the limit, otherwise the copy bandwidth."""


@dataclass(frozen=True, slots=True)
class Work:
    """The least that a call has to do."""

    read: int
    written: int
    flops: int = 0
    rate: str = "float32"
    """The type in which it multiplies."""
    over_link: bool = False
    """The bytes go between host and GPU."""

    @property
    def bytes(self) -> int:
        return self.read + self.written


@dataclass(frozen=True, slots=True)
class Limit:
    """The shortest time that this machine allows, and what sets it."""

    seconds: float
    bound: str
    """memory, compute or link"""


def work(op: str, *args: Any, **kwargs: Any) -> Work:
    """Return the least bytes and FLOPs of a call."""
    return _WORK[op](*args, **kwargs)


def limit(of: Work, limits: Limits) -> Limit:
    """Return the least time of a call on a machine with these limits."""
    if of.over_link and limits.link_bandwidth:
        return Limit(of.read / limits.link_bandwidth, "link")
    bandwidth = limits.read_bandwidth if of.read >= READ_MOSTLY * of.written else limits.copy_bandwidth
    memory = of.bytes / bandwidth
    compute = of.flops / limits.flops.get(of.rate, limits.flops["float32"])
    return Limit(compute, "compute") if compute > memory else Limit(memory, "memory")


# --- one function for each operation ---------------------------------------------------------------------------


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _product(x: Tensor, out_features: int, weight_bytes: int, rate: torch.dtype) -> Work:
    rows, width = x.shape
    flops = 2 * rows * width * out_features
    return Work(x.nbytes + weight_bytes, rows * out_features * x.element_size(), flops, _name(rate))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Work:
    return _product(x, weight.shape[0], weight.nbytes, x.dtype)


def _embedding(table: Tensor, ids: Tensor) -> Work:
    moved = ids.numel() * table.shape[1] * table.element_size()
    return Work(moved + ids.nbytes, moved)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Work:
    return Work(x.nbytes + weight.nbytes, x.numel() * weight.element_size())


def _fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Work:
    total = torch.result_type(x, residual).itemsize
    return Work(x.nbytes + residual.nbytes + weight.nbytes, x.numel() * (weight.element_size() + total))


def _rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> Work:
    return Work(x.nbytes + cos.nbytes + sin.nbytes, x.nbytes)


def _silu_and_mul(x: Tensor) -> Work:
    return Work(x.nbytes, x.nbytes // 2)


def _reshape_and_cache(
    key: Tensor, value: Tensor, kv: Tensor, slot_mapping: Tensor, kv_scale: Tensor | None = None
) -> Work:
    tokens = int((slot_mapping >= 0).sum())
    per_token = 2 * key.shape[1] * key.shape[2]
    scales = 8 * tokens * key.shape[1] if kv.dtype == torch.int8 else 0
    return Work(tokens * per_token * key.element_size(), tokens * per_token * kv.element_size() + scales)


def _paged_attention(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    kv_scale: Tensor | None = None,
) -> Work:
    _, _, kv_heads, _, head_dim = kv.shape
    keys_read, pairs = 0, 0
    query_lens = batch.query_start_loc.diff().tolist()
    for query_len, seq_len in zip(query_lens, batch.seq_lens.tolist(), strict=True):
        first = seq_len - query_len
        begin = 0 if sliding_window is None else max(0, first - sliding_window + 1)
        keys_read += seq_len - begin
        ends = torch.arange(first + 1, seq_len + 1)
        pairs += int((ends if sliding_window is None else ends.clamp_max(sliding_window)).sum())
    per_key = 2 * kv_heads * (head_dim * kv.element_size() + (4 if kv.dtype == torch.int8 else 0))
    flops = 4 * head_dim * query.shape[1] * pairs
    return Work(query.nbytes + keys_read * per_key, query.nbytes, flops, _name(query.dtype))


def _copy_blocks(source: Tensor, target: Tensor, block_pairs: Tensor) -> Work:
    moved = block_pairs.shape[0] * source[0].numel() * source.element_size()
    return Work(moved, moved, over_link=source.device != target.device)


def _int4_linear(x: Tensor, qweight: Tensor, scale: Tensor, zero: Tensor, group_size: int) -> Work:
    return _product(x, qweight.shape[0], qweight.nbytes + scale.nbytes + zero.nbytes, x.dtype)


def _quantised_linear(x: Tensor, qweight: Tensor, scale: Tensor, input_scale: Tensor | None = None) -> Work:
    return _product(x, qweight.shape[0], qweight.nbytes + scale.nbytes, qweight.dtype)


def _grouped_linear(x: Tensor, weight: Tensor, group_ends: Tensor) -> Work:
    groups = int((group_ends.diff(prepend=group_ends.new_zeros(1)) > 0).sum())
    return _product(x, weight.shape[1], groups * weight[0].nbytes, x.dtype)


def _lora_shrink(x: Tensor, lora_a: Tensor, token_adapter: Tensor) -> Work:
    slices, _, rank, width = lora_a.shape
    used = token_adapter[token_adapter >= 0]
    matrices = used.unique().numel() * slices * rank * width * lora_a.element_size()
    flops = 2 * used.numel() * slices * rank * width
    return Work(x.nbytes + matrices, 4 * slices * x.shape[0] * rank, flops, _name(x.dtype))


def _lora_expand(
    shrunk: Tensor, lora_b: list[Tensor], token_adapter: Tensor, y: Tensor, scaling: Tensor
) -> Work:
    used = token_adapter[token_adapter >= 0]
    width, rank = sum(each.shape[1] for each in lora_b), shrunk.shape[2]
    matrices = used.unique().numel() * width * rank * lora_b[0].element_size()
    touched = used.numel() * width * y.element_size()
    return Work(shrunk.nbytes + matrices + touched, touched, 2 * used.numel() * rank * width, _name(y.dtype))


def _sample(logits: Tensor, *parameters: Tensor) -> Work:
    return Work(logits.nbytes, 12 * logits.shape[0])


def _apply_penalties(logits: Tensor, in_prompt: Tensor, output_counts: Tensor, *parameters: Tensor) -> Work:
    return Work(logits.nbytes + in_prompt.nbytes + output_counts.nbytes, logits.nbytes)


def _gather_logprobs(logits: Tensor, token_ids: Tensor) -> Work:
    return Work(logits.nbytes, 12 * logits.shape[0])


def _apply_token_bitmask(logits: Tensor, bitmask: Tensor) -> Work:
    return Work(logits.nbytes + bitmask.nbytes, logits.nbytes)


_WORK: dict[str, Callable[..., Work]] = {
    "linear": _linear,
    "embedding": _embedding,
    "rms_norm": _rms_norm,
    "fused_add_rms_norm": _fused_add_rms_norm,
    "rotary_embedding": _rotary_embedding,
    "silu_and_mul": _silu_and_mul,
    "reshape_and_cache": _reshape_and_cache,
    "paged_attention": _paged_attention,
    "copy_blocks": _copy_blocks,
    "int4_linear": _int4_linear,
    "int8_linear": _quantised_linear,
    "fp8_linear": _quantised_linear,
    "grouped_linear": _grouped_linear,
    "lora_shrink": _lora_shrink,
    "lora_expand": _lora_expand,
    "sample": _sample,
    "apply_penalties": _apply_penalties,
    "gather_logprobs": _gather_logprobs,
    "apply_token_bitmask": _apply_token_bitmask,
}
