import math
from statistics import NormalDist

from quizzes.experiments import BadArguments, Context, Result, arg, experiment

CONFIDENCE, POWER = 0.95, 0.8


@experiment("E62")
def canary_size(
    ctx: Context,
    rate: float = arg(2.0, above=0, high=1e6),
    share: float = arg(0.1, above=0, high=0.5),
    hours: float = arg(1.0, above=0, high=10_000),
    base: float = arg(0.01, above=0, below=1),
    bad: float = arg(0.015, above=0, below=1),
) -> Result:
    """Compute how many requests a canary needs before it can detect a worse error rate.

    The canary gets `share` of `rate` requests per second for `hours`. base: the current share of bad answers; bad: the
    share that the test must detect.

    Returns:
        A two-sided test of two shares at 95 % with power 80 %.
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
