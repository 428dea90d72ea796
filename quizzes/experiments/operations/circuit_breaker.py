from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.operations._gateway import BackendError, CircuitBreaker, Gateway, Unavailable


@experiment("E49")
def circuit_breaker(
    ctx: Context,
    requests: int = arg(300, 1, 10_000),
    down_from: int = arg(50, 0, 10_000),
    down_for: int = arg(100, 0, 10_000),
    threshold: int = arg(5, 1, 100),
    cooldown: int = arg(20, 0, 1000),
    quota: int = arg(60, 0, 10_000),
) -> Result:
    """Serve requests through a circuit breaker while the primary backend is down, with a fallback that has a quota.

    Requests come one after another; the `down_for` requests from `down_from` on fail at the primary. After `threshold`
    failures in a row `cooldown` requests are not sent there; then one is tried.

    Returns:
        Counts over all requests.
        calls_while_down, calls_without_breaker [calls]: Calls to the failing backend, with the breaker and without.
        opened [times]
        by_fallback, rejected [requests]
        closed_again_at [request]: The first request that the backend served after the outage, counted from 0; -1: none
            did.
        served_by_primary [requests]
    """
    now = {"request": 0, "calls_down": 0}

    def primary(user: str, prompt: str) -> str:
        if down_from <= now["request"] < down_from + down_for:
            now["calls_down"] += 1
            raise BackendError("down")
        return prompt

    gateway = Gateway({"primary": primary, "fallback": lambda user, prompt: prompt}, {"primary": 1.0})
    breaker = gateway.breakers["primary"] = CircuitBreaker(threshold, cooldown)
    gateway.fallback, gateway.fallback_quota = "fallback", quota
    closed_again = -1
    for index in range(requests):
        now["request"] = index
        served = gateway.counts.served.get("primary", 0)
        try:
            gateway.answer("user", "hello")
        except Unavailable:
            continue
        recovered = index >= down_from + down_for and gateway.counts.served.get("primary", 0) > served
        if recovered and closed_again < 0:
            closed_again = index
    return Result(
        calls_while_down=now["calls_down"],
        calls_without_breaker=max(0, min(down_for, requests - down_from)),
        opened=breaker.opened,
        by_fallback=gateway.counts.served.get("fallback", 0),
        rejected=gateway.counts.rejected,
        closed_again_at=closed_again,
        served_by_primary=gateway.counts.served.get("primary", 0),
    )
