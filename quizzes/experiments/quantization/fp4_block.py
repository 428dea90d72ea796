"""MXFP4 and NVFP4: one block of weights, its scale, and what is left of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Block:
    """The values are the first of a block; the rest of it is zeros."""

    mx_scale: float
    """A power of two (E8M0)."""
    mx_restored: list[float]
    nv_scale: float
    """E4M3 block scale times the matrix's fp32 number."""
    nv_restored: list[float]
    mx_error: float
    """Root of the mean squared error over the values."""
    nv_error: float
    mx_bits: Annotated[float, "bits"]
    """Per weight, scales included."""
    nv_bits: Annotated[float, "bits"]


@experiment("E31", "E34")
def fp4_block(
    ctx: Context,
    *,
    values: Annotated[
        list[Annotated[float, Field(ge=-1000, le=1000)]], Field(min_length=1, max_length=16)
    ] = (
        0.7,
        -1.9,
        3.3,
        5.0,
    ),
) -> Block:
    """Round a block with the engine's MXFP4 and NVFP4 (`engine/quant/fp4.py`)."""
    import torch

    from engine.quant.fp4 import FP4_BLOCKS, from_e8m0, quantise_mxfp4, quantise_nvfp4

    n = len(values)
    row = torch.zeros(1, 32)
    row[0, :n] = torch.tensor(values)
    mx, nv = quantise_mxfp4(row), quantise_nvfp4(row)
    found = [weight.restore()[0, :n] for weight in (mx, nv)]
    errors = [float((part - row[0, :n]).square().mean().sqrt()) for part in found]
    return Block(
        mx_scale=float(from_e8m0(mx.block_scale)[0, 0]),
        mx_restored=found[0].tolist(),
        nv_scale=float(nv.block_scale[0, 0].float() * nv.tensor_scale),
        nv_restored=found[1].tolist(),
        mx_error=errors[0],
        nv_error=errors[1],
        mx_bits=4 + 8 / FP4_BLOCKS["mxfp4"],
        nv_bits=4 + 8 / FP4_BLOCKS["nvfp4"],
    )
