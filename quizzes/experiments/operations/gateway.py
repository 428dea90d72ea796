"""Gateway in front of several engines: routing by weight, shadow traffic, a circuit breaker.

    request --> Gateway --(weights, by a hash of the user)--> backend "old" | "new"
                   |----(shadow)------------------------------> the other one; its answer is compared and dropped
                   '----(breaker open, or failed)-------------> fallback, up to its quota

The caller sees `answer(user, prompt)` whichever backend serves it, so a rollback is a change of weights.
The split of users and the breaker are those of `prep gateway` (engine/gateway); its clock counts requests here.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from engine.gateway.canary import share_of
from engine.gateway.limits import CircuitBreaker
from quizzes.experiments import Result, arg, experiment

Backend = Callable[[str, str], str]
"""(user, prompt) -> answer; raises BackendError."""


class BackendError(Exception):
    """A backend could not answer."""


class Unavailable(Exception):
    """The breaker is open and the fallback's quota is used up."""


class Gateway:
    """Routes requests by weights. Set its fields to change routes."""

    def __init__(self, backends: dict[str, Backend], weights: dict[str, float]) -> None:
        self.backends = backends
        self.weights = weights
        self.shadow: str | None = None
        self.fallback: str | None = None
        self.fallback_quota = 0
        self.breakers: dict[str, CircuitBreaker] = {}
        self.now = -1
        """Requests so far, the clock of the breakers."""
        self.served, self.failed = Counter[str](), Counter[str]()
        self.calls = Counter[str]()
        """Calls to each backend, shadow traffic included."""
        self.rejected = self.shadow_compared = self.shadow_different = 0

    def route(self, user: str) -> str:
        """Return the user's backend, which is always the same while the weights stay."""
        point = share_of(user) * sum(self.weights.values())
        for name, weight in self.weights.items():
            point -= weight
            if point < 0:
                return name
        return next(iter(self.weights))

    def answer(self, user: str, prompt: str) -> str:
        """Return the answer of the user's backend or the fallback. Raises BackendError or Unavailable."""
        name = self.route(user)
        breaker = self.breakers.get(name)
        self.now += 1
        if breaker is not None:
            if not breaker.allows(self.now):
                return self._fall_back(user, prompt)
            breaker.begin(self.now)
        try:
            answer = self._call(name, user, prompt)
        except BackendError:
            if breaker is not None:
                breaker.record(self.now, False)
            self.failed[name] += 1
            if self.fallback is None:
                raise
            return self._fall_back(user, prompt)
        if breaker is not None:
            breaker.record(self.now, True)
        self.served[name] += 1
        self._compare(name, user, prompt, answer)
        return answer

    def _call(self, name: str, user: str, prompt: str) -> str:
        self.calls[name] += 1
        return self.backends[name](user, prompt)

    def _fall_back(self, user: str, prompt: str) -> str:
        if self.fallback is None or self.fallback_quota <= 0:
            self.rejected += 1
            raise Unavailable("no backend may answer: breaker open, fallback quota used up")
        self.fallback_quota -= 1
        answer = self._call(self.fallback, user, prompt)
        self.served[self.fallback] += 1
        return answer

    def _compare(self, served_by: str, user: str, prompt: str, answer: str) -> None:
        if self.shadow is None or self.shadow == served_by:
            return
        self.shadow_compared += 1
        try:
            other = self._call(self.shadow, user, prompt)
        except BackendError:
            other = None
        self.shadow_different += other != answer


@experiment("E49")
def canary(
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

    Returns: Counts over all requests.
        to_new, to_old [requests]; users_on_new [users]
        users_expected_low, users_expected_high [users]: 95 % interval of users_on_new for a uniform hash: each user is
            on the new backend with probability `share`, so shares of few users vary.
        users_on_both [users]: Users routed to both backends while the weights were unchanged.
        failed [requests]
        rolled_back_at [request]: Number of requests before the rollback; -1: no rollback.
        failed_after_rollback [requests]
        failed_without_canary [requests]: Failures if all users move at once, with the same guard.
    """

    def run(share: float) -> tuple[Gateway, dict[str, set[str]], list[int], int]:
        """Return the gateway, the backends that users met, the failed requests, and when it was rolled back."""
        calls = iter(range(1, requests + 1))

        def new(user: str, prompt: str) -> str:
            if fails_every and next(calls) % fails_every == 0:
                raise BackendError("new backend failed")
            return prompt

        gateway = Gateway({"new": new, "old": lambda user, prompt: prompt}, {"new": share, "old": 1 - share})
        met: dict[str, set[str]] = {}
        failed, rolled_back = [], -1
        for index in range(requests):
            user = f"user-{index % users}"
            if rolled_back < 0:
                met.setdefault(user, set()).add(gateway.route(user))
            try:
                gateway.answer(user, "hello")
            except BackendError:
                failed.append(index)
            looks = (index + 1) % look_every == 0
            if looks and rolled_back < 0 and gateway.failed["new"] >= max_failures:
                gateway.weights = {"new": 0.0, "old": 1.0}
                rolled_back = index + 1
        return gateway, met, failed, rolled_back

    gateway, met, failed, rolled_back = run(share)
    expected, spread = len(met) * share, 1.96 * (len(met) * share * (1 - share)) ** 0.5
    return Result(
        to_new=gateway.calls["new"],
        to_old=gateway.calls["old"],
        users_on_new=sum("new" in names for names in met.values()),
        users_expected_low=max(0, round(expected - spread)),
        users_expected_high=min(len(met), round(expected + spread)),
        users_on_both=sum(len(names) > 1 for names in met.values()),
        failed=len(failed),
        rolled_back_at=rolled_back,
        failed_after_rollback=sum(0 <= rolled_back <= index for index in failed),
        failed_without_canary=len(run(1.0)[2]),
    )


@experiment("E49")
def circuit_breaker(
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

    Returns: Counts over all requests.
        calls_while_down, calls_without_breaker [calls]: Calls to the failing backend, with the breaker and without.
        opened [times]; by_fallback, rejected [requests]
        closed_again_at [request]: First request that the backend served after the outage, from 0; -1: none.
        served_by_primary [requests]
    """
    index, calls_down = 0, 0

    def primary(user: str, prompt: str) -> str:
        nonlocal calls_down
        if down_from <= index < down_from + down_for:
            calls_down += 1
            raise BackendError("down")
        return prompt

    gateway = Gateway({"primary": primary, "fallback": lambda user, prompt: prompt}, {"primary": 1.0})
    breaker = gateway.breakers["primary"] = CircuitBreaker(threshold, cooldown + 1)
    gateway.fallback, gateway.fallback_quota = "fallback", quota
    closed_again = -1
    for index in range(requests):
        served = gateway.served["primary"]
        with suppress(Unavailable):
            gateway.answer("user", "hello")
        if closed_again < 0 and index >= down_from + down_for and gateway.served["primary"] > served:
            closed_again = index
    return Result(
        calls_while_down=calls_down,
        calls_without_breaker=max(0, min(down_for, requests - down_from)),
        opened=breaker.num_opened,
        by_fallback=gateway.served["fallback"],
        rejected=gateway.rejected,
        closed_again_at=closed_again,
        served_by_primary=gateway.served["primary"],
    )
