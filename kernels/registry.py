"""Choose the implementation of an operation: the fastest that supports the inputs, or the one requested by name.

    ops.rms_norm(x, ...) --> dispatch("rms_norm", (x.device, x.dtype, ...)) --> kernels.cpu.norm.rms_norm

Every implementation is a Python callable with the signature of its function in `ops.py`. `unavailable`
returns why a backend cannot run at all, `unsupported` why an implementation does not support certain inputs. Both are
called once for each kind of input; after that a call costs one dictionary look-up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch

from common.dotted_path import load_object

BACKENDS = ("reference", "cpu", "triton", "cuda")
PREFERENCE = {"cpu": ("cpu", "reference"), "cuda": ("triton", "cuda", "reference")}
"""Backends by device type in order of preference. On another device a backend runs only when requested by name.

Triton goes before CUDA C++, which supports only decode batches or a few tokens: otherwise the batch would decide which
of the two computes a row, and the row's bits would depend on the batch."""


class UnsupportedInput(ValueError):
    """No implementation, or not the requested one, supports these inputs; the message names those that do."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """One operation in one backend."""

    op: str
    backend: str
    entry: str
    """`module:function`, imported when first needed. The module may also hold `unsupported_<function>`, which
    takes the same arguments and returns why they are not supported, or None."""
    sources: tuple[str, ...]
    """Files to read, the kernel first, relative to this folder."""

    def load(self) -> Callable[..., Any]:
        return load_object(self.entry)

    def unsupported(self, *args: Any, **kwargs: Any) -> str | None:
        """Return why these inputs are not supported; None if they are."""
        module, function = self.entry.split(":")
        check = getattr(import_module(module), f"unsupported_{function}", None)
        return check(*args, **kwargs) if check else None


def _reference(op: str, file: str, function: str | None = None) -> Implementation:
    return Implementation(
        op, "reference", f"kernels.reference.{file}:{function or op}", (f"reference/{file}.py",)
    )


def _cpu(op: str, module: str, source: str) -> Implementation:
    return Implementation(op, "cpu", f"kernels.cpu.{module}:{op}", (f"cpu/{source}.cpp", f"cpu/{module}.py"))


def _triton(op: str, *modules: str) -> Implementation:
    files = tuple(f"triton_ops/{module}.py" for module in modules)
    return Implementation(op, "triton", f"kernels.triton_ops.{modules[0]}:{op}", files)


def _cuda(op: str, module: str, *sources: str) -> Implementation:
    files = tuple(f"cuda/{source}.cu" for source in sources)
    return Implementation(op, "cuda", f"kernels.cuda.{module}:{op}", (*files, f"cuda/{module}.py"))


IMPLEMENTATIONS: tuple[Implementation, ...] = (
    _reference("embedding", "embedding"),
    _cpu("embedding", "embedding", "embedding"),
    _reference("linear", "linear"),
    _cpu("linear", "linear", "gemm"),
    _reference("rms_norm", "norm"),
    _cpu("rms_norm", "norm", "norm"),
    _triton("rms_norm", "norm"),
    _cuda("rms_norm", "norm", "norm"),
    _reference("fused_add_rms_norm", "norm"),
    _cpu("fused_add_rms_norm", "norm", "norm"),
    _triton("fused_add_rms_norm", "norm"),
    _cuda("fused_add_rms_norm", "norm", "norm"),
    _reference("rotary_embedding", "rotary"),
    _cpu("rotary_embedding", "rotary", "rotary"),
    _triton("rotary_embedding", "rotary"),
    _reference("silu_and_mul", "activation"),
    _cpu("silu_and_mul", "activation", "activation"),
    _triton("silu_and_mul", "activation"),
    _reference("reshape_and_cache", "kv_write"),
    _cpu("reshape_and_cache", "kv_write", "kv_write"),
    _triton("reshape_and_cache", "kv_write", "quantise"),
    _cuda("reshape_and_cache", "kv_write", "kv_write"),
    _reference("paged_attention", "attention"),
    _cpu("paged_attention", "attention", "attention"),
    _triton("paged_attention", "attention", "unified_attention", "split_kv_decode", "paged_tile"),
    _cuda("paged_attention", "attention", "paged_decode", "paged_decode_split"),
    _reference("copy_blocks", "copy"),
    _triton("copy_blocks", "copy"),
    _cuda("copy_blocks", "copy", "copy"),
    _reference("int4_linear", "int4"),
    _cpu("int4_linear", "int4", "int4"),
    _triton("int4_linear", "int4", "split_k"),
    _cuda("int4_linear", "int4", "int4_gemv"),
    _reference("int8_linear", "int8"),
    _cpu("int8_linear", "int8", "int8"),
    _triton("int8_linear", "int8", "w8a8", "split_k"),
    _reference("fp8_linear", "fp8"),
    _triton("fp8_linear", "fp8", "w8a8", "split_k"),
    _reference("lora_shrink", "lora"),
    _cpu("lora_shrink", "lora", "lora"),
    _triton("lora_shrink", "lora"),
    _reference("lora_expand", "lora"),
    _cpu("lora_expand", "lora", "lora"),
    _triton("lora_expand", "lora"),
    _reference("sample", "sampling"),
    _cpu("sample", "sampling", "sampling"),
    _triton("sample", "sampling"),
    _cuda("sample", "sampling", "sampling"),
    _reference("apply_penalties", "penalties"),
    _triton("apply_penalties", "penalties"),
    _reference("gather_logprobs", "logprobs"),
    _triton("gather_logprobs", "logprobs"),
    _reference("apply_token_bitmask", "bitmask"),
    _cpu("apply_token_bitmask", "sampling", "sampling"),
    _triton("apply_token_bitmask", "bitmask"),
    _reference("grouped_linear", "moe"),
    _triton("grouped_linear", "moe"),
)
_BY_NAME = {(each.op, each.backend): each for each in IMPLEMENTATIONS}
OPS = tuple(dict.fromkeys(each.op for each in IMPLEMENTATIONS))

_chosen: dict[tuple[str, Hashable], Callable[..., Any]] = {}
_forced: dict[str, str] = {}


def implementations(op: str) -> list[Implementation]:
    """Return all implementations of one operation, the reference first."""
    return [each for each in IMPLEMENTATIONS if each.op == op]


def get(op: str, backend: str) -> Implementation:
    """Return one implementation; raises UnsupportedInput with the names that exist."""
    try:
        return _BY_NAME[op, backend]
    except KeyError:
        if op not in OPS:
            raise UnsupportedInput(f"unknown operation {op!r}; there are: {', '.join(OPS)}") from None
        known = ", ".join(each.backend for each in implementations(op))
        raise UnsupportedInput(f"{op} has no implementation {backend!r}; implementations: {known}") from None


@cache
def unavailable(backend: str) -> str | None:
    """Return in one line why this backend cannot run in this process; None if it can."""
    if backend == "reference":
        return None
    package = {"cpu": "kernels.cpu", "triton": "kernels.triton_ops", "cuda": "kernels.cuda"}[backend]
    return import_module(package).unavailable()


def force(op: str, backend: str | None) -> None:
    """Use this backend for `op` ("*": for every op that has it) from now on; None returns to the automatic choice."""
    if op != "*":
        get(op, backend or "reference")
    elif backend is not None and backend not in BACKENDS:
        raise UnsupportedInput(f"unknown backend {backend!r}; there are: {', '.join(BACKENDS)}")
    _read_environment()
    if backend is None:
        _forced.pop(op, None)
    else:
        _forced[op] = backend
    _chosen.clear()


@cache
def _read_environment() -> None:
    """PREP_KERNELS="reference" or "paged_attention=triton,sample=reference", read once."""
    for item in filter(None, os.environ.get("PREP_KERNELS", "").replace(" ", "").split(",")):
        op, _, backend = item.rpartition("=")
        op = op or "*"
        if op == "*" and backend not in BACKENDS:
            raise UnsupportedInput(
                f"PREP_KERNELS={item}: unknown backend; there are: {', '.join(BACKENDS)}. "
                "Example: PREP_KERNELS=reference, or PREP_KERNELS=paged_attention=triton,sample=reference"
            )
        if op != "*":
            get(op, backend)
        _forced[op] = backend


def dispatch(op: str, key: Hashable, *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """Return the callable for `op` on these inputs. `key` is the kind of input, the device type first."""
    try:
        return _chosen[op, key]
    except KeyError:
        chosen = _choose(op, key[0], args, kwargs)  # type: ignore[index]
        _chosen[op, key] = chosen
        return chosen


def preferred(op: str, device_type: str) -> str:
    """Return the preferred backend of an operation on a device."""
    return next(_candidates(op, device_type)).backend


def _choose(op: str, device_type: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
    _read_environment()
    if op in _forced:
        return _load_forced(get(op, _forced[op]), args, kwargs)
    for candidate in _candidates(op, device_type):
        if not candidate.unsupported(*args, **kwargs):
            return candidate.load()
    raise UnsupportedInput(f"{op}: no implementation supports these inputs on {device_type}")


def _candidates(op: str, device_type: str) -> Iterator[Implementation]:
    """Yield the implementations that can run here, the best first; a backend forced with "*" goes first."""
    _read_environment()
    order = PREFERENCE.get(device_type, ("reference",))
    asked = [_forced[name] for name in (op, "*") if name in _forced]
    for backend in dict.fromkeys((*asked, *order)):
        candidate = _BY_NAME.get((op, backend))
        if candidate and not unavailable(backend):
            yield candidate


def _load_forced(
    candidate: Implementation, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    reason = unavailable(candidate.backend) or candidate.unsupported(*args, **kwargs)
    if reason is None:
        return candidate.load()
    takers = [
        each.backend
        for each in implementations(candidate.op)
        if not unavailable(each.backend) and not each.unsupported(*args, **kwargs)
    ]
    raise UnsupportedInput(
        f"{candidate.op} with {candidate.backend}: {reason}. These inputs are supported by: {', '.join(takers)}"
    )


def table() -> Iterator[tuple[str, dict[str, Implementation]]]:
    """Every operation with its implementations by backend, in the order of `ops.py`."""
    for op in OPS:
        yield op, {each.backend: each for each in implementations(op)}


def kind(*tensors: torch.Tensor | None) -> tuple[Hashable, ...]:
    """Return a dispatch key: device type of the first tensor, then the dtype of each."""
    assert tensors[0] is not None
    return (tensors[0].device.type, *(None if each is None else each.dtype for each in tensors))
