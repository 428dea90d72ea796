"""Record a simulated fleet's routing: for each request the replica, the reason, and the replicas as seen by the router.

    fleet = Fleet(make_engine, 4, make_router(name), log=(log := RouteLog(name, interval=0.1)))
    fleet.run(workload);  log.save(path)

Between decisions the log looks at every replica's queue and KV cache at a fixed interval. Looking changes nothing:
replicas run the same steps, whenever they are advanced.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from engine.config import ConfigError
from engine.core.request import Request
from engine.sim.router import BoundedLoad, PrefixAffinity, Replica, Router, bound
from engine.sim.workload import SimRequest
from prep_common.paths import write_atomically
from prep_common.text import counted

FORMAT = "prep routes 1"
MAX_SAMPLES = 2000
"""Looks at the replicas; from then on the interval doubles, and every second look is dropped."""
Kind = Literal["prefix", "adapter", "load", "turn", "ring", "only"]


@dataclass(frozen=True)
class Seen:
    """A ready replica at a decision."""

    replica: int
    load: int
    """Unfinished requests."""
    hit: int
    """The part of the prompt in its cache, in the log's unit."""


@dataclass(frozen=True)
class Choice:
    """One request and the replica that it was sent to."""

    time: float
    request: int | str
    prefix: int
    """Number of its common prefix; -1: none."""
    prompt: int
    """Tokens; 0: unknown."""
    replica: int
    kind: Kind
    reason: str
    seen: list[Seen]


@dataclass(frozen=True)
class Sample:
    """Levels of all replicas at one time."""

    time: float
    running: list[int]
    waiting: list[int]
    kv: list[float]
    """Share of the KV cache in use; empty: unknown."""


@dataclass
class RouteLog:
    """Decisions and levels of one run, in order of time."""

    router: str
    interval: float
    """Seconds between looks at the replicas."""
    choices: list[Choice] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    unit: str = "blocks"
    """Unit of the hits."""
    names: list[str] = field(default_factory=list)
    """Names of the replicas; empty: their numbers."""
    _next: float = 0.0

    def look_until(self, when: float, replicas: Sequence[Replica]) -> None:
        """Advance the replicas to each time to look at them, up to `when`."""
        while self._next <= when:
            self.look(replicas)

    def look(self, replicas: Sequence[Replica]) -> None:
        """Look at the replicas at the next time."""
        for replica in replicas:
            replica.engine.run_until(self._next)
        schedulers = [replica.engine.scheduler for replica in replicas]
        self.samples.append(
            Sample(
                self._next,
                [len(scheduler.running) for scheduler in schedulers],
                [len(scheduler.waiting) for scheduler in schedulers],
                [round(scheduler.kv.usage, 4) for scheduler in schedulers],
            )
        )
        if len(self.samples) >= MAX_SAMPLES:
            del self.samples[1::2]
            self.interval *= 2
        self._next = self.samples[-1].time + self.interval

    def note(
        self,
        request: SimRequest,
        core: Request,
        chosen: Replica,
        looked_at: Sequence[Replica],
        router: Router,
    ) -> None:
        """Record a decision, before the request is queued. looked_at: the replicas that the router chose from."""
        for replica in looked_at:
            replica.engine.run_until(request.arrival)
        seen = [Seen(replica.index, replica.load, replica.hit(core)) for replica in looked_at]
        kind, reason = why(self.router, chosen, looked_at, seen, request, router)
        self.choices.append(
            Choice(
                round(request.arrival, 6), request.index, request.prefix_id, request.prompt_len, chosen.index, kind,
                reason, seen,
            )
        )  # fmt: skip

    def save(self, path: Path) -> None:
        """Write one JSON object."""
        content = {
            "format": FORMAT,
            "router": self.router,
            "interval": self.interval,
            "unit": self.unit,
            "names": self.names,
            "choices": [asdict(choice) for choice in self.choices],
            "samples": [asdict(sample) for sample in self.samples],
        }
        write_atomically(path, json.dumps(content) + "\n")


def why(
    policy: str,
    chosen: Replica,
    ready: Sequence[Replica],
    seen: Sequence[Seen],
    request: SimRequest,
    router: Router,
) -> tuple[Kind, str]:
    """Return the reason for a choice, as a kind and as words."""
    if len(ready) == 1:
        return "only", "the only replica that is ready"
    mine = next(replica for replica in seen if replica.replica == chosen.index)
    if policy == "round-robin":
        return "turn", "its turn"
    if policy == "least-loaded":
        return "load", f"fewest unfinished requests: {mine.load}"
    if policy == "two-choices":
        return "load", f"the less loaded of two random replicas: {mine.load} unfinished requests"
    if policy == "token-aware":
        return "load", f"fewest tokens of unfinished requests: {chosen.tokens:,}"
    if isinstance(router, PrefixAffinity):
        return _by_prefix(mine, seen, router.most_ahead)
    if isinstance(router, BoundedLoad):
        owner = router.in_order(request, ready)[0]
        if owner.index != mine.replica:
            most = bound(ready, router.factor)
            return (
                "load",
                f"replica {owner.index}, first on the ring, has its bound of {most} unfinished requests",
            )
        return "ring", "first on the ring, within the bound"
    return "ring", "first on the ring"


def _by_prefix(mine: Seen, seen: Sequence[Seen], most_ahead: int) -> tuple[Kind, str]:
    least = min(replica.load for replica in seen)
    best = max(seen, key=lambda replica: replica.hit)
    if best.hit > mine.hit:
        ahead = best.load - least
        return "load", (
            f"replica {best.replica} has {counted(best.hit, 'block')} of the prompt, but {ahead} unfinished "
            f"requests more than the least loaded; at most {most_ahead} are allowed"
        )
    if mine.hit:
        return "prefix", f"its cache holds {counted(mine.hit, 'block')} of the prompt"
    return "load", f"no replica has the prefix; fewest unfinished requests: {mine.load}"


def read_routes(text: str) -> RouteLog:
    """Return a saved log. Raises ConfigError if the text is not one."""
    try:
        content: dict[str, Any] = json.loads(text)
        if content["format"] != FORMAT:
            raise ConfigError(
                f"format {content['format']!r} is unknown; record again with prep sim fleet --routes"
            )
        choices = [
            Choice(**{**entry, "seen": [Seen(**replica) for replica in entry["seen"]]})
            for entry in content["choices"]
        ]
        samples = [Sample(**entry) for entry in content["samples"]]
        log = RouteLog(str(content["router"]), float(content["interval"]), choices, samples)
        log.unit, log.names = str(content["unit"]), [str(name) for name in content["names"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"not a file of prep sim fleet --routes ({type(error).__name__}: {str(error)[:120]}); record one with it"
        ) from None
    if not log.choices or not log.samples:
        raise ConfigError("the file has no decisions; record at least one request")
    _check(log)
    return log


def _check(log: RouteLog) -> None:
    """Raise ConfigError if a value cannot be drawn."""
    most = max((len(sample.running) for sample in log.samples), default=0)
    if log.names and len(log.names) != most:
        raise ConfigError(f"the file names {counted(len(log.names), 'replica')} and has levels of {most}")
    for choice in log.choices:
        for index in (choice.replica, *(seen.replica for seen in choice.seen)):
            if not (isinstance(index, int) and 0 <= index < most):
                raise ConfigError(f"request {choice.request!r} names replica {index!r}; there are {most}")
        if choice.kind not in get_args(Kind):
            raise ConfigError(f"request {choice.request!r} has a reason of the unknown kind {choice.kind!r}")
        numbers = (choice.time, choice.prefix, choice.prompt, *(seen.load for seen in choice.seen))
        if not all(isinstance(number, (int, float)) and math.isfinite(number) for number in numbers):
            raise ConfigError(f"the decision on request {choice.request!r} has a value that is not a number")
    for sample in log.samples:
        levels = [*sample.running, *sample.waiting, *sample.kv, sample.time]
        if not all(isinstance(level, (int, float)) and math.isfinite(level) for level in levels):
            raise ConfigError(f"the levels at {sample.time!r} s are not all numbers")
        if not len(sample.running) == len(sample.waiting) == (len(sample.kv) or len(sample.running)):
            raise ConfigError(f"the levels at {sample.time!r} s differ in their number of replicas")
