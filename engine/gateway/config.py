"""Settings of the gateway, read from YAML. A wrong one is an error with file and line.

    policy: prefix-affinity
    backends:
      - {name: a, url: "http://127.0.0.1:8001"}
      - {name: b, url: "http://127.0.0.1:8002", version: candidate}
    canary: {version: candidate, share: 0.1}
    tenants:
      - {name: search, api_key: $SEARCH_KEY, requests_per_s: 5, burst: 10, tokens_per_day: 1000000}

A value that begins with $ is taken from the environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from engine.config.settings_file import read_yaml

Policy = Literal[
    "round-robin",
    "least-loaded",
    "token-aware",
    "prefix-affinity",
    "consistent-hash",
    "bounded-load",
    "lora-affinity",
]


class StrictModel(BaseModel):
    """Settings that refuse unknown names, NaN and infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Seconds = Annotated[float, Field(gt=0, le=86_400)]


class BackendSettings(StrictModel):
    """A server with OpenAI's API."""

    name: str = Field(min_length=1)
    url: str = Field(pattern=r"^https?://")
    api_key: str | None = None
    version: str = "stable"
    """Versions share traffic by `canary`."""
    models: list[str] | None = None
    """Models and adapters that it serves; None: any."""
    kv_events: str | None = Field(default=None, pattern=r"^(tcp://.+:\d+|ipc://.+)$")
    """Address of its KV events (`--kv-events-config`). None: prefix-affinity guesses what it caches."""
    kv_events_replay: str | None = Field(default=None, pattern=r"^(tcp://.+:\d+|ipc://.+)$")
    """Its replay_endpoint, asked at the start and after a gap."""


class TenantSettings(StrictModel):
    """A client of the gateway, known by its key, with its limits. None: no limit."""

    name: str = Field(min_length=1)
    api_key: str = Field(min_length=1)
    requests_per_s: float | None = Field(default=None, gt=0)
    burst: int = Field(default=1, ge=1)
    """Requests at once after a pause."""
    tokens_per_day: int | None = Field(default=None, ge=1)
    """Prompt and output tokens; counted from the answers' usage."""


class WatchSettings(StrictModel):
    """When a canary counts as worse than the other versions; then its share becomes 0 at once."""

    alpha: float = Field(default=0.05, gt=0, lt=1)
    """Probability of a rollback of a canary that is not worse, over all looks together."""
    power: float = Field(default=0.8, gt=0, lt=1)
    """Probability of finding an error rate that is higher by `detect`, for the stated number of requests."""
    more_errors: float = Field(default=0.0, ge=0, lt=1)
    """Difference of the error rates that is allowed."""
    detect: float = Field(default=0.02, gt=0, lt=1)
    """Difference of the error rates worth finding."""
    quantile: float = Field(default=0.9, gt=0, lt=1)
    """Quantile of the latencies that is compared."""
    slower: float = Field(default=0.25, ge=0)
    """Share by which that latency may be higher."""
    first_look: int = Field(default=50, ge=2)
    """Requests of each side before the first look; the next ones come at each doubling."""

    @model_validator(mode="after")
    def _detects_more_than_it_allows(self) -> WatchSettings:
        if self.detect <= self.more_errors:
            raise ValueError(
                f"detect must be above more_errors, got {self.detect:g} and {self.more_errors:g}"
            )
        return self


class CanarySettings(StrictModel):
    version: str
    share: float = Field(ge=0, le=1)
    """Share of the users, not of the requests: a user stays on one version while the share stays."""
    watch: WatchSettings | None = None
    """Roll back by itself; None: only by POST /gateway/canary."""


class ShadowSettings(StrictModel):
    """Requests are copied to this backend; its answers are compared and dropped."""

    backend: str
    share: float = Field(default=1.0, ge=0, le=1)


class HealthSettings(StrictModel):
    path: str = "/health"
    every_s: Seconds = 1.0
    timeout_s: Seconds = 1.0


class BreakerSettings(StrictModel):
    failures: int = Field(default=5, ge=1)
    """Failures in a row that open the breaker."""
    open_s: Seconds = 10.0


class RetrySettings(StrictModel):
    """Only requests that got no byte of an answer are tried again."""

    most: int = Field(default=2, ge=0)
    """Other backends that one request may be sent to."""
    budget: float = Field(default=0.1, ge=0)
    """Retries per request of the last ten seconds: a general failure must not multiply the load."""
    least_per_s: float = Field(default=1.0, ge=0)
    """Retries per second on top of that share, so that a gateway with few requests may retry, too."""


class HoldSettings(StrictModel):
    """Requests that no backend can answer wait for one, instead of failing at once."""

    most: int = Field(default=64, ge=0)
    """Requests that wait; more get status 503."""
    timeout_s: Seconds = 60.0


class GatewaySettings(StrictModel):
    backends: list[BackendSettings] = Field(min_length=1)
    policy: Policy = "least-loaded"
    fallback: BackendSettings | None = None
    """Asked only if no backend can answer."""
    fallback_per_minute: int = Field(default=60, ge=0)
    tenants: list[TenantSettings] = []
    """Empty: every request is served, without limits."""
    admin_key: str | None = Field(default=None, min_length=1)
    """For /gateway/*. None: open to all without tenants, closed with tenants."""
    canary: CanarySettings | None = None
    shadow: ShadowSettings | None = None
    health: HealthSettings = HealthSettings()
    breaker: BreakerSettings = BreakerSettings()
    retries: RetrySettings = RetrySettings()
    hold: HoldSettings | None = None
    max_prompt_tokens: int | None = Field(default=None, ge=16)
    """Longer conversations are trimmed (`budgeter.py`); None: none."""
    timeout_s: Seconds = 120.0
    """Without a byte from a backend."""

    @model_validator(mode="after")
    def _names_agree(self) -> GatewaySettings:
        names = [backend.name for backend in self.backends]
        for kind, listed in (("backends", names), ("tenants", [tenant.name for tenant in self.tenants])):
            if len(set(listed)) < len(listed):
                raise ValueError(f"{kind} must have names of their own, got {', '.join(listed)}")
        keys = [tenant.api_key for tenant in self.tenants]
        if len(set(keys)) < len(keys):
            raise ValueError("two tenants have the same key")
        if self.shadow is not None and self.shadow.backend not in names:
            raise ValueError(f"shadow names {self.shadow.backend!r}; backends are {', '.join(names)}")
        versions = sorted({backend.version for backend in self.backends})
        if self.canary is not None and self.canary.version not in versions:
            raise ValueError(f"canary names {self.canary.version!r}; versions are {', '.join(versions)}")
        return self


def read_settings(path: Path) -> GatewaySettings:
    """Read a gateway's settings. Raises ConfigError with file and line."""
    return read_yaml(path, GatewaySettings, "expected settings such as `backends:`, see prep gateway --help")
