"""Routing policies: choose the replica for the next request.

    round-robin        in turn: even counts, and a conversation's prefix is cached wherever it last happened to be
    least-loaded       fewest unfinished requests
    two-choices        the less loaded of two random replicas: nearly as even, and looks at two replicas only
    token-aware        fewest tokens still to compute or hold: long prompts count for more
    prefix-affinity    where the longest prefix is cached, unless that replica is far busier than the idlest one
    consistent-hash    by the prefix's name on a ring: stable when replicas come and go, blind to load
    bounded-load       the ring, with at most c times the average load per replica
    lora-affinity      where the requested adapter is loaded, within the same bound; the gateway's only

A policy sees of a replica its `load`, `tokens` and `hit`, so the gateway (engine/gateway) routes by the same ones.
Sources: two choices, Mitzenmacher 2001 ("The power of two choices in randomized load balancing");
consistent hashing with bounded loads, Mirrokni, Thorup and Zadimoghaddam 2018 (arXiv 1608.01350);
prefix-affinity as in SGLang's router (cache-aware, with a switch to balancing).
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from random import Random
from typing import Any, Literal, Protocol, TypeVar

from engine.core.request import Request
from engine.sim.engine import SimEngine
from engine.sim.hardware import look_up
from engine.sim.recorder import RequestRecord


@dataclass(eq=False)
class Replica:
    """One engine and its state in the fleet."""

    index: int
    engine: SimEngine
    state: Literal["starting", "ready", "draining", "stopped"] = "ready"
    started: float = 0.0  # time from which the replica is billed
    ready_at: float = 0.0
    stopped: float | None = None
    num_requests: int = 0

    @property
    def load(self) -> int:
        """Unfinished requests."""
        return self.engine.num_unfinished

    @property
    def tokens(self) -> int:
        """Known tokens of its unfinished requests; a router does not know the length of outputs."""
        return sum(request.num_tokens for request in self.engine.scheduler.requests.values())

    def hit(self, core: Request) -> int:
        """Return the blocks of the prompt that it caches."""
        kv = self.engine.scheduler.kv
        kv.add(core)  # hashes the prompt the first time; equal in all replicas
        return kv.match(core).num_blocks

    def submit(self, core: Request, record: RequestRecord, now: float) -> None:
        """Queue a request on the engine and count it unless it is rejected."""
        self.num_requests += self.engine.submit(core, record, now) is not None

    def report(self) -> ReplicaReport:
        recorder = self.engine.recorder
        return ReplicaReport(
            self.index,
            self.num_requests,
            recorder.num_generated_tokens,
            recorder.prefix_hits / recorder.prefix_queries if recorder.prefix_queries else 0.0,
            recorder.step_seconds,
            recorder.num_preemptions,
            self.started,
            self.stopped,
        )


@dataclass
class ReplicaReport:
    index: int
    num_requests: int
    output_tokens: int
    prefix_cache_hit_rate: float
    busy_seconds: float
    preemptions: int
    started: float
    stopped: float | None


class Target(Protocol):
    """A replica as a policy sees it."""

    index: int

    @property
    def load(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    def hit(self, core: Any) -> int: ...


class Routed(Protocol):
    """A request as a policy sees it."""

    @property
    def route_key(self) -> str:
        """Equal for requests that should share a replica's cache."""
        ...


R = TypeVar("R", bound=Target)


class AdapterTarget(Target, Protocol):
    """A replica of which the adapters are known."""

    def adapter(self, core: Any) -> int:
        """Return a larger number, the less it costs to have the request's adapter there."""
        ...


A = TypeVar("A", bound=AdapterTarget)


class Router(Protocol):
    needs_state: bool  # `choose` reads loads or caches: the replicas must first advance to the present

    # A router may also have `narrow(ready)`: the replicas that its next choice looks at. Only these advance.

    def choose(self, request: Routed, core: Any, ready: Sequence[R]) -> R:
        """Return one of the ready replicas. core: what `hit` of a replica takes."""
        ...


def load_of_replica(replica: Target) -> int:
    return replica.load


def tokens_of_replica(replica: Target) -> int:
    return replica.tokens


class RoundRobin:
    needs_state = False

    def __init__(self) -> None:
        self._turn = count()

    def choose(self, request: Routed, core: Any, ready: Sequence[R]) -> R:
        return ready[next(self._turn) % len(ready)]


class LeastLoaded:
    needs_state = True

    def choose(self, request: Routed, core: Any, ready: Sequence[R]) -> R:
        return min(ready, key=load_of_replica)


class TwoChoices:
    needs_state = True

    def __init__(self) -> None:
        self._rng = Random(0)

    def narrow(self, ready: Sequence[R]) -> Sequence[R]:
        """Return two different random replicas, or all if there are fewer than three."""
        if len(ready) < 3:
            return ready
        first, second = self._rng.randrange(len(ready)), self._rng.randrange(len(ready) - 1)
        return [ready[first], ready[second + (second >= first)]]

    def choose(self, request: Routed, core: Any, ready: Sequence[R]) -> R:
        return min(self.narrow(ready), key=load_of_replica)


class TokenAware:
    needs_state = True

    def choose(self, request: Routed, core: Any, ready: Sequence[R]) -> R:
        return min(ready, key=tokens_of_replica)


class PrefixAffinity:
    """Choose the longest prefix hit, then the least loaded replica."""

    needs_state = True

    def __init__(self, most_ahead: int = 16) -> None:
        self.most_ahead = most_ahead  # maximum excess of unfinished requests over the least loaded replica

    def choose(self, request: Routed, core: Any, ready: Sequence[R]) -> R:
        idlest = min(ready, key=load_of_replica)
        limit = load_of_replica(idlest) + self.most_ahead
        allowed = [replica for replica in ready if load_of_replica(replica) <= limit]
        return max(allowed, key=lambda replica: (replica.hit(core), -load_of_replica(replica)))


class ConsistentHash:
    """Map a key to the next point clockwise on a ring with several points for each replica."""

    needs_state = False

    def choose(self, request: Routed, core: Any, ready: Sequence[R]) -> R:
        return self.in_order(request, ready)[0]

    def in_order(self, request: Routed, ready: Sequence[R]) -> list[R]:
        """Return the replicas in ring order from the key's position."""
        ring = _ring(tuple(replica.index for replica in ready))
        start = bisect_right(ring, (_point(request.route_key), -1))
        by_index = {replica.index: replica for replica in ready}
        order = dict.fromkeys(index for _, index in ring[start:] + ring[:start])
        return [by_index[index] for index in order]


class BoundedLoad(ConsistentHash):
    needs_state = True

    def __init__(self, factor: float = 1.25) -> None:
        self.factor = factor

    def choose(self, request: Routed, core: Any, ready: Sequence[R]) -> R:
        """Return the first replica on the ring within `factor` times the average, this request included."""
        most = bound(ready, self.factor)
        return next(replica for replica in self.in_order(request, ready) if load_of_replica(replica) < most)


class LoraAffinity:
    """Choose a replica that has the adapter, then one with a free slot for it, unless it is over the bound.

    Requests for the base model go to the least loaded replica. Simulated replicas have no adapters, so the gateway
    alone offers this policy. Source: the LoRA scorer of the Gateway API inference extension; the bound is ours.
    """

    needs_state = True

    def __init__(self, factor: float = 1.25) -> None:
        self.factor = factor

    def choose(self, request: Routed, core: Any, ready: Sequence[A]) -> A:
        most = bound(ready, self.factor)
        allowed = [replica for replica in ready if load_of_replica(replica) < most]
        return max(allowed, key=lambda replica: (replica.adapter(core), -load_of_replica(replica)))


def bound(ready: Sequence[Target], factor: float = 1.25) -> int:
    """Return the unfinished requests that a replica may have at most, the next one included."""
    return math.ceil(factor * (sum(map(load_of_replica, ready)) + 1) / len(ready))


def _point(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


@cache
def _ring(indices: tuple[int, ...]) -> list[tuple[int, int]]:
    return sorted((_point(f"replica-{index}-{number}"), index) for index in indices for number in range(64))


ROUTERS: dict[str, type[Router]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "two-choices": TwoChoices,
    "token-aware": TokenAware,
    "prefix-affinity": PrefixAffinity,
    "consistent-hash": ConsistentHash,
    "bounded-load": BoundedLoad,
}


GATEWAY_ROUTERS: dict[str, Any] = {**ROUTERS, "lora-affinity": LoraAffinity}


def make_router(name: str, routers: dict[str, Any] = ROUTERS) -> Router:
    return look_up("router", name, routers)()  # type: ignore[no-any-return]
