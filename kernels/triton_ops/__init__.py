"""Triton: kernels in Python, one algorithm per file."""

from __future__ import annotations

import os
from importlib.util import find_spec


def unavailable() -> str | None:
    """Why the Triton kernels cannot be used in this process; None if they can."""
    import torch

    if find_spec("triton") is None:
        return "triton is not installed: pip install triton (Linux)"
    if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1":
        return None
    return "no CUDA device; TRITON_INTERPRET=1 runs them on the CPU, slowly"
