from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.operations._gateway import BackendError, Gateway


@experiment("E49")
def canary(
    ctx: Context,
    requests: int = arg(4000, 1, 20_000),
    users: int = arg(500, 1, 5000),
    share: float = arg(0.1, 0, 1),
    fails_every: int = arg(4, 0, 1000),
    max_failures: int = arg(10, 1, 1000),
    look_every: int = arg(1000, 1, 10_000),
) -> Result:
    """Route a share of the users to a new backend, with a guard that rolls it back after too many errors.

    User i % `users` sends request i. Every `fails_every`-th answer of the new backend fails (0: none). The guard reads
    the counters after every `look_every` requests, as a dashboard does every minute. At `max_failures` failures or
    more it sets the new backend's weight to 0 and changes nothing else.

    Returns:
        Counts over all requests.
        to_new, to_old [requests]
        users_on_new [users]
        users_expected_low, users_expected_high [users]: 95 % interval of users_on_new for a uniform hash: each user is
            on the new backend with probability `share`, so shares of few users vary.
        users_on_both [users]: Users routed to both backends while the weights were unchanged.
        failed [requests]
        rolled_back_at [request]: Number of requests before the rollback; -1: no rollback.
        failed_after_rollback [requests]
        failed_without_canary [requests]: Failures if all users move at once, with the same guard.
    """
    new, moved = (_run(requests, users, part, fails_every, max_failures, look_every) for part in (share, 1.0))
    gateway, met, failed, rolled_back, late = new
    counts = gateway.counts
    spread = 1.96 * (len(met) * share * (1 - share)) ** 0.5
    return Result(
        to_new=counts.calls.get("new", 0),
        to_old=counts.calls.get("old", 0),
        users_on_new=sum("new" in names for names in met.values()),
        users_expected_low=max(0, round(len(met) * share - spread)),
        users_expected_high=min(len(met), round(len(met) * share + spread)),
        users_on_both=sum(len(names) > 1 for names in met.values()),
        failed=failed,
        rolled_back_at=rolled_back,
        failed_after_rollback=late,
        failed_without_canary=moved[2],
    )


def _run(  # type: ignore[no-untyped-def]
    requests: int, users: int, share: float, fails_every: int, max_failures: int, look_every: int
):
    calls = iter(range(1, requests + 1))

    def new(user: str, prompt: str) -> str:
        if fails_every and next(calls) % fails_every == 0:
            raise BackendError("new backend failed")
        return prompt

    gateway = Gateway({"new": new, "old": lambda user, prompt: prompt}, {"new": share, "old": 1 - share})
    met: dict[str, set[str]] = {}
    failed, rolled_back, late = 0, -1, 0
    for index in range(requests):
        user = f"user-{index % users}"
        if rolled_back < 0:
            met.setdefault(user, set()).add(gateway.route(user))
        try:
            gateway.answer(user, "hello")
        except BackendError:
            failed += 1
            late += rolled_back >= 0
        looks = (index + 1) % look_every == 0
        if looks and rolled_back < 0 and gateway.counts.failed.get("new", 0) >= max_failures:
            gateway.weights = {"new": 0.0, "old": 1.0}
            rolled_back = index + 1
    return gateway, met, failed, rolled_back, late
