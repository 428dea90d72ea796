"""4-bit floating point weights with a scale for each block: MXFP4 and NVFP4, emulated.

    E2M1   s e e m     0  0.5  1  1.5  2  3  4  6, and the same below zero: half of the steps lie below 2

    MXFP4  | 32 weights | E8M0 |      a power of two                        4 + 8 / 32 = 4.25 bits per weight
    NVFP4  | 16 weights | E4M3 | ...  times one fp32 number for the matrix  4 + 8 / 16 = 4.5

A power of two wastes up to half of the range: the largest weight of a block lands anywhere in [4, 8), and 6 is the most
that there is. NVFP4's scale has three bits of fraction, so the largest weight lands on 6; since E4M3 alone covers too
little, the fp32 number first brings the matrix's largest block scale to E4M3's largest, 448.

Emulated: a matrix is rounded to these formats while it is loaded, and what the rounded numbers stand for is kept and
multiplied in the model's type, on any device. That shows what 4 bits do to the answers. It saves no memory and no time:
those need tensor cores that read the format (Blackwell), which round activations to it as well. `FP4Weight` is what
such a device would hold.

Sources: OCP Microscaling Formats (MX) Specification v1.0, sections 5.3.3 (E2M1), 5.4.1 (E8M0) and 6.3 (conversion);
NVIDIA, "Introducing NVFP4 for Efficient and Accurate Low-Precision Inference"; vLLM
model_executor/layers/quantization/online/mxfp4.py, online/nvfp4.py and utils/nvfp4_emulation_utils.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import ConfigError
from engine.quant.matrices import E4M3

FP4_BLOCKS = {"mxfp4": 32, "nvfp4": 16}  # Columns that share a scale, of each format
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the codes 0 to 7; codes 8 to 15 are their negatives."""
E2M1_MAX = 6.0
E2M1_MAX_EXPONENT = 2  # Exponent of 4, the largest power of two among the values
E4M3_MAX = 448.0
E8M0_BIAS = 127
SIGN = 8


@dataclass(frozen=True, slots=True)
class FP4Weight:
    """A matrix [N, K] as a device that multiplies FP4 holds it."""

    packed: Tensor  # uint8 [N, K / 2]: two codes to a byte, the even column in the low half
    block_scale: Tensor  # [N, K / block]: uint8, the exponent + 127 (MXFP4), or float8_e4m3fn (NVFP4)
    tensor_scale: Tensor | None = None  # fp32, one number (NVFP4)

    @property
    def nbytes(self) -> int:
        tensor_scale = 0 if self.tensor_scale is None else self.tensor_scale.nbytes
        return self.packed.nbytes + self.block_scale.nbytes + tensor_scale

    def restore(self) -> Tensor:
        """The matrix that it stands for, fp32 [N, K]."""
        if self.tensor_scale is None:
            scale = from_e8m0(self.block_scale)
        else:
            scale = self.block_scale.float() * self.tensor_scale
        codes = torch.stack((self.packed & 15, self.packed >> 4), dim=-1).flatten(1)
        return _in_blocks(from_e2m1(codes), scale.shape[1]).mul(scale[..., None]).flatten(1)


def to_e2m1(x: Tensor) -> Tensor:
    """Codes of the nearest E2M1 numbers, uint8: halves go to the even code, what is beyond 6 becomes 6."""
    size = x.abs().clamp_max(E2M1_MAX)
    # The steps are 0.5 below 2, 1 below 4 and 2 above; counting them goes on from code 0, 4 and 6.
    low, middle, high = (size * 2).round(), size.round() + 2, (size / 2).round() + 4
    code = torch.where(size < 2, low, torch.where(size < 4, middle, high)).to(torch.uint8)
    return torch.where(x.signbit(), code + SIGN, code)


def from_e2m1(codes: Tensor) -> Tensor:
    """Return the values of codes in fp32."""
    values = torch.tensor(E2M1_VALUES, device=codes.device)
    return torch.cat((values, -values))[codes.int()]


def from_e8m0(codes: Tensor) -> Tensor:
    """2 ** (code - 127), fp32: the code is the exponent field of that very number, but for the smallest."""
    smallest = torch.full((), 2.0**-E8M0_BIAS, device=codes.device)
    return torch.where(codes == 0, smallest, (codes.int() << 23).view(torch.float32))


def quantise_mxfp4(weight: Tensor) -> FP4Weight:
    """Round a finite matrix [N, K] to MXFP4; blocks of 32 divide K.

    The scale is the specification's: 2 ** (exponent of the block's largest weight - 2). What then lies beyond 6
    becomes 6.
    """
    blocks = _in_blocks(weight.float(), weight.shape[1] // FP4_BLOCKS["mxfp4"])
    exponent = torch.frexp(blocks.abs().amax(-1)).exponent - 1  # frexp's fraction is from 0.5 to 1
    exponent = (exponent - E2M1_MAX_EXPONENT).clamp(-E8M0_BIAS, E8M0_BIAS)
    block_scale = (exponent + E8M0_BIAS).to(torch.uint8)
    return FP4Weight(_pack(to_e2m1(blocks / from_e8m0(block_scale)[..., None]).flatten(1)), block_scale)


def quantise_nvfp4(weight: Tensor) -> FP4Weight:
    """Round a finite matrix [N, K] to NVFP4; blocks of 16 divide K.

    A block whose largest weight is 460,000 times smaller than the matrix's has no scale in E4M3: it becomes zeros.
    """
    blocks = _in_blocks(weight.float(), weight.shape[1] // FP4_BLOCKS["nvfp4"])
    largest = blocks.abs().amax(-1)
    tensor_scale = largest.max() / (E2M1_MAX * E4M3_MAX)
    tensor_scale = torch.where(tensor_scale == 0, torch.ones_like(tensor_scale), tensor_scale)
    block_scale = (largest / E2M1_MAX / tensor_scale).clamp_max(E4M3_MAX).to(E4M3)
    scale = (block_scale.float() * tensor_scale)[..., None]
    codes = torch.where(scale == 0, torch.zeros_like(blocks), blocks / scale)
    return FP4Weight(_pack(to_e2m1(codes).flatten(1)), block_scale, tensor_scale)


def _in_blocks(matrix: Tensor, num_blocks: int) -> Tensor:
    """[N, K] -> [N, blocks, K / blocks]"""
    return matrix.unflatten(1, (num_blocks, -1))


def _pack(codes: Tensor) -> Tensor:
    return codes[:, ::2] | (codes[:, 1::2] << 4)


def quantise_fp4(weight: Tensor, name: str) -> FP4Weight:
    """A matrix [N, K] in the format "mxfp4" or "nvfp4"; a ConfigError if it holds infinities or NaN."""
    if not weight.isfinite().all():
        raise ConfigError(
            f"a matrix holds numbers that are not finite, which {name} cannot express; check the checkpoint, or load "
            "it without quantization"
        )
    return quantise_mxfp4(weight) if name == "mxfp4" else quantise_nvfp4(weight)
