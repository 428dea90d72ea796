"""In a guest: Triton's interpreter, which runs a kernel's programs one after the other with numpy. Import it first."""

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl

__all__ = ["tl", "torch", "triton"]
