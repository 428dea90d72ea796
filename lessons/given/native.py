"""In a guest: call the functions of a compiled lab, `kernel.so`, with numpy arrays.

Every array is copied between two guard zones, at an address that is a multiple of 64. A function that writes outside
of its arrays is found out.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

GUARD = 256
_FILLER = 0xA5
_TYPES: dict[str, Any] = {"i": ctypes.c_int32, "l": ctypes.c_int64, "f": ctypes.c_float}
_TRIPLE = ctypes.c_uint * 3


def run(folder: str, name: str, letters: str, args: list[Any], outputs: list[int], shape: Any = None) -> Any:
    """Call `name` once; return the arrays at the places `outputs`, or a sentence about what went wrong.

    letters: one for each argument: p array, i int32, l int64, f float. shape: of a CUDA kernel its grid, block, bytes
    of shared memory, and whether the threads of a block run from the last to the first; None for a C function.
    """
    buffers = {at: _guarded(value) for at, value in enumerate(args) if letters[at] == "p"}
    start = _bound(folder, name, letters, [buffers.get(at, value) for at, value in enumerate(args)], shape)
    if (error := start()) is not None:
        return error
    for at, buffer in buffers.items():
        size = args[at].nbytes
        if (
            not (buffer[:GUARD] == _FILLER).all()
            or not (buffer[GUARD + size : 2 * GUARD + size] == _FILLER).all()
        ):
            return f"{name} writes outside of argument {at + 1}"
    return [_content(buffers[at], args[at]) for at in outputs]


class Bench:
    """Arguments that stay in this process, to call a function many times."""

    def __init__(self, folder: str, name: str, letters: str, args: list[Any], shape: Any = None) -> None:
        self._args = [_guarded(value) if letters[at] == "p" else value for at, value in enumerate(args)]
        self._start = _bound(folder, name, letters, self._args, shape)

    def repeat(self, times: int) -> None:
        for _ in range(times):
            self._start()


def _guarded(array: Any) -> Any:
    """Return the bytes of an array between guard zones."""
    space = np.full(array.nbytes + 2 * GUARD + 64, _FILLER, np.uint8)
    space = space[-space.ctypes.data % 64 :]
    space[GUARD : GUARD + array.nbytes] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    return space


def _content(buffer: Any, like: Any) -> Any:
    return buffer[GUARD : GUARD + like.nbytes].view(like.dtype).reshape(like.shape).copy()


def _bound(folder: str, name: str, letters: str, args: list[Any], shape: Any) -> Any:
    """Return a function without arguments that makes the call and returns an error, or None."""
    library = _library(folder)
    values = [
        ctypes.c_void_p(arg.ctypes.data + GUARD) if letter == "p" else _TYPES[letter](arg)
        for letter, arg in zip(letters, args, strict=True)
    ]
    if shape is None:
        function = library[name]
        function.restype = None
        return lambda: function(*values)
    grid, block, shared_bytes, backwards = shape
    signature = library[f"shim_signature_{name}"]
    signature.restype = ctypes.c_char_p
    if (found := signature().decode()) != letters:
        return lambda: f"{name} takes the parameters {found!r}; the contract has {letters!r}"
    launch = library[f"shim_launch_{name}"]
    launch.restype = ctypes.c_char_p
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    sizes = (_TRIPLE(*grid), _TRIPLE(*block), ctypes.c_size_t(shared_bytes), pointers, int(backwards))

    def start() -> str | None:
        said = launch(*sizes)
        return None if said is None or values is None else said.decode()  # `values` must live as long as this

    return start


@cache
def _library(folder: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(folder) / "kernel.so"))
