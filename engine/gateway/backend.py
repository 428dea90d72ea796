"""A backend and what the gateway knows about it: health, load, its adapters, and the prefixes that it caches."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from engine.gateway.budgeter import CHARACTERS_PER_TOKEN, estimated_tokens
from engine.gateway.config import BackendSettings
from engine.gateway.kv_index import KVIndex, PromptTokens
from engine.gateway.limits import CircuitBreaker

UNSUPPORTED = 501
"""Status of a request for what the engine does not do: not a fault of the backend, and no other one does better."""
CHUNK = 256
"""Characters of a prompt per remembered hash: a few blocks of tokens."""
REMEMBERED = 1 << 15
"""Chunks remembered per backend; the oldest are forgotten first."""


@dataclass(frozen=True)
class GatewayRequest:
    """A request as policies see it."""

    id: str
    tenant: str
    model: str | None
    user: str
    """Decides the canary's version: the request's `user`, or the tenant."""
    num_tokens: int
    """Estimated prompt tokens."""
    chunks: tuple[bytes, ...]
    """Hashes of the prompt's beginnings, shortest first."""
    prompt: PromptTokens | None = None
    """Its tokens, if a backend offers KV events."""

    @property
    def route_key(self) -> str:
        """The first chunk: equal for requests with one system prompt."""
        return self.chunks[0].hex() if self.chunks else self.id

    @classmethod
    def of(cls, request_id: str, tenant: str, body: dict[str, Any]) -> GatewayRequest:
        prompt = prompt_text(body)
        user = body.get("user")
        model = body.get("model")
        return cls(
            request_id,
            tenant,
            model if isinstance(model, str) else None,
            user if isinstance(user, str) and user else tenant or request_id,
            estimated_tokens(body.get("messages") or body.get("prompt") or ""),
            chunk_hashes(f"{model}\n{body.get('cache_salt', '')}\n{prompt}"),
        )


ADAPTER_STATES = {2: "adapter loaded", 1: "a slot free", 0: "", -1: "adapter not listed"}


@dataclass
class Adapters:
    """LoRA adapters of a backend, from its /v1/models, its /metrics and the requests that it was sent."""

    listed: dict[str, bool] | None = None
    """Names that it serves, and whether each is an adapter; None: not known yet."""
    num_slots: int = 1
    """Adapters that it holds on its device at once."""
    busy: frozenset[str] = frozenset()
    """Adapters of running and waiting requests, as of the last look."""
    _recent: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def use(self, name: str | None) -> None:
        """A request for this model was sent there: its adapter replaces the least recently used one."""
        if name is not None and self.is_adapter(name):
            self._recent[name] = None
            self._recent.move_to_end(name)
            while len(self._recent) > self.num_slots:
                self._recent.popitem(last=False)

    def is_adapter(self, name: str | None) -> bool:
        return name is not None and (self.listed or {}).get(name, False)

    def state(self, name: str | None) -> int:
        """Return a key of ADAPTER_STATES. 0 also for the base model, and if nothing is known."""
        if self.listed is None or name is None:
            return 0
        if name not in self.listed:
            return -1
        if not self.listed[name]:
            return 0
        loaded = self.busy | self._recent.keys()
        return 2 if name in loaded else int(len(loaded) < self.num_slots)

    def tell(self, models: Sequence[dict[str, Any]], metrics: str) -> None:
        """Take in the answers of /v1/models and /metrics. Raises KeyError or ValueError for others."""
        self.listed = {card["id"]: card.get("parent") is not None for card in models}
        samples = [
            sample
            for family in text_string_to_metric_families(metrics)
            if family.name == "vllm:lora_requests_info"
            for sample in family.samples
        ]
        if samples:  # vLLM keeps old series; the value is the time at which one was written
            labels = max(samples, key=lambda sample: sample.value).labels
            self.num_slots = max(1, int(labels["max_lora"]))
            both = f"{labels['running_lora_adapters']},{labels['waiting_lora_adapters']}"
            self.busy = frozenset(both.split(",")) - {""}
        for name in [model for model in self._recent if model not in self.listed]:
            del self._recent[name]

    def forget(self) -> None:
        """It started anew."""
        self.listed, self.busy = None, frozenset()
        self._recent.clear()


@dataclass
class Backend:
    """One server behind the gateway."""

    index: int
    settings: BackendSettings
    breaker: CircuitBreaker
    is_healthy: bool = True
    is_draining: bool = False
    """It finishes its requests and gets no new ones."""
    load: int = 0
    """Requests under way through this gateway."""
    tokens: int = 0
    """Their estimated prompt tokens."""
    num_requests: int = 0
    num_failed: int = 0
    adapters: Adapters = field(default_factory=Adapters)
    index_of_kv: KVIndex | None = None
    """None: it offers no KV events."""
    _chunks: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    @property
    def name(self) -> str:
        return self.settings.name

    def hit(self, request: GatewayRequest) -> int:
        """Return the tokens at the prompt's beginning that it caches; if they are not known, the chunks sent before."""
        if self.knows_cache_for(request):
            assert self.index_of_kv is not None and request.prompt is not None
            adapter = request.model if self.adapters.is_adapter(request.model) else None
            return self.index_of_kv.hit(request.prompt, adapter)
        chunks = next(
            (n for n, chunk in enumerate(request.chunks) if chunk not in self._chunks), len(request.chunks)
        )
        if request.prompt is None:
            return chunks
        return min(chunks * CHUNK // CHARACTERS_PER_TOKEN, len(request.prompt.tokens))

    def knows_cache_for(self, request: GatewayRequest) -> bool:
        """Whether `hit` is what its events say, not what it was sent."""
        return request.prompt is not None and self.index_of_kv is not None and self.index_of_kv.is_known

    def adapter(self, request: GatewayRequest) -> int:
        """Return how near the request's adapter is: a key of ADAPTER_STATES."""
        return self.adapters.state(request.model)

    def serves(self, model: str | None) -> bool:
        return model is None or self.settings.models is None or model in self.settings.models

    def begin(self, request: GatewayRequest, now: float) -> None:
        """A request goes to it."""
        self.breaker.begin(now)
        self.load += 1
        self.tokens += request.num_tokens
        self.num_requests += 1
        self.adapters.use(request.model)
        for chunk in reversed(request.chunks):  # forget the front of a prompt last
            self._chunks[chunk] = None
            self._chunks.move_to_end(chunk)
        while len(self._chunks) > REMEMBERED:
            self._chunks.popitem(last=False)

    def end(self, request: GatewayRequest, now: float, ok: bool | None) -> None:
        """The request has ended. ok: None if the client left, which says nothing about the backend."""
        self.load -= 1
        self.tokens -= request.num_tokens
        self.breaker.record(now, ok)
        self.num_failed += ok is False

    def forget(self) -> None:
        """It was away: its cache is empty now."""
        self._chunks.clear()
        self.adapters.forget()
        if self.index_of_kv is not None:
            self.index_of_kv.forget()


def prompt_text(body: dict[str, Any]) -> str:
    """Return what the prompt begins with, as one text; equal for equal prompts."""
    if "messages" in body:
        messages = body["messages"] if isinstance(body["messages"], list) else []
        return "\n".join(f"{_of(message, 'role')}: {_of(message, 'content')}" for message in messages)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
        return prompt[0]
    return str(prompt or "")


def chunk_hashes(text: str) -> tuple[bytes, ...]:
    """Hash every beginning of a text that is a multiple of CHUNK long."""
    hashes = []
    digest = hashlib.sha256()
    for start in range(0, len(text) - CHUNK + 1, CHUNK):
        digest.update(text[start : start + CHUNK].encode(errors="replace"))
        hashes.append(digest.digest()[:16])
    return tuple(hashes)


def _of(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, dict) else message


def by_name(backends: Sequence[Backend]) -> dict[str, Backend]:
    return {backend.name: backend for backend in backends}
