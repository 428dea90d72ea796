"""Tolerance for a right implementation against the float64 reference.

    |got - want| <= (ROUNDINGS * eps(storage type) + (TERMS + 2 sqrt(n)) * eps(fp32)) * (|want| + rms of want's row)

The first part is for rounding to the type the result is stored in, and on the way there (attention weights, the
normalised row) a few times more; fp32 results have none of it. The second part is for fp32 arithmetic: rounding
errors of a sum of n terms grow like a random walk. The rms of the row is there because a sum that happens to
be near zero is not computed any more exactly than its neighbours.

Values that get quantised on the way may fall to the other side where they lie on the border between two codes;
`border_slack` is what that can move a result by. It is zero nearly everywhere.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels.check.case import Case
from kernels.operations import OPERATIONS

ROUNDINGS = 4
TERMS = 8
BORDER = 1e-4
"""Two codes are equally near if the value is this close (in steps) to the middle between them."""
FP8_MAX = 448.0


def allowed(case: Case, want: Tensor, stored: torch.dtype) -> Tensor:
    """The largest difference for every element; want is the reference's result in float64."""
    finite = torch.where(want.isfinite(), want, 0.0)
    magnitude = finite.abs()
    if want.dim() and want.numel():
        magnitude = magnitude + finite.square().mean(-1, keepdim=True).sqrt()
    terms = OPERATIONS[case.op].terms
    longest = 1 if terms is None else terms(*case.args, **case.kwargs)
    relative = (TERMS + 2 * math.sqrt(longest)) * torch.finfo(torch.float32).eps
    if stored != torch.float32:
        relative += ROUNDINGS * torch.finfo(stored).eps
    return relative * magnitude + border_slack(case)


def border_slack(case: Case) -> Tensor | float:
    """[T, N] for the products that quantise their input on the fly, else 0."""
    if case.op not in ("int8_linear", "fp8_linear"):
        return 0.0
    x, qweight, scale = (arg.double() for arg in case.args[:3])
    given = case.args[3] if case.op == "fp8_linear" and len(case.args) > 3 else None
    largest = 127.0 if case.op == "int8_linear" else FP8_MAX
    x_scale = x.abs().amax(-1, keepdim=True) / largest if given is None else given.double()
    step = (x / x_scale).nan_to_num()
    step, on_border = borders(step, case.args[1].dtype)
    moved = torch.where(on_border, step, 0.0)
    return (moved @ qweight.abs().T) * x_scale.nan_to_num() * scale


def borders(quotient: Tensor, code: torch.dtype) -> tuple[Tensor, Tensor]:
    """(distance between the codes around each value, whether the value is in the middle between two)."""
    if code == torch.int8:
        step = torch.ones_like(quotient)
    else:  # e4m3: 3 bits of mantissa, subnormal below 2^-6
        exponent = quotient.abs().clamp_min(2.0**-6).log2().floor()
        step = torch.exp2(exponent - 3)
    return step, ((quotient / step - 0.5).remainder(1.0) - 0.5).abs() > 0.5 - BORDER
