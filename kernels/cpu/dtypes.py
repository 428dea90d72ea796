"""Storage types by number, as `dtype.h` has them."""

from __future__ import annotations

import torch
from torch import Tensor

FLOATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
CACHES = {**FLOATS, torch.float8_e4m3fn: 3, torch.int8: 4}


def unlike(*tensors: Tensor) -> str | None:
    """Reason why these tensors cannot go through one kernel: they must have one of three types, and the same."""
    kinds = {tensor.dtype for tensor in tensors}
    if len(kinds) > 1 or not kinds <= FLOATS.keys():
        names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        return f"dtypes {names}; supported: float32, float16 or bfloat16, the same for all"
    return None
