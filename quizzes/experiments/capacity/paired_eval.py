from engine.zoo.gates import paired_difference, wilson
from quizzes.experiments import BadArguments, Context, Result, arg, experiment


@experiment("E62")
def paired_eval(
    ctx: Context,
    cases: int = arg(500, 1, 100_000),
    reference_right: int = arg(450, 0, 100_000),
    won: int = arg(4, 0, 100_000),
    lost: int = arg(12, 0, 100_000),
    limit: float = arg(-0.02, above=-1, below=0),
) -> Result:
    """Decide from paired answers whether quantisation cost more than `limit`.

    won: cases where only the new model is right; lost: cases where only the reference is right.

    Returns:
        Candidate minus reference, 95 % interval.
        difference, low, high [share]
        verdict: pass: even the bad end is above the limit. fail: even the good end is below it. Otherwise
            inconclusive.
        unpaired_width [share]: Width of the interval if the two had answered different questions.
        paired_width [share]
    """
    if lost > reference_right or reference_right + won > cases:
        raise BadArguments(f"{won} won and {lost} lost do not fit {reference_right} right of {cases}")
    low, high = paired_difference(won, lost, cases)
    verdict = "pass" if low >= limit else "fail" if high < limit else "inconclusive"
    spread = 0.0
    for right in (reference_right, reference_right + won - lost):
        ends = wilson(right, cases)
        spread += (ends[1] - ends[0]) ** 2
    return Result(
        difference=(won - lost) / cases,
        low=low,
        high=high,
        verdict=verdict,
        unpaired_width=spread**0.5,
        paired_width=high - low,
    )
