"""Start a CUDA kernel: the grid, the block and the shared memory are arguments, as between <<< and >>>.

    RMS_NORM = kernel("norm.cu", "rms_norm", "pppif", SCALAR=torch.bfloat16)
    launch(RMS_NORM, x, weight, out, hidden, eps, grid=(rows,), block=(256,), device=x.device)

On a GPU the kernel is compiled for the device's architecture and queued on torch's current stream, so it can be
captured in a CUDA graph. With CPU tensors the same source runs on the host shim, and is done when `launch` returns.
With meta tensors nothing is launched: the compile report only wants to know what would be.

cuda.core passes a Python int as a pointer and a Python float as a double. What a kernel takes is therefore spelled out
by `Kernel.parameters`, and checked against the compiled kernel when it is loaded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernels.cuda import compile as nvrtc
from kernels.cuda.compile import Defines
from kernels.cuda.shim import build as shim

if TYPE_CHECKING:
    from kernels.compile_report import KernelReport

_CTYPES: dict[str, Any] = {
    "p": ctypes.c_void_p,
    "i": ctypes.c_int32,
    "l": ctypes.c_int64,
    "f": ctypes.c_float,
}

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
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
QUANTISED = (torch.float8_e4m3fn, torch.int8)
WIDEST_ACCESS = 16
"""Bytes that a thread can move with one instruction: a 128-bit load or store."""


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


@cache
def kernel(source: str, name: str, parameters: str, **defines: torch.dtype | int) -> Kernel:
    """Return the kernel with these defines; a dtype is given as its storage type."""
    texts = {
        key: DTYPES[value] if isinstance(value, torch.dtype) else str(int(value))
        for key, value in defines.items()
    }
    return Kernel(source, name, parameters, tuple(texts.items()))


def quantised_defines(cached: torch.dtype) -> dict[str, int]:
    """Return the defines that say how a cache of this type is quantised."""
    return {"CACHE_F8E4M3": cached == torch.float8_e4m3fn, "CACHE_I8": cached == torch.int8}


def vector_width(length: int, *tensors: Tensor) -> int:
    """The most elements, a power of two, that one access of every tensor can hold along its last dimension.

    They are at most 16 bytes of the widest type, divide `length`, and no row of any tensor starts between them.
    """
    width = WIDEST_ACCESS // max(tensor.element_size() for tensor in tensors)
    while width > 1 and not (length % width == 0 and all(_aligned(tensor, width) for tensor in tensors)):
        width //= 2
    return width


def _aligned(tensor: Tensor, width: int) -> bool:
    strides = [stride for stride, size in zip(tensor.stride()[:-1], tensor.shape, strict=False) if size > 1]
    return tensor.data_ptr() % (width * tensor.element_size()) == 0 and not any(
        stride % width for stride in strides
    )


@dataclass(frozen=True, slots=True)
class Launch:
    """One call of `launch` without its arguments."""

    kernel: Kernel
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int

    @property
    def name(self) -> str:
        return self.kernel.name


def problem() -> str | None:
    """Reason why CUDA kernels cannot run in this process, neither on a GPU nor on the shim; None if they can."""
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
    grid, block = (*grid, 1, 1)[:3], (*block, 1, 1)[:3]
    if _recorded is not None:
        _recorded.append(Launch(kernel, grid, block, shared_bytes))
        return
    if not prod(grid):
        return
    values = [_value(letter, value) for letter, value in zip(kernel.parameters, arguments, strict=True)]
    if device.type == "cuda":
        _launch_on_gpu(kernel, grid, block, shared_bytes, values, device)
        return
    loaded = shim.load(kernel.source, kernel.name, kernel.defines, nvrtc.source_folder())
    if loaded.signature != kernel.parameters:
        raise TypeError(f"{kernel.name} takes {loaded.signature!r}, declared are {kernel.parameters!r}")
    typed = [_CTYPES[letter](value) for letter, value in zip(kernel.parameters, values, strict=True)]
    loaded.launch(grid, block, shared_bytes, typed)


def _value(letter: str, argument: Tensor | int | float | None) -> int | float:
    if letter == "p":
        return 0 if argument is None else argument.data_ptr()  # type: ignore[union-attr]
    return argument  # type: ignore[return-value]


# --- for the compile report --------------------------------------------------------------------------------------

_recorded: list[Launch] | None = None


def launches(call: Callable[[], object]) -> list[Launch]:
    """Return what `call` would launch, in order, without running it."""
    global _recorded
    recorded: list[Launch] = []
    _recorded = recorded
    try:
        call()
    finally:
        _recorded = None
    return recorded


def compile_launch(launch: Launch, arch: int, label: str) -> KernelReport:
    """Compile the kernel of one recorded launch for sm_<arch>."""
    from kernels.compile_report import KernelReport, parse_ptxas

    kernel = launch.kernel
    result = nvrtc.compiled(kernel.source, kernel.defines, arch, nvrtc.source_folder())
    usage = asdict(parse_ptxas(result.log)[kernel.name])
    return KernelReport(
        name=f"{kernel.name}[{label}]",
        file=f"cuda/{kernel.source}",
        arch=arch,
        shared_bytes=usage.pop("static_shared_bytes") + launch.shared_bytes,
        threads=prod(launch.block),
        ptx=result.ptx,
        **usage,
    )


# --- on a GPU --------------------------------------------------------------------------------------------------


def _launch_on_gpu(
    kernel: Kernel,
    grid: tuple[int, ...],
    block: tuple[int, ...],
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
        arguments = [argument(*pair) for pair in zip(kernel.parameters, values, strict=True)]
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
    from cuda.bindings import driver
    from cuda.core import ObjectCode

    major, minor = torch.cuda.get_device_capability(index)
    result = nvrtc.compiled(kernel.source, kernel.defines, 10 * major + minor, nvrtc.source_folder())
    loaded = ObjectCode.from_cubin(result.cubin, name=kernel.source).get_kernel(kernel.name)
    sizes = [info.size for info in loaded.arguments_info]
    if sizes != [ctypes.sizeof(_CTYPES[letter]) for letter in kernel.parameters]:
        raise TypeError(
            f"{kernel.name} takes parameters of {sizes} bytes, declared are {kernel.parameters!r}"
        )
    needed = shared_bytes + loaded.attributes.shared_size_bytes  # dynamic and static
    if needed > SHARED_WITHOUT_OPT_IN:
        properties: Any = torch.cuda.get_device_properties(index)  # torch's stub lacks the attribute
        available = properties.shared_memory_per_block_optin
        check_shared_memory(kernel.name, needed, available, torch.cuda.get_device_name(index))
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        device = driver.CUdevice(index)
        (error,) = driver.cuKernelSetAttribute(attribute, shared_bytes, loaded.handle, device)
        if int(error):
            what = f"{shared_bytes} bytes of shared memory ({error})"
            raise LaunchError(f"{kernel.name}: the driver does not allow {what}")
    return loaded


def check_shared_memory(name: str, needed: int, available: int, device: str) -> None:
    """Raise LaunchError if a block of `name` needs more shared memory than the device has for one."""
    if needed > available:
        raise LaunchError(
            f"{name} needs {needed} bytes of shared memory for a block, {device} has {available}"
        )
