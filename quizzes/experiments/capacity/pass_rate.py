from engine.zoo.gates import wilson
from quizzes.experiments import BadArguments, Context, Result, arg, experiment


@experiment("E62")
def pass_rate(
    ctx: Context,
    cases: int = arg(200, 1, 100_000),
    right: int = arg(198, 0, 100_000),
    gate: float = arg(0.99, above=0, below=1),
) -> Result:
    """Decide whether `right` of `cases` prove a pass rate of at least `gate` with 95 % confidence.

    Returns:
        95 % Wilson interval of a share, as the engine's quality gates compute it.
        rate, low, high [share]
        verdict: pass: the whole interval is on the good side of the gate. fail: none of it. Otherwise inconclusive.
        errors [cases]
        errors_allowed [cases]: Maximum wrong cases with which the gate passes; -1: too few cases to pass.
        cases_needed [cases]: Cases that prove the gate if all are right.
    """
    if right > cases:
        raise BadArguments(f"{right} right of {cases} cases")
    low, high = wilson(right, cases)
    verdict = "pass" if low >= gate else "fail" if high < gate else "inconclusive"
    allowed = -1
    while allowed + 1 <= cases and wilson(cases - allowed - 1, cases)[0] >= gate:
        allowed += 1
    return Result(
        rate=right / cases,
        low=low,
        high=high,
        verdict=verdict,
        errors=cases - right,
        errors_allowed=allowed,
        cases_needed=_needed(gate),
    )


def _needed(gate: float) -> int:
    """Return the fewest cases, all right, whose interval is above the gate, by bisection."""
    low, high = 0, 1
    while wilson(high, high)[0] < gate:
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if wilson(middle, middle)[0] >= gate else (middle, high)
    return high
