"""Paged attention for decode on the GPU: launches of paged_decode.cu (one pass) and paged_decode_split.cu."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from kernels.attention_batch import AttentionBatch
from kernels.cuda.launch import FLOATS, QUANTISED, Kernel, kernel, launch, quantised_defines, vector_width

WARP = 32
WARPS = 4
UNROLL = 4
"""Steps that a warp takes at once on the CUDA cores."""
STAGES = 3
"""Slots of a warp's queue on the CUDA cores."""
MAX_GROUP = 8
"""Query heads of one block: the columns of a product of the tensor cores."""
TILE = 16
"""Tokens of a tile in paged_mma.cuh."""
SPLIT = 512
"""Tokens of a split: fixed, so that how a sequence is split does not depend on the batch."""
PARTIAL_BYTES = 64 << 20
"""Partial results at a time; more sequences are computed in several launches."""

_PROBLEM = "ppppppllllliiiiif"
_SOURCE = "paged_decode_split.cu"
"""It includes paged_decode.cu, so one compilation gives all three kernels."""


def paged_attention(query: Tensor, kv: Tensor, batch: AttentionBatch, **options: Any) -> Tensor:
    """One pass if no sequence can be longer than a split, else split-KV: decided by the width of the block table.

    Where both could run they give the same bits, so a row's result does not depend on which was chosen.
    """
    decode = decode_one_pass if batch.block_table.shape[1] * kv.shape[3] <= SPLIT else decode_split
    return decode(query, kv, batch, **options)


def unsupported_paged_attention(
    query: Tensor, kv: Tensor, batch: AttentionBatch, **options: Any
) -> str | None:
    if query.dtype not in FLOATS or kv.dtype not in (query.dtype, *QUANTISED):
        return (
            f"query in {query.dtype}, cache in {kv.dtype}; supported: float32, float16 or bfloat16 with the cache in "
            "the same dtype, in float8_e4m3fn or in int8"
        )
    head_dim, vec = query.shape[2], _vec(kv.dtype)
    if head_dim % vec or head_dim > WARP * vec:
        return f"head_dim {head_dim}; supported: multiples of {vec} up to {WARP * vec}"
    item = kv.element_size()
    if kv.data_ptr() % 16 or kv.stride(0) * item % 16:
        return "a cache whose blocks do not start at multiples of 16 bytes"
    if batch.max_query_len != 1:  # None as well: the answer is kept for other batches
        return "queries of more than one token, or of unknown length; max_query_len=1 is supported, triton takes more"
    return None


@dataclass(frozen=True, slots=True)
class Geometry:
    """Layout of a block of the decode kernels; see the drawing in paged_decode.cu."""

    scalar: torch.dtype
    cached: torch.dtype
    head_dim: int
    heads_per_kv_head: int
    block_size: int
    pairs: bool = True
    """Whether two neighbouring values of the query can be loaded at once."""

    @property
    def tensor_cores(self) -> bool:
        """Whether paged_mma.cuh computes: 16-bit types, except fp16 with an int8 cache (weights would underflow)."""
        types = [torch.bfloat16] if self.cached == torch.int8 else [torch.bfloat16, torch.float16]
        return self.scalar in types and self.head_dim % 16 == 0 and self.pairs

    @property
    def group(self) -> int:
        """Query heads of a block: the largest divisor of what shares a kv head that registers have room for."""
        return max(size for size in range(1, MAX_GROUP + 1) if self.heads_per_kv_head % size == 0)

    @property
    def vec(self) -> int:
        """Values of a row that a lane takes: 16 bytes, 8 of a quantised cache."""
        return _vec(self.cached)

    @property
    def lanes(self) -> int:
        """Lanes of a token: as many as its row has chunks, rounded up to a power of two for the butterfly."""
        return 1 << (self.head_dim // self.vec - 1).bit_length()

    @property
    def stages(self) -> int:
        """Slots of a warp's queue.

        The tensor cores take little of them: 20 warps on an SM with one tile of 4 KB in flight each are five times the
        16 KB that memory asks for. A quantised cache has tiles of 2 KB, hence two in flight.
        """
        if not self.tensor_cores:
            return STAGES
        return 2 if self.cached.itemsize > 1 else 3

    @property
    def shared_bytes(self) -> int:
        """The larger of the queue and the warps' results, which take its place: union Shared."""
        if self.tensor_cores:
            chunks = self.head_dim * self.cached.itemsize // 16
            slot = TILE * (16 * (chunks | 1) + (4 if self.cached == torch.int8 else 0))
        else:
            scales = 2 * 4 if self.cached == torch.int8 else 0
            slot = UNROLL * WARP * (2 * self.vec * self.cached.itemsize + scales)
        return max(WARPS * self.stages * slot, WARPS * self.group * (2 + self.head_dim) * 4)

    @property
    def min_blocks(self) -> int:
        """Blocks that the compiler must leave registers for."""
        if self.tensor_cores:
            return 5 if self.head_dim <= 128 else 2
        return 4 if self.group <= 4 else 3 if self.group <= 6 else 2

    def defines(self) -> dict[str, torch.dtype | int]:
        """Macros that paged_decode.cu is compiled with."""
        return {
            "SCALAR": self.scalar,
            "CACHE": self.cached,
            **quantised_defines(self.cached),
            "HEAD_DIM": self.head_dim,
            "GROUP": self.group,
            "BLOCK_SIZE": self.block_size,
            "WARPS": WARPS,
            "STAGES": self.stages,
            "MIN_BLOCKS": self.min_blocks,
            "TENSOR_CORES": self.tensor_cores,
            **({} if self.tensor_cores else {"VEC": self.vec, "LANES": self.lanes, "UNROLL": UNROLL}),
        }


def _vec(cached: torch.dtype) -> int:
    return 4 if cached == torch.float32 else 8


@cache
def _kernel(name: str, parameters: str, geometry: Geometry, split: int = SPLIT) -> Kernel:
    return kernel(_SOURCE, name, parameters, SPLIT=split, **geometry.defines())


def decode_one_pass(query: Tensor, kv: Tensor, batch: AttentionBatch, **options: Any) -> Tensor:
    """Version 1: a block per (sequence, kv head) reads the whole sequence. Arguments as `ops.paged_attention`."""
    geometry = _geometry(query, kv)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    problem = _problem(query, kv, batch, **options)
    launch(
        _kernel("paged_decode", _PROBLEM + "p", geometry),
        *problem,
        out,
        grid=(max(batch.seq_lens.shape[0], query.shape[0]), query.shape[1] // geometry.group),
        block=(WARPS * WARP,),
        shared_bytes=geometry.shared_bytes,
        device=query.device,
    )
    return out


def decode_split(
    query: Tensor, kv: Tensor, batch: AttentionBatch, *, split: int = SPLIT, **options: Any
) -> Tensor:
    """Version 2: a block per (sequence, kv head, split), then a second kernel that merges the splits."""
    geometry = _geometry(query, kv)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    num_heads, head_dim = query.shape[1:]
    num_splits = -(-batch.block_table.shape[1] * kv.shape[3] // split)
    partial_of_one = num_heads * num_splits * (head_dim + 2) * 4
    sequences = batch.seq_lens.shape[0]
    at_once = max(1, min(sequences, PARTIAL_BYTES // max(1, partial_of_one)))
    partial = torch.empty(at_once, num_heads, num_splits, head_dim, device=query.device)
    sums = torch.empty(at_once, num_heads, num_splits, 2, device=query.device)
    for begin in range(0, max(1, sequences), at_once):
        rows = slice(begin, begin + at_once)
        starts = batch.query_start_loc[begin : begin + at_once + 1]
        part = AttentionBatch(starts, batch.seq_lens[rows], batch.block_table[rows], 1)
        problem = _problem(query, kv, part, **options)
        launch(
            _kernel("paged_decode_partial", _PROBLEM + "pp", geometry, split),
            *(*problem, partial, sums),
            grid=(part.seq_lens.shape[0], num_heads // geometry.group, num_splits),
            block=(WARPS * WARP,),
            shared_bytes=geometry.shared_bytes,
            device=query.device,
        )
        # Tokens behind these rows get zeros, and then what the next round computes for them.
        launch(
            _kernel("paged_decode_reduce", _PROBLEM + "pppi", geometry, split),
            *(*problem, partial, sums, out, num_splits),
            grid=(max(part.seq_lens.shape[0], query.shape[0]), num_heads),
            block=(-(-head_dim // WARP) * WARP,),
            device=query.device,
        )
    return out


def _geometry(query: Tensor, kv: Tensor) -> Geometry:
    group = query.shape[1] // kv.shape[2]
    return Geometry(query.dtype, kv.dtype, query.shape[2], group, kv.shape[3], vector_width(2, query) == 2)


def _problem(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    kv_scale: Tensor | None = None,
) -> tuple[Tensor | int | float | None, ...]:
    """PROBLEM_PARAMETERS of paged_decode.cu."""
    return (
        *(query, kv, kv_scale, batch.query_start_loc, batch.seq_lens, batch.block_table),
        *(query.stride(0), query.stride(1), kv.stride(0)),
        kv_scale.stride(0) if kv_scale is not None else 0,
        batch.block_table.stride(0),
        *(query.shape[0], batch.seq_lens.shape[0], query.shape[1], kv.shape[2]),
        sliding_window or 0,
        scale,
    )


def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
    def case(dtype: torch.dtype, cached: torch.dtype, heads: int, head_dim: int) -> Callable[[], object]:
        query = torch.empty(64, heads, head_dim, dtype=dtype, device="meta")
        kv = torch.empty(4096, 2, 8, 16, head_dim, dtype=cached, device="meta")
        starts, lens = torch.empty(65, device="meta"), torch.empty(64, device="meta")
        batch = AttentionBatch(starts, lens, torch.empty(64, 256, device="meta"), 1)
        kv_scale = torch.empty(4096, 2, 8, 16, device="meta")
        options: dict[str, Any] = {"scale": 0.1, "kv_scale": kv_scale}
        return lambda: (
            decode_one_pass(query, kv, batch, **options),
            decode_split(query, kv, batch, **options),
        )

    bf16, fp8 = torch.bfloat16, torch.float8_e4m3fn
    return {
        "bf16, 4 x 128": case(bf16, bf16, 32, 128),
        "bf16, 8 x 128": case(bf16, bf16, 64, 128),
        "bf16, 7 x 64": case(bf16, bf16, 56, 64),
        "fp16, 4 x 128": case(torch.float16, torch.float16, 32, 128),
        "fp32, 4 x 128": case(torch.float32, torch.float32, 32, 128),
        "bf16, fp8 cache": case(bf16, fp8, 32, 128),
        "bf16, int8 cache": case(bf16, torch.int8, 32, 128),
        "bf16, 4 x 256": case(bf16, bf16, 32, 256),
        "bf16, 4 x 40": case(bf16, bf16, 32, 40),
    }
