"""Checks of the lab rate-limiter: single rules, random traffic in fractions, the gateway."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from random import Random
from typing import Any

from lessons.course.checking import Failed, Learner, check, refused, run_fewest, smallest

LAB = "rate-limiter"
RATES = (2.0, 5, 100.0, 400)
"""requests per second and their burst, tokens per second and theirs."""
Op = tuple[Any, ...]
"""("take", now, tenant, tokens), ("settle", now, tenant, reserved, used) or ("forget", now)."""


class Ledger:
    """A second opinion in fractions. It keeps what each bucket lacks, not what it holds."""

    def __init__(
        self, requests_per_s: float, request_burst: int, tokens_per_s: float, token_burst: int
    ) -> None:
        self.rates = Fraction(requests_per_s), Fraction(tokens_per_s)
        self.bursts = request_burst, token_burst
        self.lack: dict[str, list[Fraction]] = {}
        self.when: dict[str, Fraction] = {}

    def _pass(self, now: float, tenant: str) -> list[Fraction]:
        moment = max(Fraction(now), self.when.get(tenant, Fraction(now)))
        passed = moment - self.when.get(tenant, moment)
        self.when[tenant] = moment
        before = self.lack.get(tenant, [Fraction(0), Fraction(0)])
        self.lack[tenant] = [
            max(Fraction(0), lack - passed * rate) for lack, rate in zip(before, self.rates, strict=True)
        ]
        return self.lack[tenant]

    def take(self, now: float, tenant: str, tokens: int) -> float:
        if tokens > self.bursts[1]:
            return math.inf
        lack = self._pass(now, tenant)
        after = [lack[0] + 1, lack[1] + tokens]
        over = [
            (each - burst) / rate for each, burst, rate in zip(after, self.bursts, self.rates, strict=True)
        ]
        if max(over) > 0:
            return float(max(over))
        self.lack[tenant] = after
        return 0.0

    def settle(self, now: float, tenant: str, reserved: int, used: int) -> None:
        if tenant in self.lack:
            lack = self._pass(now, tenant)
            lack[1] = max(Fraction(0), lack[1] - reserved + used)

    def forget(self, now: float) -> int:
        for tenant in list(self.lack):
            if not any(self._pass(now, tenant)):
                del self.lack[tenant], self.when[tenant]
        return len(self.lack)


def compare(learner: Learner, ops: Sequence[Op], rates: tuple[float, int, float, int] = RATES) -> None:
    """Give the calls to the learner's class and to the ledger; raise Failed at the first difference."""
    limiter, ledger, said = learner.new("RateLimiter", *rates), Ledger(*rates), [f"RateLimiter{rates}"]
    for name, *args in ops:
        said.append(f"{name}({', '.join(map(repr, args))})")
        yours, right = getattr(limiter, name)(*args), getattr(ledger, name)(*args)
        if right is None or yours == right:
            continue
        is_number = isinstance(yours, int | float) and not isinstance(yours, bool)
        if not is_number or not math.isclose(yours, right, rel_tol=1e-6, abs_tol=1e-6):
            raise Failed(
                f"{said[-1]} returned {yours!r}; by the rules it is {right:g}", example="; ".join(said)
            )


@check(LAB)
def a_burst_then_the_rate(learner: Learner) -> None:
    """A burst passes at once, then as many as the rate allows; a pause saves at most one burst."""
    compare(learner, [("take", 0.0, "a", 1)] * 6)
    compare(
        learner,
        [*[("take", 0.0, "a", 1)] * 5, ("take", 0.25, "a", 1), ("take", 0.5, "a", 1), ("take", 0.5, "a", 1)],
    )
    compare(learner, [("take", 0.0, "a", 1), *[("take", 1000.0, "a", 1)] * 6])


@check(LAB)
def both_buckets_must_hold_enough(learner: Learner) -> None:
    """A request needs 1 of one bucket and its tokens of the other."""
    compare(
        learner,
        [("take", 0.0, "a", 300), ("take", 0.0, "a", 300), ("take", 0.0, "a", 100), ("take", 0.0, "a", 1)],
    )
    compare(learner, [*[("take", 0.0, "a", 1)] * 5, ("take", 0.0, "a", 1)])


@check(LAB)
def a_refused_request_takes_nothing(learner: Learner) -> None:
    """A refusal leaves both buckets as they are."""
    compare(learner, [("take", 0.0, "a", 350), *[("take", 0.0, "a", 100)] * 8, *[("take", 0.0, "a", 10)] * 4])


@check(LAB)
def the_wait_is_exact(learner: Learner) -> None:
    """The wait is that of the bucket that takes longer, and after it the request passes."""
    compare(learner, [("take", 0.0, "a", 400), ("take", 0.0, "a", 150), ("take", 1.5, "a", 150)])
    used_up = [
        *[("take", 0.0, "a", 79)] * 5,
        ("take", 0.0, "a", 90),
        ("take", 0.25, "a", 10),
        ("take", 0.5, "a", 10),
    ]
    compare(learner, used_up)


@check(LAB)
def what_never_fits_waits_for_ever(learner: Learner) -> None:
    """More tokens than the burst can never pass: math.inf, and nothing is taken."""
    compare(learner, [("take", 0.0, "a", 401), ("take", 0.0, "a", 400)])


@check(LAB)
def what_never_fits_leaves_no_trace(learner: Learner) -> None:
    """A request that never fits changes nothing: a new tenant is not kept, and its time is not that of a call."""
    compare(
        learner,
        [("take", 0.0, "x", 401), ("forget", 0.0), ("settle", 0.0, "x", 1, 300), ("take", 0.0, "x", 400)],
    )
    compare(learner, [("take", 0.0, "a", 400), ("take", 3.0, "a", 401), ("take", 1.0, "a", 200)])


@check(LAB)
def tenants_do_not_share(learner: Learner) -> None:
    """Each tenant has buckets of its own."""
    compare(learner, [*[("take", 0.0, "a", 80)] * 5, ("take", 0.0, "b", 400), ("take", 0.0, "a", 1)])


@check(LAB)
def what_was_not_used_comes_back(learner: Learner) -> None:
    """Reserved tokens that were not used come back, up to the burst; an overrun is owed."""
    compare(
        learner,
        [
            ("take", 0.0, "a", 400),
            ("settle", 0.0, "a", 400, 100),
            ("take", 0.0, "a", 300),
            ("take", 0.0, "a", 1),
        ],
    )
    compare(
        learner,
        [
            ("take", 0.0, "a", 200),
            ("settle", 50.0, "a", 200, 10),
            ("take", 50.0, "a", 400),
            ("take", 50.0, "a", 1),
        ],
    )
    compare(learner, [("take", 0.0, "a", 400), ("settle", 0.0, "a", 400, 500), ("take", 0.0, "a", 1)])
    compare(learner, [("settle", 0.0, "x", 10, 400), ("forget", 0.0), ("take", 0.0, "x", 400)])


@check(LAB)
def a_clock_that_steps_back(learner: Learner) -> None:
    """A call with an earlier time gains nothing and loses nothing."""
    compare(
        learner,
        [("take", 10.0, "a", 400), ("take", 4.0, "a", 100), ("take", 11.0, "a", 100), ("take", 11.0, "a", 1)],
    )
    compare(learner, [("take", 10.0, "a", 400), ("take", 8.0, "a", 1), ("take", 10.0, "a", 10)])


@check(LAB)
def full_buckets_are_forgotten(learner: Learner) -> None:
    """`forget` drops tenants whose two buckets are full, and no others."""
    compare(
        learner,
        [("take", 0.0, "a", 400), ("take", 0.0, "b", 10), ("forget", 0.1), ("forget", 1.0), ("forget", 4.0)],
    )
    compare(
        learner,
        [
            *[("take", 0.0, f"tenant-{n}", 5) for n in range(20)],
            ("forget", 9.0),
            ("take", 9.0, "tenant-3", 400),
        ],
    )


@check(LAB)
def wrong_settings_are_refused(learner: Learner) -> None:
    """Rates of 0 or below and bursts below 1 raise ValueError."""
    for wrong in ((0.0, 5, 100.0, 400), (2.0, 0, 100.0, 400), (2.0, 5, -1.0, 400), (2.0, 5, 100.0, 0)):
        refused(f"RateLimiter{wrong}", learner.new, "RateLimiter", *wrong)


@check(LAB)
def random_traffic(learner: Learner) -> None:
    """150 random sequences of calls of three tenants: every answer is that of the rules."""
    rng = Random(6)

    def run(count: int) -> None:
        rates = (rng.choice([0.5, 2.0]), rng.randint(1, 4), rng.choice([8.0, 64.0]), rng.choice([32, 128]))
        now, ops = 0.0, []
        for _ in range(count):
            now += rng.choice([0.0, 0.125, 0.5, 2.0, -0.25])
            tenant, tokens = rng.choice("abc"), rng.choice([1, 8, 32, 100])
            settle = ("settle", now, tenant, tokens, rng.choice([0, tokens, 2 * tokens]))
            ops.append(rng.choice([("take", now, tenant, tokens)] * 4 + [settle, ("forget", now)]))
        run_fewest(ops, lambda some: compare(learner, some, rates))

    smallest([2 + number // 6 for number in range(150)], run)


# -- the gateway


class Bucket:
    """The learner's limiter where a tenant of the gateway has its bucket. `now` is a virtual time."""

    def __init__(self, limiter: Any, tenant: str) -> None:
        self.limiter, self.tenant = limiter, tenant
        self.now, self.tokens = 0.0, 1

    def take(self, now: float) -> float:
        wait = self.limiter.take(self.now, self.tenant, self.tokens)
        if not isinstance(wait, int | float) or isinstance(wait, bool) or wait < 0:
            raise Failed(f"take returned {wait!r}, which is not a number of seconds")
        return float(wait)


def admissions(limiter: Any, traffic: Sequence[tuple[float, str, int]]) -> list[str]:
    """Return what the gateway says to each request: "200", or "429, again in N s"."""
    from engine.gateway.config import GatewaySettings
    from engine.gateway.proxy import Gateway
    from engine.server.errors import ApiError

    tenants = [{"name": name, "api_key": f"key-{name}", "requests_per_s": 2} for name in ("a", "b")]
    backends = [{"name": "x", "url": "http://x"}]
    gateway = Gateway(GatewaySettings.model_validate({"backends": backends, "tenants": tenants}))
    buckets = {tenant.settings.name: Bucket(limiter, tenant.settings.name) for tenant in gateway.tenants}
    said = []
    for now, name, tokens in traffic:
        bucket = buckets[name]
        bucket.now, bucket.tokens = now, tokens
        tenant = next(each for each in gateway.tenants if each.settings.name == name)
        tenant.bucket = bucket  # type: ignore[assignment]
        try:
            gateway.admit(tenant)
            said.append("200")
        except ApiError as error:
            said.append(f"{error.status}, again in {error.headers['Retry-After']} s")
    return said


@check(LAB)
def the_gateway_answers_by_it(learner: Learner) -> None:
    """In the gateway, requests of two tenants get the statuses and the Retry-After of the rules."""
    rng = Random(2)
    traffic = [(0.2 * at, rng.choice("aab"), rng.choice([40, 150, 390])) for at in range(40)]
    ours, yours = (admissions(each, traffic) for each in (Ledger(*RATES), learner.new("RateLimiter", *RATES)))
    for request, right, said in zip(traffic, ours, yours, strict=True):
        if right != said:
            raise Failed(
                f"the request got {said}; by the rules it is {right}",
                example=f"take{request} after those before",
            )
