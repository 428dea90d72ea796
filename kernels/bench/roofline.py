"""Least bytes and FLOPs of an operation, from its arguments: the roofline model (Williams et al. 2009).

    limit = max( bytes / bandwidth,  FLOPs / FLOP rate )          share = limit / measured time

Bytes: every input that has to be looked at once, every output once, as if caches were perfect within a call and
empty before it. FLOPs: those of matrix products, 2 for a multiplication with an addition; whatever is elementwise hides
behind the memory. `_WORK` holds the formula of every operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
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


def _quantised_linear(x: Tensor, qweight: Tensor, *scales: Tensor, rate: torch.dtype) -> Work:
    return _product(x, qweight.shape[0], sum(each.nbytes for each in (qweight, *scales)), rate)


def _embedding(table: Tensor, ids: Tensor) -> Work:
    moved = ids.numel() * table.shape[1] * table.element_size()
    return Work(moved + ids.nbytes, moved)


def _fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Work:
    total = torch.result_type(x, residual).itemsize
    return Work(x.nbytes + residual.nbytes + weight.nbytes, x.numel() * (weight.element_size() + total))


def _copy_blocks(source: Tensor, target: Tensor, block_pairs: Tensor) -> Work:
    moved = block_pairs.shape[0] * source[0].numel() * source.element_size()
    return Work(moved, moved, over_link=source.device != target.device)


def _reshape_and_cache(
    key: Tensor, value: Tensor, kv: Tensor, slot_mapping: Tensor, kv_scale: Tensor | None = None
) -> Work:
    tokens = int((slot_mapping >= 0).sum())
    per_token = 2 * key.shape[1] * key.shape[2]
    scales = 8 * tokens * key.shape[1] if kv.dtype == torch.int8 else 0
    return Work(tokens * per_token * key.element_size(), tokens * per_token * kv.element_size() + scales)


def _paged_attention(
    query: Tensor, kv: Tensor, batch: AttentionBatch, *, sliding_window: int | None = None, **scales: Any
) -> Work:
    """Keys and values of every row that a query sees; 4 head_dim FLOPs for each pair of query head and key."""
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


def _gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Work:
    product = _product(x, weight.shape[0], weight.nbytes, x.dtype)
    return replace(product, written=product.written // 2)


def _norm_linear(
    x: Tensor,
    residual: Tensor | None,
    norm_weight: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor | None = None,
    activated: bool = False,
    rotary: tuple[Any, ...] | None = None,
) -> Work:
    """The product, and the residual stream in and out. Norm and rotation are not counted as FLOPs."""
    product = _gated_linear(x, weight) if activated else _product(x, len(weight), weight.nbytes, x.dtype)
    stream = 0 if residual is None else residual.nbytes
    angles = 0 if rotary is None else rotary[0].nbytes + rotary[1].nbytes
    return replace(product, read=product.read + stream + angles, written=product.written + stream)


def _grouped_linear(x: Tensor, weight: Tensor, group_ends: Tensor) -> Work:
    """Only matrices of groups that have rows are read."""
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


_WORK: dict[str, Callable[..., Work]] = {
    "linear": lambda x, weight, bias=None, out_dtype=None: _product(
        x, weight.shape[0], weight.nbytes, x.dtype
    ),
    "gated_linear": _gated_linear,
    "norm_linear": _norm_linear,
    "embedding": _embedding,
    "rms_norm": lambda x, weight, eps: Work(x.nbytes + weight.nbytes, x.numel() * weight.element_size()),
    "fused_add_rms_norm": _fused_add_rms_norm,
    "rotary_embedding": lambda x, cos, sin: Work(x.nbytes + cos.nbytes + sin.nbytes, x.nbytes),
    "silu_and_mul": lambda x: Work(x.nbytes, x.nbytes // 2),
    "reshape_and_cache": _reshape_and_cache,
    "paged_attention": _paged_attention,
    "copy_blocks": _copy_blocks,
    "int4_linear": lambda x, *weight: _quantised_linear(x, *weight[:3], rate=x.dtype),  # scales and zeros
    "int8_linear": lambda x, *weight: _quantised_linear(x, *weight[:2], rate=torch.int8),
    "fp8_linear": lambda x, *weight: _quantised_linear(x, *weight[:2], rate=torch.float8_e4m3fn),
    "grouped_linear": _grouped_linear,
    "lora_shrink": _lora_shrink,
    "lora_expand": _lora_expand,
    # The logits once; a filter needs more passes: that is what its share shows.
    "sample": lambda logits, *parameters: Work(logits.nbytes, 12 * logits.shape[0]),
    "apply_penalties": lambda logits, in_prompt, output_counts, *parameters: Work(
        logits.nbytes + in_prompt.nbytes + output_counts.nbytes, logits.nbytes
    ),
    "gather_logprobs": lambda logits, token_ids: Work(logits.nbytes, 12 * logits.shape[0]),
    "apply_token_bitmask": lambda logits, bitmask: Work(logits.nbytes + bitmask.nbytes, logits.nbytes),
}
