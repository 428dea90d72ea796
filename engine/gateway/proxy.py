"""Send a request to its backend and the answer back, event by event; retry, fall back, shadow.

A request may be tried again until the first byte of an answer has come: later, the client has seen part of it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx

from engine.gateway.backend import Backend, GatewayRequest, by_name
from engine.gateway.budgeter import Trimmed, estimated_tokens, trim
from engine.gateway.canary import CanaryWatch, share_of
from engine.gateway.config import BackendSettings, GatewaySettings, TenantSettings
from engine.gateway.kv_index import KVIndex, PromptTokens, follow
from engine.gateway.limits import CircuitBreaker, DailyQuota, RetryBudget, TokenBucket
from engine.gateway.metrics import GatewayMetrics, status_class
from engine.gateway.route import Decision, Route
from engine.gateway.sending import UNANSWERED, Failure, Sending, encoded, headers_for
from engine.server.answers import body_fault, json_object
from engine.server.errors import ApiError
from engine.server.pools import Pools
from prep_common.text import counted

logger = logging.getLogger(__name__)

KEPT = 10_000
"""Decisions in memory."""
OF_PROMPT = (
    "model", "prompt", "messages", "tools", "add_special_tokens", "add_generation_prompt", "continue_final_message",
    "chat_template", "chat_template_kwargs",
)  # fmt: skip
"""Fields that decide a prompt's tokens."""


@dataclass
class Tenant:
    """A client's limits and use."""

    settings: TenantSettings
    bucket: TokenBucket | None = None
    quota: DailyQuota | None = None
    num_requests: int = 0
    num_tokens: int = 0

    @classmethod
    def of(cls, settings: TenantSettings) -> Tenant:
        rate, per_day = settings.requests_per_s, settings.tokens_per_day
        bucket = None if rate is None else TokenBucket(rate, settings.burst)
        return cls(settings, bucket, None if per_day is None else DailyQuota(per_day))


@dataclass
class Shadowed:
    """Comparison of the shadow's answers with those that were served."""

    num_compared: int = 0
    num_different: int = 0
    num_failed: int = 0
    last_difference: dict[str, Any] = field(default_factory=dict)


class Gateway:
    """Backends behind one address. Used from one event loop."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.num_arrivals = 0
        """Requests so far, those that no backend answered included."""
        self.num_held = 0
        """Requests that wait for a backend now."""
        self._numbers, self._came = count(), asyncio.Event()
        self.backends = [self._backend(backend) for backend in settings.backends]
        self.route = Route(self.backends, settings.policy, settings.canary)
        watch = None if settings.canary is None else settings.canary.watch
        self.canary_watch = None if watch is None else CanaryWatch(watch)
        self.tenants = [Tenant.of(tenant) for tenant in settings.tenants]
        self.decisions: OrderedDict[str, Decision] = OrderedDict()
        self.shadowed = Shadowed()
        fallback = settings.fallback
        self.metrics = GatewayMetrics(self.backends, None if fallback is None else fallback.name)
        self._retries = RetryBudget(settings.retries.budget, settings.retries.least_per_s)
        per_minute = settings.fallback_per_minute
        self._fallback_bucket = TokenBucket(per_minute / 60, per_minute) if per_minute else None
        self._background: set[asyncio.Task[Any]] = set()
        self._followers: dict[str, asyncio.Task[None]] = {}
        self.client = httpx.AsyncClient(transport=Pools(), timeout=settings.timeout_s)

    def _breaker(self) -> CircuitBreaker:
        return CircuitBreaker(self.settings.breaker.failures, self.settings.breaker.open_s)

    def _backend(self, settings: BackendSettings) -> Backend:
        index_of_kv = None if settings.kv_events is None else KVIndex()
        return Backend(next(self._numbers), settings, self._breaker(), index_of_kv=index_of_kv)

    # -- backends that come and go

    def add(self, settings: BackendSettings) -> Backend:
        """Route requests to one more backend, which must answer already. Raises ApiError 409 if its name is taken."""
        if settings.name in by_name(self.backends):
            raise ApiError(409, f"backend {settings.name!r} exists", param="name")
        backend = self._backend(settings)
        self.backends.append(backend)
        self.metrics.add(backend.name)
        self._follow(backend)
        self._came.set()
        return backend

    def drain(self, name: str) -> Backend:
        """Send a backend no more requests. Raises ApiError 404 if there is none of this name."""
        backend = by_name(self.backends).get(name)
        if backend is None:
            names = ", ".join(by_name(self.backends)) or "none"
            raise ApiError(404, f"no backend {name!r}; there are: {names}", param="name")
        backend.is_draining = True
        return backend

    def remove(self, name: str) -> None:
        """Forget a backend. Its requests under way go on. Raises ApiError 404."""
        self.backends.remove(self.drain(name))
        if (follower := self._followers.pop(name, None)) is not None:
            follower.cancel()

    async def until_backend(self) -> None:
        """Wait until a backend may answer, if the settings hold requests. Raises ApiError 503."""
        hold = self.settings.hold
        if hold is None or self._has_backend():
            return
        if self.num_held >= hold.most:
            raise unanswered(503, f"no backend can answer, and {hold.most} requests wait for one already")
        self.num_held += 1
        try:
            async with asyncio.timeout(hold.timeout_s):
                while not self._has_backend():
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            raise unanswered(503, f"no backend came within {hold.timeout_s:g} s") from None
        finally:
            self.num_held -= 1

    def _has_backend(self) -> bool:
        return any(backend.is_healthy and not backend.is_draining for backend in self.backends)

    # -- before a request is sent

    def tenant_of(self, authorization: str) -> Tenant | None:
        """Return the tenant of a key; None if the gateway has no tenants. Raises ApiError 401."""
        if not self.tenants:
            return None
        matches = [tenant for tenant in self.tenants if is_key(authorization, tenant.settings.api_key)]
        if not matches:
            raise ApiError(401, "give your key as Authorization: Bearer KEY")
        return matches[0]

    def check_admin(self, authorization: str) -> None:
        """Raise ApiError 401 unless the key opens /gateway/*."""
        key = self.settings.admin_key
        if key is None and self.tenants:
            raise ApiError(401, "closed: this gateway has tenants and no admin_key in its settings")
        if key is not None and not is_key(authorization, key):
            raise ApiError(401, "give the admin_key as Authorization: Bearer KEY")

    def admit(self, tenant: Tenant | None) -> None:
        """Raise ApiError 429 if the tenant is over one of its limits."""
        if tenant is None:
            return
        if tenant.bucket is not None and (wait := tenant.bucket.take(time.monotonic())) > 0:
            raise ApiError(
                429,
                f"more than {tenant.settings.requests_per_s:g} requests/s of tenant {tenant.settings.name!r}",
                retry_after_s=max(1, round(wait)),
            )
        if tenant.quota is not None and not tenant.quota.left(time.time()):
            raise ApiError(
                429,
                f"tenant {tenant.settings.name!r} has used its {tenant.quota.limit:,} tokens of today",
                retry_after_s=int(tenant.quota.seconds_to_next(time.time())) + 1,
            )
        tenant.num_requests += 1

    def count_tokens(self, tenant: Tenant | None, count: int) -> None:
        """Count the tokens of an answer against the tenant's quota."""
        if tenant is not None:
            tenant.num_tokens += count
            self.metrics.tokens.labels(tenant.settings.name).inc(count)
            if tenant.quota is not None:
                tenant.quota.add(time.time(), count)

    def count_response(self, tenant: Tenant | None, status: int) -> None:
        """Count what a client was answered, at the end of the answer."""
        name = "" if tenant is None else tenant.settings.name
        self.metrics.responses.labels(name, status_class(status)).inc()

    def within_budget(self, body: dict[str, Any]) -> Trimmed | None:
        """Trim the messages of a body to the budget; return what that took. Raises ApiError 400 for a long text."""
        limit, messages = self.settings.max_prompt_tokens, body.get("messages")
        if limit is None or estimated_tokens(messages or body.get("prompt") or "") <= limit:
            return None
        if not isinstance(messages, list):
            raise ApiError(400, f"the prompt has more than {limit} tokens by estimate", param="prompt")
        if not all(isinstance(message, dict) for message in messages):
            raise ApiError(400, "messages must be a list of objects with role and content", param="messages")
        trimmed = trim(messages, limit)
        body["messages"] = trimmed.messages
        return trimmed

    async def prompt_of(self, body: dict[str, Any]) -> PromptTokens | None:
        """Return the prompt's tokens, of which a backend with KV events is asked; None if that is of no use."""
        has_prompt = ("messages" in body or "prompt" in body) and "truncate_prompt_tokens" not in body
        if self.settings.policy != "prefix-affinity" or not has_prompt:
            return None
        model, prompt, salt = body.get("model"), body.get("prompt"), body.get("cache_salt")
        askable = [
            backend
            for backend in self.backends
            if backend.index_of_kv is not None
            and backend.index_of_kv.is_known
            and backend.is_healthy
            and backend.serves(model if isinstance(model, str) else None)
        ]
        if not askable or salt is not None and not isinstance(salt, str):
            return None
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
            prompt = prompt[0]
        if not isinstance(prompt, list):
            asked = {name: body[name] for name in OF_PROMPT if name in body}
            prompt = await self._tokenize(askable[0], asked | ({} if prompt is None else {"prompt": prompt}))
        if not all(isinstance(token, int) and 0 <= token < 2**63 for token in prompt):
            return None
        return PromptTokens(tuple(prompt), salt or None) if prompt else None

    async def _tokenize(self, backend: Backend, body: dict[str, Any]) -> list[Any]:
        """Return the tokens by the tokenizer and the template of a backend, none if it does not answer."""
        settings = backend.settings
        try:
            response = await self.client.post(
                settings.url + "/tokenize", content=encoded(body), headers=headers_for(settings),
                timeout=self.settings.health.timeout_s,
            )  # fmt: skip
            return list(response.raise_for_status().json()["tokens"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            logger.info("backend %s did not tokenize: %s", backend.name, type(error).__name__)
            return []

    # -- sending

    async def send(
        self, path: str, body: dict[str, Any], request: GatewayRequest, trimmed: Trimmed | None
    ) -> Sending:
        """Send to the chosen backend, to others if it fails before its first byte, at last to the fallback."""
        self._retries.request(time.monotonic())
        backend, decision = self.route.decide(request, time.monotonic())
        if trimmed is not None:
            decision.trimmed = {
                "before": trimmed.num_before, "after": trimmed.num_after, "dropped": trimmed.num_dropped,
                "prefix_tokens_lost": trimmed.num_prefix_tokens_lost,
            }  # fmt: skip
        self._keep(decision)
        failed: list[tuple[Sending, Failure]] = []
        why = ""
        while backend is not None:
            sending = Sending(self.client, self.metrics, backend, request, decision, self._watch_canary)
            failure = await sending.open(path, body)
            if failure is None:
                self._shadow(path, body, request, backend)
                return sending
            failed.append((sending, failure))
            tried = [sent.backend for sent, _ in failed]
            backend, another = self.route.decide(request, time.monotonic(), tried)
            if backend is not None and (why := self._no_retry([reason for _, reason in failed])):
                break
            if backend is not None:
                another.trimmed, decision = decision.trimmed, another
                self._keep(decision)
                self.metrics.retries.inc()
        return await self._fall_back(path, body, request, decision, why or "no backend can answer", failed)

    def _no_retry(self, failures: Sequence[Failure]) -> str:
        """Return why another backend is not asked though there is one; empty if it is, which takes from the budget."""
        most = self.settings.retries.most
        if len(failures) > most:
            return f"{counted(len(failures), 'backend')} failed, and retries.most is {most}"
        if sum(failure.status == 500 for failure in failures) > 1:
            return "two backends answered HTTP 500, which may be the request's fault"
        if not self._retries.take(time.monotonic()):
            return "a backend failed, and the retry budget is used up"
        return ""

    async def _fall_back(
        self,
        path: str,
        body: dict[str, Any],
        request: GatewayRequest,
        decision: Decision,
        why: str,
        failed: Sequence[tuple[Sending, Failure]],
    ) -> Sending:
        """Ask the fallback. Without one, or if its rate is used up, return the last backend's own error.

        Raises ApiError 502, 503 or 504 if there is no such error.
        """
        settings = self.settings.fallback
        bucket = self._fallback_bucket
        if settings is None or bucket is None or bucket.take(time.monotonic()) > 0:
            if failed and failed[-1][1].is_answer:
                return failed[-1][0]
            why += "" if settings is None else ", and the fallback's rate is used up"
            if not failed:
                raise unanswered(503, f"{why}: {decision.sentence()}")
            raise unanswered(failed[-1][1].status, f"{why}; the last one failed: {failed[-1][1].what}")
        backend = Backend(-1, settings, self._breaker())
        decision.backend, decision.reason = settings.name, "fallback: no backend can answer"
        self.metrics.fallbacks.inc()
        sending = Sending(self.client, self.metrics, backend, request, decision)
        failure = await sending.open(path, body)
        if failure is not None and not failure.is_answer:
            raise unanswered(failure.status, f"{why}, and the fallback failed: {failure.what}")
        return sending

    def _keep(self, decision: Decision) -> None:
        self.decisions[decision.request_id] = decision
        self.decisions.move_to_end(decision.request_id)
        while len(self.decisions) > KEPT:
            self.decisions.popitem(last=False)

    # -- canary

    def set_canary_share(self, share: float) -> None:
        """Change the canary's share at once; what its watch counted so far no longer counts. Needs a canary."""
        assert self.route.canary is not None
        self.route.canary = self.route.canary.model_copy(update={"share": share})
        if self.canary_watch is not None:
            self.canary_watch.restart()

    def _watch_canary(self, backend: Backend, failed: bool, latency_s: float | None) -> None:
        """Count an ended request; roll back if the canary is worse."""
        canary, watch = self.route.canary, self.canary_watch
        if canary is None or watch is None or not canary.share:
            return
        look = watch.add(backend.settings.version == canary.version, failed, latency_s)
        if look is None:
            return
        if not look.is_worse:
            logger.info("canary %s keeps its share of %g: %s", canary.version, canary.share, look.sentence())
            return
        logger.warning("canary %s is rolled back from %g: %s", canary.version, canary.share, look.sentence())
        self.metrics.canary_rollbacks.inc()
        self.set_canary_share(0.0)

    # -- shadow

    def _shadow(self, path: str, body: dict[str, Any], request: GatewayRequest, served: Backend) -> None:
        shadow = self.settings.shadow
        if shadow is None or shadow.backend == served.name or share_of(request.id) >= shadow.share:
            return
        if not path.endswith("/completions"):  # there is no text to compare
            return
        target = by_name(self.backends).get(shadow.backend)
        if target is None:
            return
        task = asyncio.create_task(self._compare(path, body, served.settings, target.settings))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _compare(
        self, path: str, body: dict[str, Any], served: BackendSettings, shadow: BackendSettings
    ) -> None:
        """Ask both again without a stream, and compare texts. Comparing means something for temperature 0."""
        plain = {**body, "stream": False}
        plain.pop("stream_options", None)
        try:
            answers = await asyncio.gather(
                *(self._texts(path, plain, settings) for settings in (served, shadow))
            )
        except httpx.HTTPError:
            self.shadowed.num_failed += 1
            return
        self.shadowed.num_compared += 1
        if answers[0] != answers[1]:
            self.shadowed.num_different += 1
            self.shadowed.last_difference = {served.name: answers[0], shadow.name: answers[1]}

    async def _texts(self, path: str, body: dict[str, Any], settings: BackendSettings) -> list[str]:
        """Return the texts of a whole answer. Raises httpx.HTTPError for any other."""
        response = await self.client.post(
            settings.url + path, content=encoded(body), headers=headers_for(settings)
        )
        content = json_object(response.raise_for_status().content)
        if (fault := body_fault(path, content)) is not None or content is None:
            raise httpx.RemoteProtocolError("no object" if fault is None else fault.what)
        return [
            choice["text"] if "text" in choice else str(choice["message"].get("content"))
            for choice in content["choices"]
        ]

    # -- health

    async def watch(self) -> None:
        """Ask every backend for its health, and follow its KV events, for ever."""
        for backend in self.backends:
            self._follow(backend)
        while True:
            await asyncio.gather(*map(self._look, list(self.backends)))
            await asyncio.sleep(self.settings.health.every_s)

    async def _look(self, backend: Backend) -> None:
        health = self.settings.health
        try:
            url = backend.settings.url + health.path
            response = await self.client.get(
                url, headers=headers_for(backend.settings), timeout=health.timeout_s
            )
            is_healthy = response.status_code == 200
        except httpx.HTTPError:
            is_healthy = False
        if is_healthy and not backend.is_healthy:
            backend.forget()
            self._follow(backend)
            self._came.set()
        if is_healthy != backend.is_healthy:
            logger.warning("backend %s is %s", backend.name, "healthy" if is_healthy else "unhealthy")
        backend.is_healthy = is_healthy
        knows_adapters = self.settings.policy == "lora-affinity" or backend.index_of_kv is not None
        if is_healthy and knows_adapters:
            await self._look_at_adapters(backend)

    def _follow(self, backend: Backend) -> None:
        """Follow the KV events of a backend from their start."""
        settings, index = backend.settings, backend.index_of_kv
        if index is None or settings.kv_events is None or self.settings.policy != "prefix-affinity":
            return
        if (before := self._followers.get(backend.name)) is not None:
            before.cancel()
        following = follow(index, settings.kv_events, settings.kv_events_replay)
        self._followers[backend.name] = asyncio.create_task(following)

    async def _look_at_adapters(self, backend: Backend) -> None:
        try:
            models, metrics = await asyncio.gather(
                *(
                    self.client.get(
                        backend.settings.url + path,
                        headers=headers_for(backend.settings),
                        timeout=self.settings.health.timeout_s,
                    )
                    for path in ("/v1/models", "/metrics")
                )
            )
            backend.adapters.tell(models.raise_for_status().json()["data"], metrics.text)
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            logger.warning("the adapters of backend %s are unknown: %s", backend.name, type(error).__name__)

    async def close(self) -> None:
        tasks = [*self._background, *self._followers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.client.aclose()


def is_key(authorization: str, key: str) -> bool:
    """Compare in constant time."""
    given = authorization.removeprefix("Bearer ").strip()
    return hmac.compare_digest(given.encode(errors="replace"), key.encode())


def unanswered(status: int, message: str) -> ApiError:
    """Return the error of a request that no backend has answered."""
    return ApiError(status, message, type=UNANSWERED[status], retry_after_s=2)
