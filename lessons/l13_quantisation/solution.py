"""Reference solutions of lesson 13."""

# ruff: noqa: E402, F811

# exercise 13.1
import torch
from torch import Tensor


def quantize(weight: Tensor, bits: int, group_size: int) -> tuple[Tensor, Tensor]:
    """Round `weight` [out, in] to signed integers, with one scale for each group of columns of a row.

    Returns q, int8 [out, in] with |q| <= 2**(bits - 1) - 1, and scales, fp16 [out, in / group_size]: the largest
    |weight| of the group over the largest |q|, as fp16 stores it. A group whose scale is 0 gets scale 1.
    Raises ValueError if bits is not 2 to 8, or if group_size does not divide `in`.
    """
    rows, columns = weight.shape
    if not 2 <= bits <= 8:
        raise ValueError(f"bits is {bits}; expected 2 to 8")
    if group_size < 1 or columns % group_size:
        raise ValueError(f"group_size {group_size} does not divide {columns} columns")
    largest = 2 ** (bits - 1) - 1
    groups = weight.float().reshape(rows, -1, group_size)
    scales = (groups.abs().amax(-1) / largest).half()
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
    steps = (groups / scales.float()[..., None]).round().clamp(-largest, largest)
    return steps.to(torch.int8).reshape(rows, columns), scales


def dequantize(q: Tensor, scales: Tensor, group_size: int) -> Tensor:
    """Return the matrix that q and scales stand for, fp32 [out, in]."""
    rows, columns = q.shape
    groups = q.float().reshape(rows, -1, group_size)
    return (groups * scales.float()[..., None]).reshape(rows, columns)


# exercise 13.2
import torch
from torch import Tensor


def pack_int4(q: Tensor) -> Tensor:
    """Return uint8 [out, in / 2]: q, int8 [out, in] of -8 to 7, two values in a byte.

    A value is stored as value + 8, that of the even column in the low four bits. Raises ValueError if `in` is odd.
    """
    if q.shape[1] % 2:
        raise ValueError(f"{q.shape[1]} columns do not fill whole bytes")
    nibbles = (q + 8).to(torch.uint8)
    return nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)


def unpack_int4(packed: Tensor) -> Tensor:
    """Return int8 [out, in]: the values that pack_int4 stored in packed, uint8 [out, in / 2]."""
    nibbles = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)
    return nibbles.to(torch.int8) - 8


# exercise 13.3
import torch
from torch import Tensor


def quantize_kv(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys or values x [tokens, kv_heads, head_dim] in int8, and their scales, fp32 [tokens, kv_heads].

    A scale is max|x| / 127 over the head_dim numbers of one token and head. Where it is 0, q is 0.
    """
    scales = x.float().abs().amax(-1) / 127
    steps = x.float() / scales.clamp_min(torch.finfo(torch.float32).tiny)[..., None]
    return steps.round().clamp(-127, 127).to(torch.int8), scales


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int) -> int:
    """Return the bytes of one token's keys and values in this format, fp32 scales included."""
    return 2 * num_layers * num_kv_heads * (head_dim + 4)
