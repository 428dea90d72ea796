"""Evidence that a number of requests or cases gives, and counts of a guide."""

import math
from bisect import bisect_left
from statistics import NormalDist

from engine.zoo.gates import paired_difference, wilson
from quizzes.experiments import BadArguments, Result, arg, experiment

CONFIDENCE, POWER = 0.95, 0.8


@experiment("E62")
def canary_size(
    rate: float = arg(2.0, above=0, high=1e6),
    share: float = arg(0.1, above=0, high=0.5),
    hours: float = arg(1.0, above=0, high=10_000),
    base: float = arg(0.01, above=0, below=1),
    bad: float = arg(0.015, above=0, below=1),
) -> Result:
    """Compute how many requests a canary needs before it can detect a worse error rate.

    The canary gets `share` of `rate` requests per second for `hours`. base: the current share of bad answers; bad: the
    share that the test must detect.

    Returns: A two-sided test of two shares at 95 % with power 80 %.
        requests [requests]: Requests that the canary serves.
        needed [requests]: Per arm, to tell `bad` from `base`.
        hours_needed [h]: Time until the canary has served that many.
        enough
    """
    if base == bad:
        raise BadArguments("base and bad are equal: there is nothing to tell apart")
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2), NormalDist().inv_cdf(POWER)
    mean = (base + bad) / 2
    pooled = z[0] * math.sqrt(2 * mean * (1 - mean))
    apart = z[1] * math.sqrt(base * (1 - base) + bad * (1 - bad))
    needed = math.ceil(((pooled + apart) / (bad - base)) ** 2)
    seen = int(rate * share * hours * 3600 + 1e-6)
    return Result(
        requests=seen, needed=needed, hours_needed=needed / (rate * share * 3600), enough=seen >= needed
    )


@experiment("E62")
def paired_eval(
    cases: int = arg(500, 1, 100_000),
    reference_right: int = arg(450, 0, 100_000),
    won: int = arg(4, 0, 100_000),
    lost: int = arg(12, 0, 100_000),
    limit: float = arg(-0.02, above=-1, below=0),
) -> Result:
    """Decide from paired answers whether quantisation cost more than `limit`.

    won: cases where only the new model is right; lost: cases where only the reference is right.

    Returns: Candidate minus reference, 95 % interval.
        difference, low, high [share]
        verdict: pass: even the bad end is above the limit. fail: even the good end is below. Otherwise inconclusive.
        unpaired_width [share]: Width of the interval if the two had answered different questions.
        paired_width [share]
    """
    if lost > reference_right or reference_right + won > cases:
        raise BadArguments(f"{won} won and {lost} lost do not fit {reference_right} right of {cases}")
    low, high = paired_difference(won, lost, cases)
    intervals = (wilson(right, cases) for right in (reference_right, reference_right + won - lost))
    return Result(
        difference=(won - lost) / cases,
        low=low,
        high=high,
        verdict="pass" if low >= limit else "fail" if high < limit else "inconclusive",
        unpaired_width=sum((end - start) ** 2 for start, end in intervals) ** 0.5,
        paired_width=high - low,
    )


@experiment("E62")
def pass_rate(
    cases: int = arg(200, 1, 100_000),
    right: int = arg(198, 0, 100_000),
    gate: float = arg(0.99, above=0, below=1),
) -> Result:
    """Decide whether `right` of `cases` prove a pass rate of at least `gate` with 95 % confidence.

    Returns: 95 % Wilson interval of a share, as the engine's quality gates compute it.
        rate, low, high [share]
        verdict: pass: the whole interval is on the good side of the gate. fail: none of it. Otherwise inconclusive.
        errors [cases]
        errors_allowed [cases]: Maximum wrong cases with which the gate passes; -1: too few cases to pass.
        cases_needed [cases]: Cases that prove the gate if all are right.
        cases_one_sided [cases]: The same by the exact one-sided 95 % bound: gate to this power is at most 5 %.
    """
    if right > cases:
        raise BadArguments(f"{right} right of {cases} cases")

    def proves(right: int, cases: int) -> bool:
        return wilson(right, cases)[0] >= gate

    low, high = wilson(right, cases)
    enough = 1
    while not proves(enough, enough):
        enough *= 2
    return Result(
        rate=right / cases,
        low=low,
        high=high,
        verdict="pass" if low >= gate else "fail" if high < gate else "inconclusive",
        errors=cases - right,
        errors_allowed=bisect_left(range(cases + 1), True, key=lambda wrong: not proves(cases - wrong, cases))
        - 1,
        cases_needed=bisect_left(range(enough), True, lo=1, key=lambda n: proves(n, n)),
        cases_one_sided=math.ceil(math.log(1 - CONFIDENCE) / math.log(gate)),
    )


@experiment()
def listed(
    announced: int = arg(6, 0, 1000),
    labels: list[str] = arg(["rate", "lengths", "limits", "model", "card"], chars=(1, 80), count=(1, 100)),
) -> Result:
    """Compare the number of entries that a text announces with the number it lists.

    Returns: Labels that differ only in case or spaces count once.
        announced, listed [entries]
        missing [entries]: Announced but not there; negative: more than announced.
    """
    there = len({" ".join(label.lower().split()) for label in labels})
    return Result(announced=announced, listed=there, missing=announced - there)
