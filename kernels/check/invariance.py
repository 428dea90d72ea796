"""A row alone equals the row in the batch, bit for bit: cases of one row cut out of a larger case."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kernels.check.case import Case


class Rows:
    """Rows of a call that can be computed alone. A subclass says how, where narrowing tensors is not enough.

    arguments: names of tensors, or tuples of them, whose first dimension are the rows; second: one in which the
    rows are the second dimension. of_result: the dimension of the rows in the result, or in the argument that is
    written.
    """

    def __init__(self, arguments: str, *, second: str = "", of_result: int = 0) -> None:
        self.dimensions = dict.fromkeys(arguments.split(), 0) | dict.fromkeys(second.split(), 1)
        self.of_result = of_result

    def count(self, case: Case) -> int:
        """Return the number of rows."""
        arguments = case.arguments()
        tensors = ((arguments.get(name), dimension) for name, dimension in self.dimensions.items())
        return min(tensor.shape[dimension] for tensor, dimension in tensors if isinstance(tensor, Tensor))

    def alone(self, case: Case, row: int) -> Case:
        """Return the case with this row only."""
        arguments = case.arguments()
        for name in arguments.keys() & self.dimensions.keys():
            arguments[name] = _narrowed(arguments[name], self.dimensions[name], row)
        return Case(case.op, f"{case.name}: row {row} alone", tuple(arguments.values()))

    def of(self, case: Case, row: int, result: Any) -> tuple[Tensor, ...]:
        """Return this row's part of the batch's result (for operations in place, of their target)."""
        tensors = result if isinstance(result, tuple) else (result,)
        return tuple(tensor.narrow(self.of_result, row, 1) for tensor in tensors)


def _narrowed(value: Any, dimension: int, row: int) -> Any:
    """The row of a tensor, of each tensor of a tuple; anything else has no rows."""
    if isinstance(value, tuple):
        return tuple(_narrowed(item, dimension, row) for item in value)
    return value.narrow(dimension, row, 1) if isinstance(value, Tensor) else value


def equal_bits(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> bool:
    """Compare bits; any NaN equals any other, since hardware and compilers choose the bits of a NaN."""
    pairs = list(zip(one, other, strict=True))
    return all(a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all()) for a, b in pairs)
