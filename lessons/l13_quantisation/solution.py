"""Reference solutions of lesson 13."""

# ruff: noqa: E402, F811

# exercise 13.1
import torch
from torch import Tensor


def quantize(weight: Tensor, bits: int, group_size: int) -> tuple[Tensor, Tensor]:
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
    rows, columns = q.shape
    groups = q.float().reshape(rows, -1, group_size)
    return (groups * scales.float()[..., None]).reshape(rows, columns)


# exercise 13.2
import torch
from torch import Tensor


def pack_int4(q: Tensor) -> Tensor:
    if q.shape[1] % 2:
        raise ValueError(f"{q.shape[1]} columns do not fill whole bytes")
    nibbles = (q + 8).to(torch.uint8)
    return nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)


def unpack_int4(packed: Tensor) -> Tensor:
    nibbles = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)
    return nibbles.to(torch.int8) - 8


# exercise 13.3
import torch
from torch import Tensor


def quantize_kv(x: Tensor) -> tuple[Tensor, Tensor]:
    scales = x.float().abs().amax(-1) / 127
    steps = x.float() / scales.clamp_min(torch.finfo(torch.float32).tiny)[..., None]
    return steps.round().clamp(-127, 127).to(torch.int8), scales


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int) -> int:
    return 2 * num_layers * num_kv_heads * (head_dim + 4)
