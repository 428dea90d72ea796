"""Adding the same numbers in another order: why a batch size can change a result, and how to stop it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Sums:
    distinct: Annotated[int, "values"]
    """Different fp32 results over the split counts."""
    values: list[float]
    """By split count, in the order given."""
    spread: Annotated[float, "ulp"]
    """Largest minus smallest, in units of the last place of the first."""
    is_exact_in_integers: bool
    """Whether the same splits give one result when the numbers are integers (as in an int8 product)."""


@experiment("E27")
def reduction_order(
    ctx: Context,
    *,
    n: Annotated[int, Field(ge=2, le=20_000)] = 4096,
    splits: Annotated[list[Annotated[int, Field(ge=1, le=256)]], Field(min_length=1, max_length=16)] = (
        1,
        2,
        4,
        8,
        16,
    ),
) -> Sums:
    """Sum n seeded numbers in fp32, cut into partial sums as a split-K or split-KV kernel does."""
    import numpy as np

    numbers = np.array([ctx.rng.gauss(0, 1) for _ in range(n)], dtype=np.float32)
    integers = [ctx.rng.randrange(-127, 128) for _ in range(n)]
    values = [float(_total(np.array_split(numbers, parts))) for parts in splits]
    whole = {sum(sum(integers[part::parts]) for part in range(parts)) for parts in splits}
    ulp = float(np.spacing(np.float32(abs(values[0]))))
    return Sums(len(set(values)), values, (max(values) - min(values)) / ulp, len(whole) == 1)


def _total(parts: list) -> object:
    """Partial sums, each from left to right, then their sum from left to right; every addition rounds to fp32."""
    import numpy as np

    totals = [_run(part) for part in parts]
    return _run(np.array(totals, dtype=np.float32))


def _run(numbers: object) -> object:
    import numpy as np

    total = np.float32(0)
    for number in numbers:  # type: ignore[attr-defined]
        total = np.float32(total + number)
    return total
