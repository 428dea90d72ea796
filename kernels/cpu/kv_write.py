"""Writing keys and values to the cache in C++, see `kv_write.cpp`."""

from __future__ import annotations

from torch import Tensor

from kernels.cpu.build import function
from kernels.cpu.dtypes import CACHES, FLOATS, unlike

_reshape_and_cache = function("reshape_and_cache", "pll" + "plll" + "pllpl" + "pllll")


def reshape_and_cache(
    key: Tensor, value: Tensor, kv: Tensor, slot_mapping: Tensor, kv_scale: Tensor | None = None
) -> None:
    _, _, heads, block_size, head_dim = kv.shape
    _reshape_and_cache(
        *(key.data_ptr(), key.stride(0), key.stride(1)),
        *(value.data_ptr(), value.stride(0), value.stride(1), FLOATS[key.dtype]),
        *cache_arguments(kv, kv_scale),
        *(slot_mapping.data_ptr(), slot_mapping.shape[0], heads, block_size, head_dim),
    )


def cache_arguments(kv: Tensor, kv_scale: Tensor | None) -> tuple[int | None, ...]:
    """Address, stride between blocks and type of a cache, then address and stride of its scales."""
    scales = (None, 0) if kv_scale is None else (kv_scale.data_ptr(), kv_scale.stride(0))
    return kv.data_ptr(), kv.stride(0), CACHES[kv.dtype], *scales


def unsupported_reshape_and_cache(
    key: Tensor, value: Tensor, kv: Tensor, slot_mapping: Tensor, kv_scale: Tensor | None = None
) -> str | None:
    return unlike(key, value) or unsupported_cache(kv, kv_scale)


def unsupported_cache(kv: Tensor, kv_scale: Tensor | None) -> str | None:
    """Reason why the C++ kernels cannot use a cache of this type or layout."""
    if kv.dtype not in CACHES:
        names = ", ".join(str(kind).removeprefix("torch.") for kind in CACHES)
        return f"a cache of {str(kv.dtype).removeprefix('torch.')}; supported: {names}"
    if CACHES[kv.dtype] > 2 and kv_scale is None:
        return f"a cache of {str(kv.dtype).removeprefix('torch.')} needs kv_scale"
    if kv.shape[0] and not kv[0].is_contiguous():
        return "a block is not contiguous; supported: [blocks, 2, kv_heads, block_size, head_dim], blocks strided"
    return None
