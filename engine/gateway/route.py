"""Choose the backend of a request, and keep the reason.

    all --model--> --healthy--> --breaker--> --version (canary)--> --policy--> one
                                                     |
                     none left in the version: the others; none at all: the fallback, or 503

`Route.decide` is a function of the request and the state of the backends; what it looked at stays in the decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from engine.gateway.backend import ADAPTER_STATES, Backend, GatewayRequest
from engine.gateway.canary import share_of
from engine.gateway.config import CanarySettings
from engine.sim.router import GATEWAY_ROUTERS, Router, bound, make_router


@dataclass(frozen=True)
class Seen:
    """A backend at the moment of a decision."""

    name: str
    version: str
    load: int
    tokens: int
    hit: int
    """Beginning of the prompt that it caches."""
    unit: str
    """Unit of `hit`: "tokens" by its KV events, "tokens by estimate", or "chunks" that it was sent."""
    excluded: str = ""
    """Reason why it could not be chosen: "wrong model", "draining", "unhealthy", "breaker open", "tried", ..."""
    adapter: str = ""
    """State of the request's adapter there, if that is known."""

    @property
    def state(self) -> str:
        return f"load {self.load}, {self.adapter or f'{self.hit} {self.unit} cached'}"


@dataclass
class Decision:
    """Reason for the choice of a backend."""

    request_id: str
    tenant: str
    when: float
    policy: str
    backend: str | None
    """None: no backend could be chosen."""
    reason: str
    seen: list[Seen] = field(default_factory=list)
    trimmed: dict[str, int] | None = None
    """Figures of the budgeter, in estimated tokens."""
    ended: str = ""
    """"ok", "HTTP 500", "client left", ...; empty while it runs."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        """Return the decision as one sentence."""
        if self.backend is None:
            why = "; ".join(f"{seen.name}: {seen.excluded}" for seen in self.seen if seen.excluded)
            return f"{self.request_id}: no backend ({why or self.reason})"
        others = ", ".join(
            f"{seen.name} {seen.excluded or seen.state}" for seen in self.seen if seen.name != self.backend
        )
        return f"{self.request_id} went to {self.backend}: {self.reason}" + (
            f"; others: {others}" if others else ""
        )


class Route:
    """Chooses backends by a policy. `canary` may be replaced while requests run: a rollback is its share 0."""

    def __init__(self, backends: list[Backend], policy: str, canary: CanarySettings | None) -> None:
        """backends: the caller's list, which may change while requests run."""
        self.backends, self.policy, self.canary = backends, policy, canary
        self._router: Router = make_router(policy, GATEWAY_ROUTERS)

    def decide(
        self, request: GatewayRequest, now: float, tried: Sequence[Backend] = ()
    ) -> tuple[Backend | None, Decision]:
        """Return the backend, None if none can answer, and the decision. tried: backends that failed already."""
        excluded = {backend.name: self._excluded(backend, request, now, tried) for backend in self.backends}
        ready = [backend for backend in self.backends if not excluded[backend.name]]
        wanted, note = self._version(request, ready)
        if wanted is not None:
            for backend in ready:
                if backend.settings.version != wanted:
                    excluded[backend.name] = f"version {backend.settings.version}"
            ready = [backend for backend in ready if backend.settings.version == wanted]
        if self._router.needs_state:  # of equals, the one with the fewest requests so far
            ready.sort(key=lambda backend: (backend.num_requests, backend.index))
        chosen = self._router.choose(request, request, ready) if ready else None
        seen = [
            Seen(
                backend.name, backend.settings.version, backend.load, backend.tokens, backend.hit(request),
                _unit(backend, request), excluded[backend.name], ADAPTER_STATES[backend.adapter(request)],
            )
            for backend in self.backends
        ]  # fmt: skip
        reason = "no backend can answer" if chosen is None else self._reason(chosen, request, ready) + note
        name = chosen.name if chosen is not None else None
        return chosen, Decision(request.id, request.tenant, now, self.policy, name, reason, seen)

    def _excluded(
        self, backend: Backend, request: GatewayRequest, now: float, tried: Sequence[Backend]
    ) -> str:
        if backend in tried:
            return "tried"
        if not backend.serves(request.model):
            return "wrong model"
        if backend.is_draining:
            return "draining"
        if not backend.is_healthy:
            return "unhealthy"
        return "" if backend.breaker.allows(now) else "breaker open"

    def _version(self, request: GatewayRequest, ready: Sequence[Backend]) -> tuple[str | None, str]:
        """Return the version that this user gets, None for any, and a note for the reason."""
        if self.canary is None:
            return None, ""
        is_canary = share_of(request.user) < self.canary.share
        versions = {backend.settings.version for backend in ready}
        others = sorted(versions - {self.canary.version})
        wanted = self.canary.version if is_canary else (others[0] if others else None)
        if wanted in versions:
            side = "canary" if is_canary else "not canary"
            return wanted, f"; user {request.user!r} is {side} ({self.canary.share:.0%})"
        return None, "; its version has no backend left"

    def _reason(self, chosen: Backend, request: GatewayRequest, ready: Sequence[Backend]) -> str:
        if len(ready) == 1:
            return "the only one that can answer"
        hit = chosen.hit(request)
        return {
            "round-robin": "its turn",
            "least-loaded": f"fewest requests ({chosen.load})",
            "token-aware": f"fewest tokens ({chosen.tokens:,})",
            "prefix-affinity": _prefix_reason(chosen, request, hit),
            "consistent-hash": "the ring",
            "bounded-load": f"the ring, within the bound (load {chosen.load})",
            "lora-affinity": _adapter_reason(chosen, request, ready),
        }[self.policy]


def _unit(backend: Backend, request: GatewayRequest) -> str:
    if request.prompt is None:
        return "chunks"
    return "tokens" if backend.knows_cache_for(request) else "tokens by estimate"


def _prefix_reason(chosen: Backend, request: GatewayRequest, hit: int) -> str:
    if not hit:
        return f"no backend within the bound has the prefix; load {chosen.load}"
    if request.prompt is None:
        return f"{hit} of {len(request.chunks)} chunks of the prompt were sent there before"
    source = "by its KV events" if chosen.knows_cache_for(request) else "by estimate"
    return f"{hit} of {len(request.prompt.tokens)} prompt tokens are cached there {source}"


def _adapter_reason(chosen: Backend, request: GatewayRequest, ready: Sequence[Backend]) -> str:
    if not chosen.adapters.is_adapter(request.model):
        return f"no adapter asked for; fewest requests ({chosen.load})"
    if chosen.adapter(request) == 2:
        return f"adapter {request.model!r} is loaded there; load {chosen.load}"
    full = [
        backend.name for backend in ready if backend.adapter(request) == 2 and backend.load >= bound(ready)
    ]
    why = f"at their bound of {bound(ready)} requests: {', '.join(full)}" if full else "on no backend"
    slot = "a slot is free there" if chosen.adapter(request) == 1 else f"fewest requests ({chosen.load})"
    return f"adapter {request.model!r} is loaded {why}; {slot}"
