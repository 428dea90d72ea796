"""Copies of the CUDA sources that a test may change, and kernels written for a test."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import torch
from torch import Tensor

from kernels.cuda import compile as nvrtc
from kernels.cuda.shim import build as shim


def copy_sources(folder: Path) -> Path:
    """All `.cu` and `.cuh` files, and the headers of the shim."""
    source = nvrtc.source_folder()
    (folder / "shim").mkdir()
    for path in (*source.glob("*.cu*"), *source.glob("shim/*.h")):
        shutil.copy(path, folder / path.relative_to(source))
    return folder


def run(
    folder: Path,
    body: str,
    *arguments: Tensor,
    grid: int = 1,
    block: int = 32,
    shared_bytes: int = 0,
    backwards: bool = False,
    header: str = "common.cuh",
) -> None:
    """A kernel `test(float* a, float* b, ...)` with this body, on the host shim."""
    parameters = ", ".join(f"float* {name}" for name, _ in zip("abcd", arguments, strict=False))
    text = f'#include "{header}"\nextern "C" __global__ void test({parameters}) {{\n{body}\n}}\n'
    name = f"test_{abs(hash(text))}.cu"
    (folder / name).write_text(text)
    kernel = shim.load(name, "test", (), folder)
    pointers = [ctypes.c_void_p(argument.data_ptr()) for argument in arguments]
    kernel.launch((grid, 1, 1), (block, 1, 1), shared_bytes, pointers, backwards=backwards)


def floats(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)
