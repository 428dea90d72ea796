"""In a guest: call the functions of a compiled lab, `kernel.so`, with numpy arrays.

Every array is copied between two guard zones, at an address that is a multiple of 64. A function that writes outside
of its arrays is found out. `run_within_walls` finds reads too, and memory that stays allocated: `walls.cpp`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

GUARD = 256
_FILLER = 0xA5
_LEAK_ROUNDS, _LEAK_CALLS, _LEAK_BYTES = 20, 8, 64
_TYPES: dict[str, Any] = {"i": ctypes.c_int32, "l": ctypes.c_int64, "f": ctypes.c_float}
_TRIPLE = ctypes.c_uint * 3


def run(folder: str, name: str, letters: str, args: list[Any], outputs: list[int], shape: Any = None) -> Any:
    """Call `name` once; return the arrays at the places `outputs`, or a sentence about what went wrong.

    letters: one for each argument: p array, i int32, l int64, f float. shape: of a CUDA kernel its grid, block, bytes
    of shared memory, and options; None for a C function.
    """
    buffers = {at: _guarded(value) for at, value in enumerate(args) if letters[at] == "p"}
    places = [buffers[at].ctypes.data + GUARD if at in buffers else value for at, value in enumerate(args)]
    if (error := _bound(folder, name, letters, places, shape)()) is not None:
        return error
    for at, buffer in buffers.items():
        size = args[at].nbytes
        if (
            not (buffer[:GUARD] == _FILLER).all()
            or not (buffer[GUARD + size : 2 * GUARD + size] == _FILLER).all()
        ):
            return f"{name} writes outside of argument {at + 1}"
    return [_content(buffers[at], args[at]) for at in outputs]


def run_within_walls(
    folder: str, name: str, letters: str, args: list[Any], outputs: list[int], shape: Any = None
) -> Any:
    """Return what `run` returns, or a sentence if the function reads or writes a number beside its arrays, or leaks."""
    library, found = _library(folder), None
    library.walled.restype, library.allocated_bytes.restype = ctypes.c_void_p, ctypes.c_size_t
    pointers = [at for at, letter in enumerate(letters) if letter == "p"]
    for at_end in (1, 0):
        try:
            places, arrays = list(args), {}
            for at in pointers:
                places[at] = library.walled(ctypes.c_size_t(args[at].nbytes), at_end)
                space = (ctypes.c_ubyte * args[at].nbytes).from_address(places[at])
                arrays[at] = np.frombuffer(space, args[at].dtype).reshape(args[at].shape)
                arrays[at][...] = args[at]
            start = _bound(folder, name, letters, places, shape)
            if (error := start()) is not None:
                return error
            found = [arrays[at].copy() for at in outputs]
            for number, at in enumerate(pointers):
                if touched := library.wall_touched(number):
                    place = "behind the end" if at_end else "before the start"
                    return f"{name} {('', 'reads', 'writes')[touched]} {place} of argument {at + 1}"
            if shape is None and (lost := _leaked(library, start)):
                return f"{name} leaves {lost} bytes allocated in each call"
        finally:
            library.free_walled()
    return found


def _leaked(library: ctypes.CDLL, start: Callable[[], object]) -> int:
    """Return the bytes that stay allocated after each call, at least; 0 if a round of calls leaves fewer than a few.

    The first round does not count: it may fill caches, or free what others left. The allocator counts the freed pieces
    in its caches as allocated, and may fill these for some rounds, up to seven pieces of each size; a leak goes on.
    """
    lost = []
    for _ in range(_LEAK_ROUNDS):
        before = library.allocated_bytes()
        for _ in range(_LEAK_CALLS):
            start()
        lost.append(library.allocated_bytes() - before)
        if len(lost) > 1 and lost[-1] < _LEAK_BYTES:
            return 0
    return int(min(lost[1:])) // _LEAK_CALLS


def largest_share(folder: str) -> tuple[float, int]:
    """Return how many times its fair share of accesses the busiest thread made in the last watched launch; which."""
    library, thread = _library(folder), ctypes.c_int()
    library.shim_largest_share.restype = ctypes.c_double
    return float(library.shim_largest_share(ctypes.byref(thread))), thread.value


class Bench:
    """Arguments that stay in this process, to call a function many times."""

    def __init__(self, folder: str, name: str, letters: str, args: list[Any], shape: Any = None) -> None:
        self._buffers = {at: _guarded(value) for at, value in enumerate(args) if letters[at] == "p"}
        places = [
            self._buffers[at].ctypes.data + GUARD if at in self._buffers else value
            for at, value in enumerate(args)
        ]
        self._start = _bound(folder, name, letters, places, shape)

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


def _bound(folder: str, name: str, letters: str, args: list[Any], shape: Any) -> Callable[[], str | None]:
    """Return a function without arguments that makes the call and returns an error, or None.

    args: addresses of the arrays, and numbers.
    """
    library = _library(folder)
    values = [
        ctypes.c_void_p(arg) if letter == "p" else _TYPES[letter](arg)
        for letter, arg in zip(letters, args, strict=True)
    ]
    if shape is None:
        function = library[name]
        function.restype = None

        def call() -> None:
            function(*values)

        return call
    grid, block, shared_bytes, options = shape
    signature = library[f"shim_signature_{name}"]
    signature.restype = ctypes.c_char_p
    if (found := signature().decode()) != letters:
        return lambda: f"{name} takes the parameters {found!r}; the contract has {letters!r}"
    launch = library[f"shim_launch_{name}"]
    launch.restype = ctypes.c_char_p
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    sizes = (_TRIPLE(*grid), _TRIPLE(*block), ctypes.c_size_t(shared_bytes), pointers, int(options))

    def start() -> str | None:
        said = launch(*sizes)
        return None if said is None or values is None else said.decode()  # `values` must live as long as this

    return start


@cache
def _library(folder: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(folder) / "kernel.so"))
