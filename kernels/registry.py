"""Choose the implementation of an operation: the fastest that supports the inputs, or the one requested by name.

    ops.rms_norm(x, ...) --> call("rms_norm", (x.device, x.dtype, ...), x, ...) --> kernels.cpu.norm.rms_norm

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

from kernels.operation import BACKENDS as BACKENDS
from kernels.operation import MissingPart
from kernels.operations import OPERATIONS
from prep_common.dotted_path import load_object

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


FOLDERS = {"reference": "reference", "cpu": "cpu", "triton": "triton_ops", "cuda": "cuda"}


def _implementation(op: str, backend: str, files: list[str]) -> Implementation:
    folder = FOLDERS[backend]
    if not (modules := [file.removesuffix(".py") for file in files if file.endswith(".py")]):
        raise MissingPart(f"{op} has no .py among its files for {backend} ({' '.join(files)})")
    sources = tuple(f"{folder}/{file}" for file in files)
    return Implementation(op, backend, f"kernels.{folder}.{modules[0]}:{op}", sources)


BY_NAME = {
    (op, backend): _implementation(op, backend, files.split())
    for op, entry in OPERATIONS.items()
    for backend, files in entry.forms.items()
}
IMPLEMENTATIONS = tuple(BY_NAME.values())
OPS = tuple(OPERATIONS)

_chosen: dict[tuple[str, Hashable], Callable[..., Any]] = {}
_forced: dict[str, str] = {}


def implementations(op: str) -> list[Implementation]:
    """Return all implementations of one operation, the reference first."""
    return [implementation for implementation in IMPLEMENTATIONS if implementation.op == op]


def get(op: str, backend: str) -> Implementation:
    """Return one implementation; raises UnsupportedInput with the names that exist."""
    try:
        return BY_NAME[op, backend]
    except KeyError:
        if op not in OPS:
            raise UnsupportedInput(f"unknown operation {op!r}; there are: {', '.join(OPS)}") from None
        known = ", ".join(implementation.backend for implementation in implementations(op))
        raise UnsupportedInput(f"{op} has no implementation {backend!r}; implementations: {known}") from None


@cache
def unavailable(backend: str) -> str | None:
    """Return in one line why this backend cannot run in this process; None if it can.

    Raises UnsupportedInput if PREP_KERNELS is wrong, before it waits for a compiler.
    """
    _read_environment()
    if backend == "reference":
        return None
    return import_module(f"kernels.{FOLDERS[backend]}").unavailable()


def environment_of_ranks() -> dict[str, str]:
    """Return variables for processes that compute together on CPUs: without C++ if this process computes without it.

    Otherwise the compile could end between the starts of two ranks.
    """
    return {"PREP_KERNELS_COMPILER": ""} if unavailable("cpu") else {}


def force(op: str, backend: str | None) -> None:
    """Use this backend for `op` ("*": for every op that has it) from now on; None returns to the automatic choice."""
    _check(op, backend or "reference")
    _read_environment()
    if backend is None:
        _forced.pop(op, None)
    else:
        _forced[op] = backend
    _chosen.clear()


def requested(op: str) -> str | None:
    """Return the form of `op` that PREP_KERNELS or `force` requests; None if neither does."""
    _read_environment()
    backend = _forced.get(op, _forced.get("*"))
    return backend if (op, backend) in BY_NAME else None


def check_requested() -> None:
    """Raise UnsupportedInput if a form that is requested cannot run in this process."""
    _read_environment()
    for op, backend in _forced.items():
        if reason := unavailable(backend):
            what = backend if op == "*" else f"{op}={backend}"
            raise UnsupportedInput(f"PREP_KERNELS={what} cannot run here: {reason}")


@cache
def _read_environment() -> None:
    """PREP_KERNELS="reference" or "paged_attention=triton,sample=reference", read once."""
    forced: dict[str, str] = {}
    for item in filter(None, os.environ.get("PREP_KERNELS", "").replace(" ", "").split(",")):
        op, _, backend = item.rpartition("=")
        try:
            _check(op or "*", backend)
        except UnsupportedInput as error:
            raise UnsupportedInput(
                f"PREP_KERNELS={item}: {error}. "
                "Example: PREP_KERNELS=reference, or PREP_KERNELS=paged_attention=triton,sample=reference"
            ) from None
        forced[op or "*"] = backend
    _forced.update(forced)


def _check(op: str, backend: str) -> None:
    """Raise UnsupportedInput unless there is such an implementation; op "*" stands for every operation."""
    if op != "*":
        get(op, backend)
    elif backend not in BACKENDS:
        raise UnsupportedInput(f"unknown backend {backend!r}; there are: {', '.join(BACKENDS)}")


def fuses(op: str) -> bool:
    """Whether to compute a fused operation in one pass: not while one of its parts is asked for in some form."""
    _read_environment()
    return _forced.keys().isdisjoint(OPERATIONS[op].fuses)


def call(op: str, key: Hashable, *args: Any, **kwargs: Any) -> Any:
    """Call the implementation that `dispatch` returns."""
    try:
        run = _chosen[op, key]
    except KeyError:
        run = dispatch(op, key, *args, **kwargs)
    return run(*args, **kwargs)


def dispatch(op: str, key: Hashable, *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """Return the callable for `op` on these inputs. `key` is the kind of input, the device type first."""
    if (op, key) not in _chosen:
        _chosen[op, key] = _choose(op, key[0], args, kwargs)  # type: ignore[index]
    return _chosen[op, key]


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
        candidate = BY_NAME.get((op, backend))
        if candidate and not unavailable(backend):
            yield candidate


def _load_forced(
    candidate: Implementation, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    reason = unavailable(candidate.backend) or candidate.unsupported(*args, **kwargs)
    if reason is None:
        return candidate.load()
    takers = [
        implementation.backend
        for implementation in implementations(candidate.op)
        if not unavailable(implementation.backend) and not implementation.unsupported(*args, **kwargs)
    ]
    raise UnsupportedInput(
        f"{candidate.op} with {candidate.backend}: {reason}. These inputs are supported by: {', '.join(takers)}"
    )


def table() -> Iterator[tuple[str, dict[str, Implementation]]]:
    """Every operation with its implementations by backend, in the order of `ops.py`."""
    for op in OPS:
        yield op, {implementation.backend: implementation for implementation in implementations(op)}


def kind(*tensors: torch.Tensor | None) -> tuple[Hashable, ...]:
    """Return a dispatch key: device type of the first tensor, then the dtype of each."""
    assert tensors[0] is not None
    return (tensors[0].device.type, *(None if tensor is None else tensor.dtype for tensor in tensors))
