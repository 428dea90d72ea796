from quizzes.experiments import Context, Result, arg, experiment


@experiment("E51")
def alert_rule(
    ctx: Context,
    before: float = arg(0.72, 0, 1),
    after: float = arg(0.45, 0, 1),
    threshold: float = arg(0.5, 0, 1),
    for_min: int = arg(15, 0, 240),
    window_min: int = arg(5, 1, 240),
    lasts_min: int = arg(600, 1, 2000),
    queries_per_min: int = arg(1000, 1, 100_000),
) -> Result:
    """Compute when an alert on a falling rate fires, given the rate's window and the rule's hold time.

    Hits and queries are counters that grow every minute; the rate is the ratio of their increases over the last
    `window_min` minutes. The rule is evaluated every minute and must hold for `for_min` minutes, as with Prometheus'
    `for`. The hit rate falls from `before` to `after` at minute 0 and recovers after `lasts_min`.

    Returns:
        Minutes after the drop.
        fires
        fires_after_min [min]: -1: never within the time looked at.
        below_after_min [min]: The windowed rate was first below the threshold; -1: never.
        rate_at_end [share]
    """
    hits = [0.0]
    for minute in range(-window_min, lasts_min + window_min):
        rate = after if 0 <= minute < lasts_min else before
        hits.append(hits[-1] + rate * queries_per_min)
    since, fires, first_below = None, -1, -1
    rate = before
    for minute in range(1, lasts_min + window_min + 1):
        end = minute + window_min
        rate = (hits[end] - hits[end - window_min]) / (queries_per_min * window_min)
        if rate < threshold - 1e-12:
            since = minute if since is None else since
            first_below = minute if first_below < 0 else first_below
            if fires < 0 and minute - since >= for_min:
                fires = minute
        else:
            since = None
        if minute == lasts_min:
            at_end = rate
    return Result(fires=fires >= 0, fires_after_min=fires, below_after_min=first_below, rate_at_end=at_end)
