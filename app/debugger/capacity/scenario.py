"""A capacity scenario: model, GPUs, traffic, limits; as JSON or URL parameters."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from engine.config import ConfigError
from engine.sim.memory import Deployment, make_deployment
from engine.sim.sizing import ASSUMED_PRICES
from engine.sim.workload import Lengths, Workload
from prep_common.paths import data_dir, write_atomically

_LIMITS: dict[str, tuple[float, float]] = {
    "tp": (1, 64),
    "rate": (0.001, 1e6),
    "prompt": (1, 1e6),
    "output": (2, 1e6),
    "prefix_share": (0, 0.99),
    "num_prefixes": (1, 1000),
    "ttft_ms": (1, 1e6),
    "tpot_ms": (0.1, 1e5),
    "price": (0, 1e4),
    "headroom": (0.01, 1),
    "replicas": (0, 100_000),
    "max_model_len": (0, 1_000_000),
}


@dataclass(frozen=True)
class Scenario:
    """Lengths are in tokens and the same for every request; limits are on means, in milliseconds."""

    model: str = "llama-3-8b"
    gpu: str = "h100"
    tp: int = 1
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    rate: float = 10.0
    """Requests per second of the whole service, arriving at random (Poisson)."""
    prompt: int = 1000
    output: int = 200
    prefix_share: float = 0.0
    """Share of every prompt that is a common prefix."""
    num_prefixes: int = 1
    """Number of different prefixes."""
    ttft_ms: float = 500.0
    tpot_ms: float = 50.0
    price: float = ASSUMED_PRICES["h100"]
    """Money per GPU and hour."""
    currency: str = "$"
    headroom: float = 0.7
    """Planned share of a replica's maximum request rate."""
    replicas: int = 0
    """0: as many as rate and limits require."""
    max_model_len: int = 0
    """Longest sequence that the engine accepts; 0: enough for prompt and output."""

    def __post_init__(self) -> None:
        for name, (low, high) in _LIMITS.items():
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and low <= value <= high):
                raise ConfigError(f"{name} must be between {low:g} and {high:g}, got {value!r}")

    @cached_property
    def deployment(self) -> Deployment:
        """One replica, with the defaults of `prep sim run`. Raises ConfigError if it is not possible, or if a request
        has no room in the model's context."""
        made = make_deployment(
            model=self.model,
            gpu=self.gpu,
            tp=self.tp,
            dtype=self.dtype,
            kv_cache_dtype=self.kv_cache_dtype,
            max_model_len=self.max_model_len or None,
            longest=self.prompt + self.output,
        )
        if self.prompt + self.output > made.max_model_len:
            raise ConfigError(
                f"prompt + output = {self.prompt + self.output:,} tokens exceed the context of {self.model} here: "
                f"{made.max_model_len:,}; lower one of them, "
                + ("raise max_model_len" if self.max_model_len else "or choose a model with a longer context")
            )
        return made

    @property
    def prefix_len(self) -> int:
        """Tokens of a common prefix."""
        return round(self.prefix_share * self.prompt)

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens found in the prefix cache: whole blocks only, and never the last token, whose logits are
        needed."""
        block_size = self.deployment.block_size
        return min(self.prefix_len, self.prompt - 1) // block_size * block_size

    def workload(self, num_requests: int, rate: float, seed: int = 0) -> Workload:
        """Requests for one replica."""
        return Workload(
            num_requests,
            rate,
            Lengths(self.prompt, self.prompt),
            Lengths(self.output, self.output),
            num_prefixes=self.num_prefixes if self.prefix_len else 0,
            prefix_len=self.prefix_len,
            max_model_len=self.deployment.max_model_len,
            seed=seed,
        )

    def as_query(self) -> dict[str, str]:
        """URL parameters: the fields that differ from their defaults."""
        standard = asdict(Scenario())
        return {name: f"{value}" for name, value in asdict(self).items() if value != standard[name]}

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """A scenario from a URL or a file. Unknown names are ignored; values out of bounds raise ConfigError."""
        values: dict[str, Any] = {}
        for entry in fields(cls):
            if entry.name not in given:
                continue
            kind = {"int": int, "float": float}.get(str(entry.type), str)
            try:
                values[entry.name] = kind(given[entry.name])
            except (TypeError, ValueError):
                raise ConfigError(f"{entry.name} cannot be {given[entry.name]!r}") from None
        return cls(**values)


def scenarios_dir() -> Path:
    return data_dir() / "scenarios"


def save(scenario: Scenario, name: str) -> Path:
    """Save a scenario under a name. Raises ConfigError if the name is not a valid file name."""
    if not name or name != Path(name).name or name.startswith("."):
        raise ConfigError(f"{name!r} is not a valid file name: use letters, digits, spaces and -")
    path = scenarios_dir() / f"{name}.json"
    write_atomically(path, json.dumps(asdict(scenario), indent=2) + "\n")
    return path


def saved() -> list[str]:
    """The names of saved scenarios, sorted."""
    return sorted(path.stem for path in scenarios_dir().glob("*.json"))


def load(name: str) -> Scenario:
    """Load a saved scenario. Raises ConfigError if it cannot be read."""
    path = scenarios_dir() / f"{name}.json"
    try:
        return Scenario.parse(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path.name} is not a scenario: {error}") from error
