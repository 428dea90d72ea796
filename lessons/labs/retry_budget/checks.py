"""Checks of the lab retry-budget: single rules, random failures in fractions, an overloaded simulation, the gateway."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

from engine.sim.clients import Patience, Service, User
from engine.sim.fleet import Fleet
from engine.sim.memory import make_deployment
from engine.sim.router import make_router
from engine.sim.run import make_engine
from engine.sim.workload import SimRequest
from lessons.course.checking import Failed, Learner, check, refused, run_fewest, same, smallest
from lessons.labs.recording import recorded_engine

LAB = "retry-budget"
NOW = 1_800_000_000.0
SETTINGS: dict[str, Any] = {"share": 0.1, "reserve": 2.0, "most": 3, "base_s": 0.5, "cap_s": 4.0}
Op = tuple[Any, ...]
"""("request",), or ("retry", draw, arguments of retry ...)."""


class Ledger:
    """A second opinion: it keeps the history and works out the bucket from it, in fractions."""

    def __init__(self, random: Callable[[], float], **settings: float) -> None:
        self.random, self.settings = random, {name: Fraction(str(each)) for name, each in settings.items()}
        self.history: list[Fraction] = []
        """Change of the bucket by each call."""

    @property
    def level(self) -> Fraction:
        level = self.settings["reserve"]
        for change in self.history:
            level = min(self.settings["reserve"], level + change)
        return level

    def request(self) -> None:
        self.history.append(self.settings["share"])

    def retry(
        self,
        now: float,
        deadline: float,
        attempt: int,
        safe: bool,
        started: bool,
        status: int | None,
        retry_after: str | None = None,
    ) -> float | None:
        windows = [float(self.settings["base_s"])]
        while len(windows) < attempt:
            windows.append(min(float(self.settings["cap_s"]), 2 * windows[-1]))
        wait = self.asked(retry_after, now) + self.random() * windows[-1]
        reasons = (
            not safe,
            started,
            status not in {429, 502, 503, 504, None},
            attempt > self.settings["most"],
            now + wait >= deadline,
            self.level < 1,
        )
        if any(reasons):
            return None
        self.history.append(Fraction(-1))
        return wait

    @staticmethod
    def asked(header: str | None, now: float) -> float:
        text = "" if header is None else header.strip(" ")
        if text and set(text) <= set("0123456789"):
            return float(int(text))
        try:
            when = datetime.strptime(text, "%a, %d %b %Y %H:%M:%S GMT")
        except ValueError:
            return 0.0
        return max(0.0, (when - datetime(1970, 1, 1)).total_seconds() - now)


def failed(
    draw: float = 0.5,
    attempt: int = 1,
    *,
    now: float = NOW,
    left: float = 1e6,
    safe: bool = True,
    started: bool = False,
    status: int | None = 503,
    after: str | None = None,
) -> Op:
    """Return a call of retry. draw: what random gives. left: seconds to the deadline."""
    return ("retry", draw, now, now + left, attempt, safe, started, status, after)


def compare(learner: Learner, ops: Sequence[Op], **changed: float) -> None:
    """Give the calls to the learner's class and to the ledger; raise Failed at the first difference."""
    draw = [0.5]
    settings = SETTINGS | changed
    yours = learner.new("RetryPolicy", learner.callback(lambda: draw[0]), **settings)
    right = Ledger(lambda: draw[0], **settings)
    said = [f"RetryPolicy({', '.join(f'{name}={each:g}' for name, each in settings.items())})"]
    for name, *args in ops:
        if name == "request":
            said.append("request()")
            yours.request()
            right.request()
            continue
        draw[0] = args[0]
        said.append(f"retry{tuple(args[1:])} with random() = {args[0]:g}")
        same("the call gave", yours.retry(*args[1:]), right.retry(*args[1:]), said, within=1e-6)


@check(LAB)
def only_passing_failures_are_retried(learner: Learner) -> None:
    """Sent again are broken connections, 429, 502, 503 and 504; no other status, because it would fail again."""
    smallest(
        [None, 429, 502, 503, 504, 200, 400, 401, 404, 408, 422, 500, 501],
        lambda status: compare(learner, [failed(status=status)]),
    )


@check(LAB)
def an_answer_is_not_begun_twice(learner: Learner) -> None:
    """A request that may not run twice, or whose client has got a byte, is never sent again."""
    compare(learner, [failed(safe=False)])
    compare(learner, [failed(started=True), failed(started=True, status=None)])
    compare(learner, [failed(safe=False, status=None), failed(safe=False, started=True)])


@check(LAB)
def the_window_doubles_and_is_drawn_from(learner: Learner) -> None:
    """The wait is drawn from the whole window, 0 included; the window doubles with each attempt."""
    for draw in (0.0, 0.25, 0.999):
        compare(learner, [failed(draw, 1), failed(draw, 2), failed(draw, 3)], reserve=5.0)


@check(LAB)
def the_window_has_a_cap(learner: Learner) -> None:
    """The window is at most cap_s, also after a thousand attempts."""
    compare(learner, [failed(0.5, attempt) for attempt in (4, 5, 6, 40)], most=50, reserve=9.0)
    compare(learner, [failed(0.5, attempt) for attempt in (1100, 3000)], most=5000, reserve=9.0)


@check(LAB)
def attempts_are_counted(learner: Learner) -> None:
    """A request is retried at most `most` times; 0 means never."""
    compare(learner, [failed(attempt=3), failed(attempt=4)])
    compare(learner, [failed(attempt=1)], most=0)
    compare(learner, [failed(attempt=1), failed(attempt=2)], most=1)


@check(LAB)
def retry_after_is_honoured(learner: Learner) -> None:
    """The wait is Retry-After, in seconds or as a date, plus the drawn part; what cannot be read counts as absent."""
    when = 784_111_777.0
    date = "Sun, 06 Nov 1994 08:49:37 GMT"
    ops = [failed(after=after) for after in ("7", " 7 ", "0", "120", "", "soon", "-1", "1.5", "7 s", "²")]
    ops += [failed(after=date, now=when - 30), failed(after=date, now=when - 0.5), failed(0.0, after="3")]
    ops += [failed(after=date, now=when + 30), failed(after="Sun, 99 Nov 1994 08:49:37 GMT")]
    smallest(ops, lambda op: compare(learner, [op]))


@check(LAB)
def no_retry_starts_after_the_deadline(learner: Learner) -> None:
    """A retry that would start at the deadline or later is not made."""
    smallest([0.0, 0.125, 0.25, 0.375, -1.0], lambda left: compare(learner, [failed(left=left)]))
    compare(learner, [failed(after="9", left=9.25), failed(after="9", left=9.5), failed(after="9", left=5.0)])


@check(LAB)
def the_budget_is_a_share(learner: Learner) -> None:
    """The bucket starts with `reserve`; then ten requests at a share of 0.1 earn exactly one retry."""
    ten = [("request",)] * 10
    compare(learner, [failed()] * 3)
    compare(learner, [failed(), failed(), *ten[:9], failed(), ("request",), failed(), failed()])
    compare(learner, [failed(), failed(), *ten * 3, failed(), failed(), failed()])
    compare(learner, [failed(), failed()] + [*ten, failed(), failed()] * 5)
    compare(learner, [*ten * 5, failed(), failed(), failed()])
    compare(learner, [*ten, failed()], reserve=0.0)
    compare(learner, [failed(), *ten, failed()], share=0.0, reserve=1.0)


@check(LAB)
def a_refusal_takes_nothing(learner: Learner) -> None:
    """A failure that is not retried leaves the bucket as it is, whatever the reason."""
    refused = [
        failed(status=400),
        failed(safe=False),
        failed(started=True),
        failed(attempt=9),
        failed(left=0.1),
        failed(after="50", left=20),
    ]
    smallest(refused, lambda op: compare(learner, [op, op, op, failed(), failed(), failed()]))
    compare(learner, [failed(), failed(), failed(), failed(), *[("request",)] * 10, failed(), failed()])


@check(LAB)
def wrong_settings_are_refused(learner: Learner) -> None:
    """A share outside 0 to 1, a negative reserve or `most`, and windows of 0 or above the cap raise ValueError."""
    wrong: list[dict[str, float]] = [
        {"share": -0.1}, {"share": 1.1}, {"reserve": -1.0}, {"most": -1}, {"base_s": 0.0}, {"base_s": 5.0},
    ]  # fmt: skip
    for each in wrong:
        settings = SETTINGS | each
        refused(str(settings), learner.new, "RetryPolicy", learner.callback(lambda: 0.5), **settings)


@check(LAB)
def chance_is_asked_once(learner: Learner) -> None:
    """`random` is called once if the request may be repeated, also past the deadline, and otherwise never."""
    asked: list[int] = []

    def chance() -> float:
        asked.append(1)
        return 0.5

    policy = learner.new("RetryPolicy", learner.callback(chance), **(SETTINGS | {"reserve": 1.0, "most": 2}))
    for what, calls, args in (
        ("a retry", 1, (0.0, 100.0, 1, True, False, 503)),
        ("an empty bucket", 1, (0.0, 100.0, 1, True, False, 503)),
        ("a deadline that is over", 1, (50.0, 1.0, 1, True, False, 503)),
        ("a request that is not safe", 0, (0.0, 100.0, 1, False, False, 503)),
        ("an answer that has started", 0, (0.0, 100.0, 1, True, True, 503)),
        ("status 400", 0, (0.0, 100.0, 1, True, False, 400)),
        ("no retries left", 0, (0.0, 100.0, 3, True, False, 503)),
    ):
        asked.clear()
        policy.retry(*args)
        if len(asked) != calls:
            raise Failed(
                f"{what}: random was called {len(asked)} times; expected {calls}", example=f"retry{args}"
            )


@check(LAB)
def random_failures(learner: Learner) -> None:
    """100 random sequences of requests and failures: every answer is that of the rules."""
    rng = Random(8)

    def run(count: int) -> None:
        settings = {
            "share": rng.choice([0.1, 0.2, 0.5, 1.0]),
            "reserve": rng.choice([1.0, 3.0]),
            "most": rng.randint(1, 4),
        }
        ops: list[Op] = []
        for _ in range(count):
            if rng.random() < 0.5:
                ops.append(("request",))
                continue
            ops.append(
                failed(
                    rng.choice([0.0, 0.125, 0.75]),
                    rng.randint(1, 5),
                    left=rng.choice([0.2, 3.0, 1e6]),
                    safe=rng.random() < 0.9,
                    started=rng.random() < 0.1,
                    status=rng.choice([None, 429, 503, 503, 500]),
                    after=rng.choice([None, None, "1", "30", "soon"]),
                )
            )
        run_fewest(ops, lambda some: compare(learner, some, **settings))

    smallest([2 + number // 4 for number in range(100)], run)


# -- an overloaded replica


class Clients(Service):
    """Clients of a simulated fleet that ask a policy whether they try again. Abandoned attempts run on, unread."""

    policy: Any
    deadline_s: float

    def _send(self, user: User, now: float) -> None:
        if not user.num_attempts:
            self.policy.request()
        super()._send(user, now)

    def _lost(self, user: User, now: float) -> None:
        self.num_rejected += 1
        self._ask(user, now, 503, "1")

    def _again(self, user: User, now: float) -> None:
        self._ask(user, now, None, None)

    def _ask(self, user: User, now: float, status: int | None, after: str | None) -> None:
        user.answer = None
        deadline = NOW + user.request.arrival + self.deadline_s
        wait = self.policy.retry(NOW + now, deadline, user.num_attempts, True, False, status, after)
        if wait is None:
            user.gave_up = True
        elif isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait < math.inf:
            raise Failed(f"retry returned {wait!r}, which is not a number of seconds")
        else:
            self._at(now + wait, self._send, user)


def serve(
    policy: Any,
    requests: Sequence[SimRequest],
    *,
    timeout_s: float = 2.0,
    max_waiting: int = 0,
    replicas: int = 1,
    down_at: float = -1.0,
    path: Path | None = None,
) -> Clients:
    """Let clients with this policy send requests to simulated H100s of 8 slots until all have ended.

    max_waiting: a replica with so many waiting requests refuses more; 0: never. down_at: when a replica fails.
    path: where to record a trace of the first replica.
    """
    deployment = make_deployment(model="llama-3-8b", gpu="h100", max_num_seqs=8)
    fleet = Fleet(
        lambda: make_engine(deployment, enable_prefix_caching=False), replicas, make_router("least-loaded")
    )
    clients = Clients(fleet, Patience(timeout_s, cancel=False), max_waiting)
    clients.policy, clients.deadline_s = policy, 30.0
    with recorded_engine(path, fleet.replicas[0].engine):
        clients.serve(requests, requests[-1].arrival, down_at)
    return clients


def draws(seed: int) -> Callable[[], float]:
    return Random(seed).random


@check(LAB)
def a_storm_stays_within_the_budget(learner: Learner) -> None:
    """A replica gets far more than it can serve: retries stay at most the reserve and a tenth of the requests."""
    rng = Random(3)
    requests = [SimRequest(at, 0.04 * at, rng.randint(200, 900), rng.randint(60, 150)) for at in range(300)]
    settings = SETTINGS | {"reserve": 10.0}
    yours = serve(
        learner.new("RetryPolicy", learner.callback(draws(1)), **settings), requests, max_waiting=20
    )
    ours = serve(Ledger(draws(1), **settings), requests, max_waiting=20)
    retries = [each.num_attempts - len(each.users) for each in (yours, ours)]
    if retries[0] > 10 + 0.1 * len(requests):
        raise Failed(
            f"{retries[0]} retries of {len(requests)} requests; the budget allows {10 + len(requests) // 10}"
        )
    for at, (your, our) in enumerate(zip(yours.users, ours.users, strict=True)):
        if your.num_attempts != our.num_attempts:
            raise Failed(
                f"request {at} was sent {your.num_attempts} times; by the rules {our.num_attempts} times",
                example=f"300 requests within 12 s to a replica that answers about 115 of them, {settings}",
            )


# -- the gateway


class Budget:
    """The learner's policy where the gateway asks its own budget. Every attempt fails with 503, at a virtual time."""

    def __init__(self, policy: Any) -> None:
        self.policy, self.attempt = policy, 0

    def request(self, now: float) -> None:
        self.attempt = 0
        self.policy.request()

    def take(self, now: float) -> bool:
        self.attempt += 1
        return self.policy.retry(NOW, NOW + 60, self.attempt, True, False, 503, None) is not None


def calls_of_backends(policy: Any, healthy: Sequence[bool]) -> list[int]:
    """Return how many calls each request through the gateway made. healthy: whether the backends answer it."""
    import httpx

    from engine.gateway.backend import GatewayRequest
    from engine.gateway.config import GatewaySettings
    from engine.gateway.proxy import Gateway
    from engine.server.errors import ApiError

    calls, is_healthy = 0, True

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal calls
        calls += 1
        whole = {"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}]}
        return httpx.Response(200, json=whole) if is_healthy else httpx.Response(503, json={})

    async def run() -> list[int]:
        nonlocal is_healthy
        backends = [{"name": name, "url": f"http://{name}"} for name in "abcd"]
        settings = {"backends": backends, "retries": {"most": 9}, "breaker": {"failures": 10_000}}
        gateway = Gateway(GatewaySettings.model_validate(settings))
        await gateway.client.aclose()
        gateway.client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        gateway._retries = Budget(policy)  # type: ignore[assignment]
        made = []
        for at, is_healthy_now in enumerate(healthy):
            is_healthy, before = is_healthy_now, calls
            request = GatewayRequest.of(f"r{at}", "", body := {"model": "shop", "prompt": "Hello"})
            try:
                await (await gateway.send("/v1/completions", body, request, None)).close()
            except ApiError:
                pass
            made.append(calls - before)
        await gateway.close()
        return made

    return asyncio.run(run())


@check(LAB)
def the_gateway_obeys_it(learner: Learner) -> None:
    """In the gateway, an outage of all backends costs no more calls than the policy allows."""
    rng = Random(4)
    healthy = [True] * 10 + [False] * 30 + [rng.random() < 0.5 for _ in range(20)]
    settings = SETTINGS | {"reserve": 4.0, "share": 0.25}
    yours = calls_of_backends(learner.new("RetryPolicy", learner.callback(lambda: 0.5), **settings), healthy)
    ours = calls_of_backends(Ledger(lambda: 0.5, **settings), healthy)
    for at, (your, our) in enumerate(zip(yours, ours, strict=True)):
        if your != our:
            raise Failed(
                f"request {at} made {your} calls of backends; by the rules {our}",
                example=f"10 requests that pass, 30 during an outage, 20 with every second one failing; {settings}",
            )
