from typing import Any

from quizzes.experiments import Context, Result, arg, experiment


@experiment("E27")
def reduction_order(
    ctx: Context,
    n: int = arg(4096, 2, 20_000),
    splits: list[int] = arg([1, 2, 4, 8, 16], 1, 256, count=(1, 16)),
) -> Result:
    """Sum the same fp32 numbers in different orders, as split-K and split-KV kernels do.

    Returns:
        distinct [values]: Different fp32 results over the split counts.
        values: Sum by split count, in the order given.
        spread [ulp]: Largest minus smallest, in units of the last place of the first.
        is_exact_in_integers: Whether the same splits give one result when the numbers are integers (as in an int8
            product).
    """
    import numpy as np

    numbers = np.array([ctx.rng.gauss(0, 1) for _ in range(n)], dtype=np.float32)
    integers = [ctx.rng.randrange(-127, 128) for _ in range(n)]
    values = [float(_total(np.array_split(numbers, parts))) for parts in splits]
    whole = {sum(sum(integers[part::parts]) for part in range(parts)) for parts in splits}
    ulp = float(np.spacing(np.float32(abs(values[0]))))
    return Result(
        distinct=len(set(values)),
        values=values,
        spread=(max(values) - min(values)) / ulp,
        is_exact_in_integers=len(whole) == 1,
    )


def _total(parts: list[Any]) -> Any:
    """Partial sums, each from left to right, then their sum from left to right; every addition rounds to fp32."""
    import numpy as np

    totals = [_run(part) for part in parts]
    return _run(np.array(totals, dtype=np.float32))


def _run(numbers: Any) -> Any:
    import numpy as np

    total = np.float32(0)
    for number in numbers:
        total = np.float32(total + number)
    return total
