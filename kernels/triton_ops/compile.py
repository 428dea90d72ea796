"""Compile the Triton kernels for a GPU that is not there: Python -> PTX -> registers, shared memory, spills.

The calls of `compile_cases` are made with the launch replaced by a recorder, and what would have been launched is
compiled. So they must not look at values of tensors. Registers and spills are from the log of the ptxas in Triton's
wheel, as Triton calls it.

Under TRITON_INTERPRET=1 the kernels are Python functions that cannot be compiled: use a process without it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.compile_report import WARP_SIZE, KernelReport, parse_ptxas

_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")

_TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
}


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel as it would be launched: what its code depends on."""

    kernel: JITFunction[Any]
    signature: dict[str, str]
    constants: dict[str, Any]
    divisible: tuple[str, ...]
    """Pointers and integers known to be multiples of 16, which allows wide loads."""
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return self.kernel.__name__


def launches(call: Callable[[], object]) -> list[Launch]:
    """Return the launches of `call` in order, without running them."""
    recorded: list[Launch] = []

    def record(kernel: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
        recorded.append(_specialise(kernel, args, kwargs, options))

    with patch.object(JITFunction, "run", record):
        call()
    return recorded


def _specialise(
    kernel: JITFunction[Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]
) -> Launch:
    """As Triton's launcher does: None and the integer 1 become constants, multiples of 16 are marked."""
    values = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
    for parameter in kernel.params:
        if parameter.has_default:
            values.setdefault(parameter.name, parameter.default)
    signature, constants, divisible = {}, {}, []
    for parameter in kernel.params:
        name, value = parameter.name, values[parameter.name]
        special = not parameter.do_not_specialize
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if parameter.is_constexpr or value is None or (is_integer and value == 1 and special):
            signature[name], constants[name] = "constexpr", value
            continue
        signature[name] = _type_of(value)
        if special and (isinstance(value, torch.Tensor) or (is_integer and value % 16 == 0)):
            divisible.append(name)
    return Launch(kernel, signature, constants, tuple(divisible), options)


def _type_of(value: object) -> str:
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{_TYPES[value.base.dtype]}{list(value.block_shape)}>"
    if isinstance(value, torch.Tensor):
        return "*" + _TYPES[value.dtype]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    if isinstance(value, float):
        return "fp32"
    raise TypeError(f"no Triton type for a kernel argument of type {type(value).__name__}")


def compile_launch(launch: Launch, arch: int, label: str) -> KernelReport:
    """Compile one recorded launch for sm_<arch> and parse the log of ptxas."""
    if not isinstance(launch.kernel, JITFunction):
        raise RuntimeError(
            "the kernels are interpreted here: compile in a process without TRITON_INTERPRET=1"
        )
    names = launch.kernel.arg_names
    source = ASTSource(
        launch.kernel,
        launch.signature,
        constexprs=launch.constants,
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in launch.divisible},
    )
    log = io.StringIO()
    with knobs.compilation.scope(), knobs.nvidia.scope(), redirect_stdout(log):
        knobs.compilation.always_compile = True  # a kernel from the cache has no log
        knobs.nvidia.dump_ptxas_log = True
        compiled = triton.compile(source, target=GPUTarget("cuda", arch, WARP_SIZE), options=launch.options)
    (used,) = parse_ptxas(log.getvalue()).values()
    return KernelReport(
        name=f"{launch.name}[{label}]",
        file=launch.kernel.__module__.removeprefix("kernels.").replace(".", "/") + ".py",
        arch=arch,
        registers=used.registers,
        shared_bytes=used.static_shared_bytes + compiled.metadata.shared,
        spill_store_bytes=used.spill_store_bytes,
        spill_load_bytes=used.spill_load_bytes,
        threads=compiled.metadata.num_warps * WARP_SIZE,
        ptx=compiled.asm["ptx"],
    )
