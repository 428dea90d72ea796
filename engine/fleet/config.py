"""Settings of a fleet, read from YAML, and whether it fits on this machine.

name: shop                                    # of the state folder, for prep fleet status
model: shop
replicas: 2
port: 8080
policy: prefix-affinity
engine: {max_num_seqs: 16}                    # options of prep serve, by their Python names
threads: 1                                    # of each engine
warm_pool: 0                                  # started replicas that get no requests yet
autoscale: {signal: load, out_above: 8, in_below: 2, min_replicas: 1, max_replicas: 3}
hold: {most: 64, timeout_s: 60}               # requests that wait while no replica is ready
events: fleet.jsonl                           # log of events that outlives the fleet
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from engine.config import ConfigError, EngineArgs, ModelArgs
from engine.config.settings_file import read_yaml
from engine.gateway.config import HoldSettings, Policy, Seconds, StrictModel, TenantSettings
from engine.models.hf_config import load_model_config, local_folder
from engine.sim.autoscaler import AutoscalerConfig
from engine.zoo.registry import count_parameters, resolve
from prep_common.memory import free_host_bytes
from prep_common.processors import num_processors
from prep_common.text import counted, gib

BASE_BYTES = 500 << 20
"""Memory of a replica without weights and KV: two Python processes that import torch. Measured: 440 MB with shop."""
KV_BYTES = 256 << 20
"""Assumed for the KV cache if the settings do not size it."""


class FleetSettings(StrictModel):
    name: str = Field(
        default="fleet",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$",
        description="1 to 40 letters, digits, '_' and '-', with a letter or digit first",
    )
    engine: dict[str, Any] = {}
    """Before `model`: whether a folder needs weights depends on its load_format."""
    model: str = Field(default="shop", min_length=1)
    replicas: int = Field(default=1, ge=0, le=64)
    port: int = Field(default=8080, ge=0, le=65535)
    policy: Policy = "prefix-affinity"
    threads: int = Field(default=1, ge=1)
    oversubscribe: bool = False
    """Allow more engine threads than processors. Replicas then slow each other down."""
    warm_pool: int = Field(default=0, ge=0, le=16)
    autoscale: AutoscalerConfig | None = None
    hold: HoldSettings = HoldSettings()
    tenants: list[TenantSettings] = []
    drain_timeout_s: Seconds = 30.0
    start_timeout_s: Seconds = 120.0
    events: Path | None = None

    @field_validator("autoscale", mode="before")
    @classmethod
    def _is_for_live_fleets(cls, value: Any) -> Any:
        for name in ("cold_start", "warm_start", "warm_pool", "schedules"):
            if isinstance(value, dict) and name in value:
                raise ValueError(f"{name} is for simulations; a live fleet measures its starts")
        return value

    @field_validator("engine")
    @classmethod
    def _are_options(cls, value: dict[str, Any]) -> dict[str, Any]:
        if "model" in value:
            raise ValueError("model is a setting of the fleet, beside engine")
        try:
            EngineArgs.create(model="shop", **value)
        except (ConfigError, TypeError) as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("model")
    @classmethod
    def _is_a_model(cls, name: str, info: ValidationInfo) -> str:
        if local_folder(name) is not None:
            load_format = info.data.get("engine", {}).get("load_format", "auto")
            load_model_config(ModelArgs(model=name, load_format=load_format))
        return name

    @model_validator(mode="after")
    def _sizes_agree(self) -> FleetSettings:
        if self.autoscale is None:
            if self.replicas < 1:
                raise ValueError("replicas must be at least 1 without autoscale")
        elif not self.autoscale.min_replicas <= self.replicas <= self.autoscale.max_replicas:
            least, most = self.autoscale.min_replicas, self.autoscale.max_replicas
            raise ValueError(f"replicas must be from {least} to {most} by autoscale, got {self.replicas}")
        return self

    @property
    def most(self) -> int:
        """Replicas that get requests at once, at most."""
        return self.replicas if self.autoscale is None else self.autoscale.max_replicas


def read_settings(path: Path) -> FleetSettings:
    """Read a fleet's settings. Raises ConfigError with file and line."""
    return read_yaml(path, FleetSettings, "expected settings such as `replicas: 2`, see prep fleet up --help")


def serve_words(settings: FleetSettings) -> list[str]:
    """Return the words after `prep` that start a replica."""
    words = [
        "serve",
        settings.model,
        "--stats-interval",
        "0",
        "--drain-timeout",
        f"{settings.drain_timeout_s:g}",
    ]
    for name, value in settings.engine.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    return words


def memory_of_replica(settings: FleetSettings) -> int:
    """Return the estimated bytes of a replica: processes, weights as float32, KV cache."""
    try:
        weights = 4 * count_parameters(resolve(settings.model))
    except FileNotFoundError:  # a Hugging Face id: unknown until the first replica is measured
        weights = 0
    kv = settings.engine.get("kv_cache_memory_bytes", KV_BYTES)
    return BASE_BYTES + weights + int(kv)


def check_fits(settings: FleetSettings, *, free: int | None = None, processors: int | None = None) -> None:
    """Raise ConfigError, with what fits, if the largest fleet of the settings does not fit on this machine."""
    free, processors = free or free_host_bytes(), processors or num_processors()
    per_replica, wanted = memory_of_replica(settings), settings.most + settings.warm_pool
    by_memory, by_cores = free // per_replica, processors // settings.threads
    if wanted > by_memory:
        raise ConfigError(
            f"{counted(wanted, 'replica')} of {settings.model} take about {gib(wanted * per_replica)}, and {gib(free)} "
            f"of memory are free: {by_memory} fit"
        )
    if wanted > by_cores and not settings.oversubscribe:
        raise ConfigError(
            f"{counted(wanted, 'replica')} with {counted(settings.threads, 'thread')} each need "
            f"{wanted * settings.threads} processors, and this machine has {processors}: {by_cores} fit; "
            "oversubscribe: true allows more, which slow each other down"
        )
