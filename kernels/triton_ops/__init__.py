"""Triton: kernels in Python, one algorithm per file."""

from __future__ import annotations

import os
from importlib.util import find_spec

from kernels import INSTALL_COMPILERS

# The default changes from Triton 3.9 to 3.10; multiply-adds are wanted fused, as the other forms have them.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


def unavailable() -> str | None:
    """Reason why the Triton kernels cannot be used in this process; None if they can."""
    import torch

    if find_spec("triton") is None:
        return f"triton is not installed; {INSTALL_COMPILERS}"
    if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1":
        return None
    return "no CUDA device; TRITON_INTERPRET=1 runs them on the CPU, slowly"
