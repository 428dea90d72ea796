"""The entry of an operation: everything that belongs to it besides its contract (`ops.py`) and its implementations.

`operations/` holds the entries. `tests/kernels/test_operations.py` names what an entry lacks, and what the code holds
without an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from kernels.bench.workloads import Maker
    from kernels.check.draw import Draw
    from kernels.check.invariance import Rows

BACKENDS = ("reference", "cpu", "triton", "cuda")


class MissingPart(LookupError):
    """An entry lacks a part; the message names it."""


@dataclass(frozen=True, slots=True)
class Work:
    """The least that a call has to do."""

    read: int
    written: int
    flops: int = 0
    rate: str = "float32"
    """The type in which it multiplies."""
    over_link: bool = False
    """The bytes go between host and GPU."""

    @property
    def bytes(self) -> int:
        return self.read + self.written

    @classmethod
    def of_product(cls, x: Tensor, out_features: int, weight_bytes: int, rate: torch.dtype) -> Work:
        """Return the work of x [T, in] times a matrix of `out_features` rows."""
        rows, width = x.shape
        flops, written = 2 * rows * width * out_features, rows * out_features * x.element_size()
        return cls(x.nbytes + weight_bytes, written, flops, rate_name(rate))


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation. Parts that are None or empty are missing, from `forms` to `mutants`; the others have defaults.

    `cases`, `work` and the others describe calls: they take the arguments of the operation, or yield
    (name, *arguments).
    """

    name: str
    forms: dict[str, str] = field(default_factory=dict)
    """Backend -> its files, the kernel first. The first .py holds the function, of the operation's name."""
    cases: Callable[[Draw], Iterator[Any]] | None = None
    """Yield random calls, with what breaks kernels in practice (`check/draw.py`)."""
    rows: Rows | str | None = None
    """Arguments with a row for each row of the result, which must have the same bits alone and in a batch
    (`check/invariance.py`); a sentence if an operation has no such rows."""
    work: Callable[..., Work] | None = None
    """Return the least bytes and FLOPs of a call (`bench/roofline.py`)."""
    workloads: Callable[[Maker], Iterator[Any]] | None = None
    """Yield the calls that are measured (`bench/workloads.py`)."""
    mutants: tuple[tuple[str, str, str], ...] = ()
    """(what is wrong, text of the reference, what it becomes): faults that the cases must catch."""

    in_place: tuple[str, ...] = ()
    """Arguments that it writes to; all others must keep their bits."""
    exact: bool = False
    """It computes nothing, or what the contract fixes bit by bit: the reference runs in the given types."""
    terms: Callable[..., int] | None = None
    """Return the number of terms of the longest sum behind an element, for the tolerance. None: no sums."""
    open_for_nan: bool = False
    """The contract does not say what becomes of a row of NaN."""
    fuses: tuple[str, ...] = ()
    """Operations that this one does in one pass."""

    def part(self, name: str) -> Any:
        """Return a part; raises MissingPart if the entry lacks it."""
        if not (part := getattr(self, name)):
            raise MissingPart(f"the entry of {self.name} in kernels/operations has no {name}")
        return part


def last_dimension(first: Tensor, *others: Any, **options: Any) -> int:
    """Return the number of terms where the last dimension of the first argument is added up."""
    return first.shape[-1]


def rate_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
