"""Random calls of every operation, with what breaks kernels in practice.

What is in them, where an operation can meet it: 0 and 1 rows, a page boundary and one token on either side of it,
padding slots (-1) and padding tokens, block table columns with stale ids, NaN in unwritten slots, q, k
and v as slices of one fused tensor, the cache of one layer as a strided view, 1 to 8 query heads per kv head, head_dim
32 to 128 and 80 among them, sliding windows, quantised caches, sizes that no tile divides, a row of NaN.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace

import torch

from kernels.check.case import Case, copy_of
from kernels.check.draw import NAN_ROW, Draw, Size
from kernels.operations import OPERATIONS

NAN = float("nan")


def cases(
    op: str, *, seed: int, size: Size = "tiny", dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Iterator[Case]:
    """All cases of an operation. Made on the CPU and then moved, so that a seed means the same everywhere."""
    draw = Draw(zlib.crc32(f"{op} {seed} {size}".encode()), dtype, size)
    for made in OPERATIONS[op].part("cases")(draw):
        case = made if isinstance(made, Case) else Case(op, made[0], made[1:])
        if case.name.startswith(NAN_ROW):
            first = case.args[0].clone()
            first[1] = NAN
            free = frozenset([1] if OPERATIONS[op].open_for_nan else [])
            case = replace(case, args=(first, *case.args[1:]), free_rows=free)
        if device == "cpu":
            yield case
        elif op == "copy_blocks":
            yield from _across_devices(case, device)
        else:
            yield copy_of(case, device)


def _across_devices(case: Case, device: str) -> Iterator[Case]:
    """Within the device, to it and from it. The pairs stay on the CPU."""
    pairs, (source, target, _) = case.args[2], copy_of(case, device).args
    yield Case(case.op, case.name, (source, target, pairs))
    if case.args[0] is not case.args[1]:
        yield Case(case.op, f"{case.name}, to the {device}", (case.args[0], target, pairs))
        yield Case(case.op, f"{case.name}, from the {device}", (source, case.args[1], pairs))
