"""Other implementations of the operations: torch's, and those of FlashInfer and FlashAttention-3 where installed.

A yardstick gets its data in the form it likes best before the clock starts (dense weights, indices, plans), except
where bringing it into that form is what a paged cache costs: gathering pages is inside the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import ops
from kernels.attention_batch import AttentionBatch
from kernels.bench.timing import Call
from kernels.check.case import Case
from kernels.reference.int4 import dequantise_int4

FLASHINFER_WORKSPACE = 256 * 2**20

Prepared = Callable[[], object]
"""A call on one copy of the data."""


def yardsticks(cases: Sequence[Case]) -> tuple[dict[str, Call], dict[str, str]]:
    """Return the yardsticks of a case, each able to run on any copy, and those that failed with the reason.

    A broken or outdated library is left out.
    """
    working: dict[str, Call] = {}
    failed: dict[str, str] = {}
    for name, maker in _YARDSTICKS.get(cases[0].op, {}).items():
        try:
            prepared = [run for case in cases if (run := maker(*case.args, **case.kwargs))]
            if len(prepared) < len(cases):
                continue
            prepared[0]()
        except Exception as error:
            failed[name] = one_line(error)
        else:
            working[name] = partial(_run_copy, prepared)
    return working, failed


def _run_copy(prepared: Sequence[Prepared], number: int) -> object:
    return prepared[number % len(prepared)]()


def one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


# --- attention -------------------------------------------------------------------------------------------------


def _sdpa_by_row(query: Tensor, kv: Tensor, batch: AttentionBatch, **options: Any) -> Prepared | None:
    """For each request: gather its pages, then SDPA. What torch offers without a paged kernel."""
    if kv.dtype != query.dtype:
        return None
    block_size, device = kv.shape[3], query.device
    starts, lengths = batch.query_start_loc.tolist(), batch.seq_lens.tolist()
    rows = []
    for row, seq_len in enumerate(lengths):
        ids = batch.block_table[row, : -(-seq_len // block_size)].long()
        query_len = starts[row + 1] - starts[row]
        causal = query_len == seq_len
        mask = None
        if query_len > 1 and not causal:
            mask = torch.ones(query_len, seq_len, dtype=torch.bool, device=device).tril(seq_len - query_len)
        rows.append((starts[row], starts[row + 1], ids, seq_len, mask, causal and query_len > 1))

    def run() -> Tensor:
        out = torch.empty_like(query)
        for start, end, ids, seq_len, mask, causal in rows:
            pages = kv[ids].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, None, :, :seq_len]
            own = query[start:end].transpose(0, 1)[None]
            attended = F.scaled_dot_product_attention(
                own, pages[0], pages[1], mask, 0.0, causal, scale=options["scale"], enable_gqa=True
            )
            out[start:end] = attended[0].transpose(0, 1)
        return out

    return run


def _sdpa_padded(query: Tensor, kv: Tensor, batch: AttentionBatch, **options: Any) -> Prepared | None:
    """All requests of a decode batch at once: gather the pages of all, mask what is too long."""
    if kv.dtype != query.dtype or batch.max_query_len != 1:
        return None
    rows, heads, head_dim = query.shape
    kv_heads, block_size = kv.shape[2:4]
    table = batch.block_table.long()
    length = table.shape[1] * block_size
    visible = torch.arange(length, device=query.device) < batch.seq_lens[:, None]
    mask = None if visible.all() else visible[:, None, None]

    def run() -> Tensor:
        pages = kv[table].permute(2, 0, 3, 1, 4, 5).reshape(2, rows, kv_heads, length, head_dim)
        # Query heads where queries are expected:
        grouped = query.view(rows, kv_heads, heads // kv_heads, head_dim)
        attended = F.scaled_dot_product_attention(grouped, pages[0], pages[1], mask, scale=options["scale"])
        return attended.reshape(rows, heads, head_dim)

    return run


def _flashinfer(query: Tensor, kv: Tensor, batch: AttentionBatch, **options: Any) -> Prepared | None:
    """FlashInfer's paged kernels, which read the same pages."""
    if query.device.type != "cuda" or kv.dtype != query.dtype or find_spec("flashinfer") is None:
        return None
    import flashinfer

    heads, head_dim = query.shape[1:]
    kv_heads, block_size = kv.shape[2:4]
    blocks = (batch.seq_lens + block_size - 1) // block_size
    indptr = F.pad(blocks.cumsum(0), (1, 0)).int()
    indices = torch.cat([batch.block_table[row, :n] for row, n in enumerate(blocks.tolist())]).int()
    last = (batch.seq_lens - 1) % block_size + 1
    workspace = torch.empty(FLASHINFER_WORKSPACE, dtype=torch.uint8, device=query.device)
    pages = kv.contiguous()
    shape = (heads, kv_heads, head_dim, block_size)
    if batch.max_query_len == 1:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=True)
        wrapper.plan(indptr, indices, last, *shape, q_data_type=query.dtype, kv_data_type=kv.dtype)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND")
        wrapper.plan(
            batch.query_start_loc, indptr, indices, last, *shape, causal=True, q_data_type=query.dtype
        )
    return lambda: wrapper.run(query, pages)


def _flash_attention_3(query: Tensor, kv: Tensor, batch: AttentionBatch, **options: Any) -> Prepared | None:
    """FlashAttention-3 (Hopper) over the same pages, through a view: it takes strides of pages and heads."""
    if query.device.type != "cuda" or kv.dtype != query.dtype or find_spec("flash_attn_interface") is None:
        return None
    import flash_attn_interface

    keys, values = (
        kv[:, part].transpose(1, 2) for part in (0, 1)
    )  # [blocks, block_size, kv_heads, head_dim]
    longest = int(batch.query_start_loc.diff().max())
    call = partial(
        flash_attn_interface.flash_attn_with_kvcache,
        *(query, keys, values),
        cache_seqlens=batch.seq_lens,
        page_table=batch.block_table,
        cu_seqlens_q=batch.query_start_loc,
        max_seqlen_q=longest,
        softmax_scale=options["scale"],
        causal=True,
    )
    return lambda: call()


# --- the rest --------------------------------------------------------------------------------------------------


def _torch_silu(x: Tensor) -> Prepared:
    gate, up = x.chunk(2, dim=-1)
    return lambda: F.silu(gate) * up


def _index_copy(source: Tensor, target: Tensor, block_pairs: Tensor) -> Prepared | None:
    if source.device != target.device:
        return None
    origin, destination = block_pairs.to(source.device).unbind(1)
    return lambda: target.index_copy_(0, destination, source[origin])


def _packed(x: Tensor, weight: Tensor) -> Prepared | None:
    """Our own product with weights of x's type; on a GPU it is torch's."""
    if x.device.type != "cpu":
        return None
    matrix = ops.pack_weight(weight.to(x.dtype))
    return lambda: ops.linear(x, matrix)


def _one_after_the_other(
    x: Tensor,
    residual: Tensor,
    norm_weight: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor | None,
    activated: bool,
    rotary: tuple[Tensor, Tensor, int, int] | None = None,
) -> Prepared:
    """The operations that `norm_linear` is made of."""
    matrix = ops.pack_weight(weight, gated=activated)

    def run() -> Tensor:
        hidden, _ = ops.fused_add_rms_norm(x, residual, norm_weight, eps)
        if activated:
            return ops.gated_linear(hidden, matrix, bias)
        y = ops.linear(hidden, matrix, bias)
        if rotary is None:
            return y
        cos, sin, heads, head_dim = rotary
        return ops.rotary_embedding(y.view(len(y), -1, head_dim)[:, :heads], cos, sin)

    return run


def _dense_for_int4(x: Tensor, qweight: Tensor, scale: Tensor, zero: Tensor, group_size: int) -> Prepared:
    weight = dequantise_int4(qweight, scale, zero, group_size).to(x.dtype)
    return lambda: F.linear(x, weight)


def _dense(x: Tensor, qweight: Tensor, scale: Tensor) -> Prepared:
    weight = (qweight.float() * scale[:, None]).to(x.dtype)
    return lambda: F.linear(x, weight)


def _scaled_mm(x: Tensor, qweight: Tensor, scale: Tensor) -> Prepared | None:
    """cuBLAS with scales for rows; x is quantised before the clock starts."""
    if x.device.type != "cuda" or x.shape[0] < 16:
        return None
    row_scale = x.float().abs().amax(-1, keepdim=True) / 448
    codes = (x.float() / row_scale).to(qweight.dtype)
    column_scale = scale[None].contiguous()
    return lambda: torch._scaled_mm(codes, qweight.T, row_scale, column_scale, out_dtype=x.dtype)


def _int_mm(x: Tensor, qweight: Tensor, scale: Tensor) -> Prepared | None:
    """The integer product alone; x is quantised before the clock starts."""
    if x.shape[0] <= 16:
        return None
    row_scale = x.float().abs().amax(-1, keepdim=True) / 127
    codes = (x.float() / row_scale).round().to(torch.int8)
    return lambda: torch._int_mm(codes, qweight.T)


def _softmax_sort(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, keys: Tensor
) -> Prepared:
    """The way without kernels: sort, cut where the sum passes p, softmax, draw."""

    def run() -> Tensor:
        x = logits / temperature.clamp_min(1e-6)[:, None]
        ordered, ids = x.sort(-1, descending=True)
        probabilities = ordered.softmax(-1)
        out = probabilities.cumsum(-1) - probabilities >= top_p[:, None]
        out |= torch.arange(x.shape[1], device=x.device) >= top_k[:, None]
        kept = probabilities.masked_fill(out, 0.0)
        return ids.gather(-1, torch.multinomial(kept, 1))

    return run


_YARDSTICKS: dict[str, dict[str, Callable[..., Prepared | None]]] = {
    "paged_attention": {
        "SDPA, pages gathered by row": _sdpa_by_row,
        "SDPA, pages gathered at once": _sdpa_padded,
        "FlashInfer": _flashinfer,
        "FlashAttention-3": _flash_attention_3,
    },
    "rms_norm": {"torch rms_norm": lambda x, weight, eps: lambda: F.rms_norm(x, weight.shape, weight, eps)},
    "norm_linear": {"one after the other": _one_after_the_other},
    "silu_and_mul": {"torch silu, mul": _torch_silu},
    "copy_blocks": {"torch index_copy": _index_copy},
    "int4_linear": {
        "dense weights": _dense_for_int4,
        "our bf16 product": lambda x, *weight: _packed(x, dequantise_int4(*weight)),
    },
    "int8_linear": {
        "dense weights": _dense,
        "our bf16 product": lambda x, codes, scale: _packed(x, codes.float() * scale[:, None]),
        "torch _int_mm": _int_mm,
    },
    "fp8_linear": {"dense weights": _dense, "torch _scaled_mm": _scaled_mm},
    "sample": {"torch sort, multinomial": _softmax_sort},
    "gather_logprobs": {
        "torch log_softmax": lambda logits, ids: lambda: logits.log_softmax(-1).gather(-1, ids[:, None])
    },
}
