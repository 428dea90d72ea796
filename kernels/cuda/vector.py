"""How many values a thread can move with one instruction."""

from __future__ import annotations

from torch import Tensor

WIDEST_ACCESS = 16
"""Bytes: a 128-bit load or store."""


def vector_width(length: int, *tensors: Tensor) -> int:
    """The most elements, a power of two, that one access of every tensor can hold along its last dimension.

    They are at most 16 bytes of the widest type, divide `length`, and no row of any tensor starts between them.
    """
    width = WIDEST_ACCESS // max(each.element_size() for each in tensors)
    while width > 1 and not (length % width == 0 and all(_aligned(each, width) for each in tensors)):
        width //= 2
    return width


def _aligned(tensor: Tensor, width: int) -> bool:
    strides = [stride for stride, size in zip(tensor.stride()[:-1], tensor.shape, strict=False) if size > 1]
    return tensor.data_ptr() % (width * tensor.element_size()) == 0 and not any(
        stride % width for stride in strides
    )
