"""Start a CUDA kernel: the grid, the block and the shared memory are arguments, as between <<< and >>>.

    RMS_NORM = Kernel("norm.cu", "rms_norm", "pppif", (("SCALAR", "bf16"),))
    launch(RMS_NORM, x, weight, out, hidden, eps, grid=(rows,), block=(256,), device=x.device)

On a GPU the kernel is compiled for the device's architecture and queued on torch's current stream, so it can be
captured in a CUDA graph. With CPU tensors the same source runs on the host shim, and is done when `launch` returns.
With meta tensors nothing is launched: the compile report only wants to know what would be.

cuda.core passes a Python int as a pointer and a Python float as a double. What a kernel takes is therefore spelled out
by `Kernel.parameters`, and checked against the compiled kernel when it is loaded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from kernels.cuda import compile as nvrtc
from kernels.cuda.compile import Defines
from kernels.cuda.shim import build as shim

_CTYPES: dict[str, Any] = {
    "p": ctypes.c_void_p,
    "i": ctypes.c_int32,
    "l": ctypes.c_int64,
    "f": ctypes.c_float,
}
_SIZES = {letter: ctypes.sizeof(each) for letter, each in _CTYPES.items()}

SHARED_WITHOUT_OPT_IN = 48 * 1024
"""A kernel must say beforehand that it will ask for more, and then gets up to what the device has."""

DTYPES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8e4m3",
    torch.int8: "i8",
}
"""Storage types by their names in common.cuh."""


class LaunchError(RuntimeError):
    """A kernel cannot be started on this device; the message says what it needs and what there is."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A `__global__` function together with the defines its file is compiled with."""

    source: str
    name: str
    parameters: str
    """A letter each: p pointer, i int32, l int64, f float."""
    defines: Defines = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """One call of `launch`, recorded."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int


def problem() -> str | None:
    """Why CUDA kernels cannot run in this process, neither on a GPU nor on the shim; None if they can."""
    if torch.cuda.is_available():
        return nvrtc.problem()
    shim_problem = shim.problem()
    return shim_problem and f"no CUDA device, and no way to run them on the CPU: {shim_problem}"


def launch(
    kernel: Kernel,
    *arguments: Tensor | int | float | None,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    device: torch.device,
    shared_bytes: int = 0,
) -> None:
    """Run `kernel` on `grid` blocks of `block` threads. None as an argument is the null pointer."""
    full_grid, full_block = _three(grid), _three(block)
    if _recorded is not None:
        _recorded.append(Launch(kernel, full_grid, full_block, shared_bytes))
        return
    if not prod(full_grid):
        return
    values = [_value(letter, each) for letter, each in zip(kernel.parameters, arguments, strict=True)]
    if device.type == "cuda":
        _launch_on_gpu(kernel, full_grid, full_block, shared_bytes, values, device)
    else:
        _launch_on_shim(kernel, full_grid, full_block, shared_bytes, values)


def _three(shape: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*shape, 1, 1)[:3]
    return x, y, z


def _value(letter: str, argument: Tensor | int | float | None) -> int | float:
    if letter == "p":
        return 0 if argument is None else argument.data_ptr()  # type: ignore[union-attr]
    return argument  # type: ignore[return-value]


# --- without a GPU ---------------------------------------------------------------------------------------------

_recorded: list[Launch] | None = None


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Write down what is launched instead of launching it."""
    global _recorded
    _recorded = []
    try:
        yield _recorded
    finally:
        _recorded = None


def _launch_on_shim(
    kernel: Kernel,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared_bytes: int,
    values: list[int | float],
) -> None:
    loaded = shim.load(kernel.source, kernel.name, kernel.defines, nvrtc.source_folder())
    if loaded.signature != kernel.parameters:
        raise TypeError(f"{kernel.name} takes {loaded.signature!r}, declared are {kernel.parameters!r}")
    arguments = [_CTYPES[letter](value) for letter, value in zip(kernel.parameters, values, strict=True)]
    loaded.launch(grid, block, shared_bytes, arguments)


# --- on a GPU --------------------------------------------------------------------------------------------------


def _launch_on_gpu(
    kernel: Kernel,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared_bytes: int,
    values: list[int | float],
    device: torch.device,
) -> None:
    from cuda.core import Device, LaunchConfig
    from cuda.core import launch as start

    index = torch.cuda.current_device() if device.index is None else device.index
    with torch.cuda.device(index):
        Device(index).set_current()  # a thread that torch has not used yet has no CUDA context
        loaded = _loaded(kernel, index, shared_bytes)
        arguments = [argument(letter, value) for letter, value in zip(kernel.parameters, values, strict=True)]
        config = LaunchConfig(grid=grid, block=block, shmem_size=shared_bytes)
        start(_stream(torch.cuda.current_stream(index).cuda_stream), config, loaded, *arguments)


def argument(letter: str, value: int | float) -> Any:
    """As cuda.core wants it: a Python int is 8 bytes wide, right for pointers and int64; the rest needs its type."""
    return value if letter in "pl" else _CTYPES[letter](value)


@cache
def _stream(handle: int) -> Any:
    """torch's streams live as long as the process, so one wrapper each is enough."""
    from cuda.core import LEGACY_DEFAULT_STREAM, Stream

    return Stream.from_handle(handle) if handle else LEGACY_DEFAULT_STREAM


@cache
def _loaded(kernel: Kernel, index: int, shared_bytes: int) -> Any:
    """The kernel on this device, allowed to use that much shared memory."""
    from cuda.core import ObjectCode

    major, minor = torch.cuda.get_device_capability(index)
    result = nvrtc.compiled(kernel.source, kernel.defines, 10 * major + minor, nvrtc.source_folder())
    loaded = ObjectCode.from_cubin(result.cubin, name=kernel.source).get_kernel(kernel.name)
    sizes = [each.size for each in loaded.arguments_info]
    if sizes != [_SIZES[letter] for letter in kernel.parameters]:
        raise TypeError(
            f"{kernel.name} takes parameters of {sizes} bytes, declared are {kernel.parameters!r}"
        )
    needed = shared_bytes + loaded.attributes.shared_size_bytes  # dynamic and static
    if needed > SHARED_WITHOUT_OPT_IN:
        properties: Any = torch.cuda.get_device_properties(index)  # torch's stub lacks the attribute
        available = properties.shared_memory_per_block_optin
        check_shared_memory(kernel.name, needed, available, torch.cuda.get_device_name(index))
        _allow_shared_memory(loaded, kernel.name, index, shared_bytes)
    return loaded


def _allow_shared_memory(loaded: Any, name: str, index: int, shared_bytes: int) -> None:
    from cuda.bindings import driver

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    (error,) = driver.cuKernelSetAttribute(attribute, shared_bytes, loaded.handle, driver.CUdevice(index))
    if int(error):
        raise LaunchError(
            f"{name}: the driver does not allow {shared_bytes} bytes of shared memory ({error})"
        )


def check_shared_memory(name: str, needed: int, available: int, device: str) -> None:
    """Raise LaunchError if a block of `name` needs more shared memory than the device has for one."""
    if needed > available:
        raise LaunchError(
            f"{name} needs {needed} bytes of shared memory for a block, {device} has {available}"
        )
