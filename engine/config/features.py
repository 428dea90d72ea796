"""Settings of optional features, validated: LoRA, KV events, KV connectors, structured outputs, speculative decoding.

Names are vLLM's (vllm/config/*.py) where the same setting exists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from engine.config.settings import ConfigError, ObjectSettings, check_types, require_at_least, require_one_of
from prep_common.names import unknown_name

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Allowed values of `max_lora_rank`, as in vLLM."""
METHODS = ("ngram", "suffix", "draft_model", "eagle", "medusa")
_MODELS = {"draft_model": "shop-draft", "eagle": "shop-eagle", "medusa": "shop-medusa"}
"""Methods that need a model, and the shipped one."""


@dataclass(frozen=True)
class LoRAConfig:
    """Slots for adapters on the device, and a cache of their weights in host memory."""

    max_loras: int = 1
    max_lora_rank: int = 16
    max_cpu_loras: int = 1
    """At least `max_loras`. Adapters beyond it are read from their folder again."""
    prefetch: int = 0
    """Adapters of waiting requests to fetch ahead, at most `max_cpu_loras`."""
    lora_dtype: str = "auto"
    """Dtype of the weights on the device; auto: the model's. On a CPU bfloat16 is faster, and exact for adapters that
    were saved so with a scaling that is a power of two."""

    def __post_init__(self) -> None:
        require_at_least(1, max_loras=self.max_loras)
        require_one_of(LORA_RANKS, max_lora_rank=self.max_lora_rank)
        if self.max_cpu_loras < self.max_loras:
            raise ConfigError(
                f"max_cpu_loras={self.max_cpu_loras} is less than max_loras={self.max_loras}: adapters on the device "
                "are kept in host memory too; raise the first or lower the second"
            )
        require_at_least(0, lora_prefetch=self.prefetch)
        if self.prefetch > self.max_cpu_loras:
            raise ConfigError(
                f"lora_prefetch={self.prefetch} is more than max_cpu_loras={self.max_cpu_loras}: adapters fetched "
                "ahead lie in host memory; lower the first or raise the second"
            )
        require_one_of(("auto", "float32", "bfloat16", "float16"), lora_dtype=self.lora_dtype)


@dataclass(frozen=True)
class KVEventsConfig(ObjectSettings):
    """Destination of KV events. vLLM's publisher is a ZeroMQ socket; a queue and a file are ours."""

    argument: ClassVar[str] = "kv_events_config"
    example: ClassVar[str] = '{"publisher": "memory"}'

    publisher: str = "memory"
    """memory: a queue in the engine's process. file: JSON lines. zmq: a socket for routers."""
    path: str | None = None
    """Path of the file, which must not exist yet."""
    max_queue_size: int = 100_000
    """memory: batches kept for the reader. Beyond it the oldest are dropped, which the reader sees as a gap."""
    endpoint: str = "tcp://127.0.0.1:5557"
    """zmq: address that the engine binds. vLLM's default is tcp://*:5557, which every machine can reach."""
    replay_endpoint: str | None = None
    """zmq: address for readers that ask for batches that they missed."""
    buffer_steps: int = 10_000
    """zmq: batches kept for them."""
    hwm: int = 100_000
    """zmq: batches under way to a slow reader; beyond it they are dropped."""
    topic: str = ""
    enable_kv_cache_events: bool = True
    """False: publish nothing."""

    @classmethod
    def from_args(cls, value: Mapping[str, Any] | str | None) -> Self | None:
        """Parse a dict or its JSON. Returns None if no events are published."""
        config = super().from_args(value)
        return config if config is not None and config.enable_kv_cache_events else None

    def __post_init__(self) -> None:
        check_types(self, self.argument)
        require_one_of(("memory", "file", "zmq"), **{"kv_events_config: publisher": self.publisher})
        if (self.publisher == "file") != isinstance(self.path, str) or self.path == "":
            raise ConfigError(
                f"kv_events_config: publisher 'file' needs a path and no other takes one, got publisher="
                f"{self.publisher!r}, path={self.path!r}"
            )
        require_at_least(1, max_queue_size=self.max_queue_size, buffer_steps=self.buffer_steps, hwm=self.hwm)
        for name, value in (
            ("endpoint", self.endpoint),
            ("replay_endpoint", self.replay_endpoint or "tcp://"),
        ):
            if not isinstance(value, str) or not value.startswith(("tcp://", "ipc://")):
                raise ConfigError(
                    f"kv_events_config: {name} must be like tcp://127.0.0.1:5557 or ipc:///tmp/events, got {value!r}"
                )


@dataclass(frozen=True)
class KVTransferConfig(ObjectSettings):
    """One connector, and the role of this engine."""

    argument: ClassVar[str] = "kv_transfer_config"
    example: ClassVar[str] = '{"kv_connector": "SharedMemoryConnector", "kv_role": "kv_both"}'

    kv_connector: str = ""
    """SharedMemoryConnector, TCPConnector, DiskConnector, or your class as `package.module:Class`. Required."""
    kv_role: Literal["kv_producer", "kv_consumer", "kv_both"] = "kv_both"
    kv_connector_extra_config: dict[str, Any] = field(default_factory=dict)
    """Settings of this connector: the fields of its options dataclass."""
    kv_load_failure_policy: Literal["recompute", "fail"] = "recompute"
    """Recompute the KV that a request could not load, or end the request with an error (vLLM's default)."""

    def __post_init__(self) -> None:
        if not isinstance(self.kv_connector, str) or not self.kv_connector:
            raise ConfigError(
                "kv_transfer_config needs kv_connector: SharedMemoryConnector, TCPConnector or a dotted path "
                f"'package.module:Class'; got {self.kv_connector!r}"
            )
        check_types(self, self.argument)
        require_one_of(("kv_producer", "kv_consumer", "kv_both"), kv_role=self.kv_role)
        require_one_of(("recompute", "fail"), kv_load_failure_policy=self.kv_load_failure_policy)

    @property
    def is_producer(self) -> bool:
        """Whether finished requests offer their KV to other engines."""
        return self.kv_role != "kv_consumer"

    @property
    def is_consumer(self) -> bool:
        """Whether requests may start with KV of other engines."""
        return self.kv_role != "kv_producer"


@dataclass(frozen=True)
class StructuredOutputsConfig(ObjectSettings):
    """vLLM's `structured_outputs_config`."""

    argument: ClassVar[str] = "structured_outputs_config"
    example: ClassVar[str] = '{"backend": "dfa"}'

    backend: str = "auto"
    """dfa: our own automata, for regular languages. xgrammar: the library, for JSON of any depth and
    context-free grammars. auto: dfa for a regex or a choice; for the rest xgrammar if it is installed, else dfa."""
    disable_any_whitespace: bool = False
    """Allow JSON only without whitespace between its tokens."""
    max_whitespace: int = 20
    """Maximum whitespace between two JSON tokens: one space, or a line break and up to this many spaces or tabs less
    one. Ours; vLLM has no limit."""
    max_digits: int = 19
    """Maximum digits of a number before its point, unless `minimum` or `maximum` has more. Ours; vLLM has no limit."""
    finish_json: bool = False
    """Close JSON that `max_tokens` would cut off: in the last tokens before the limit, only a short way to the end is
    allowed, and finish_reason is "stop" (`engine/grammar/closing.py`). Ours; vLLM cuts it off."""
    disable_additional_properties: bool = True
    """An object that lists properties has no others, unless its schema mentions them. True is what vLLM does with
    xgrammar, whatever its setting of this name says; that one is for the backend guidance."""

    def __post_init__(self) -> None:
        check_types(self, self.argument)
        require_one_of(("auto", "xgrammar", "dfa"), **{"structured_outputs_config: backend": self.backend})
        for name, low, high in (("max_whitespace", 0, 1000), ("max_digits", 1, 100)):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(
                    f"{self.argument}: {name} must be from {low} to {high}, got {getattr(self, name)}"
                )


@dataclass(frozen=True)
class SpeculativeConfig(ObjectSettings):
    """The drafter that proposes tokens, and how the target accepts them.

    `verifier`, `adaptive` and `disable_by_batch_size` are ours (the last was vLLM V0's
    `speculative_disable_by_batch_size`).
    """

    argument: ClassVar[str] = "speculative_config"
    example: ClassVar[str] = '{"method": "ngram", "num_speculative_tokens": 4}'

    method: str
    """ngram, suffix, draft_model, eagle, medusa, or your drafter as `package.module:Class` (`engine/spec/base.py`)."""
    num_speculative_tokens: int = 4
    """Drafts per request and step; with suffix the maximum, by default `suffix_decoding_max_tree_depth`."""
    model: str | None = None
    """The draft model, the EAGLE head, or the Medusa heads."""
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 5
    """ngram: lengths of the ending to look up in the earlier tokens; the longest match wins."""
    suffix_decoding_max_tree_depth: int = 24
    """suffix: tokens of an ending and its drafts together."""
    suffix_decoding_max_cached_requests: int = 10_000
    """suffix: outputs of finished requests to draft from; 0: only the request's own tokens."""
    suffix_decoding_max_spec_factor: float = 1.0
    """suffix: drafts per token of the ending that occurred before."""
    suffix_decoding_min_token_prob: float = 0.1
    """suffix: draft as long as the path's share of the occurrences is at least this."""
    verifier: str = "coupling"
    """coupling: token-identical to no drafts. rejection: same distribution (`engine/sample/draft_acceptance.py`)."""
    adaptive: bool = False
    """Adapt the number of drafts of each request to its acceptance (`engine/spec/base.py`)."""
    disable_by_batch_size: int | None = None
    """Draft nothing in a step with more requests: a full batch has no idle compute for drafts."""

    def __post_init__(self) -> None:
        if self.method not in METHODS and ":" not in self.method:
            where = f"choose {', '.join(METHODS)}, or your own drafter as 'package.module:Class'"
            raise ConfigError(unknown_name("there is no speculative method", self.method, METHODS, where))
        require_one_of(("coupling", "rejection"), verifier=self.verifier)
        counts = "num_speculative_tokens prompt_lookup_min prompt_lookup_max suffix_decoding_max_tree_depth"
        for name in counts.split():
            _check_count(name, getattr(self, name))
        _check_count("suffix_decoding_max_cached_requests", self.suffix_decoding_max_cached_requests, least=0)
        _check_number("suffix_decoding_max_spec_factor", self.suffix_decoding_max_spec_factor, math.inf)
        _check_number("suffix_decoding_min_token_prob", self.suffix_decoding_min_token_prob, 1.0)
        if self.disable_by_batch_size is not None:
            _check_count("disable_by_batch_size", self.disable_by_batch_size)
        check_types(self, self.argument)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min={self.prompt_lookup_min} is more than "
                f"prompt_lookup_max={self.prompt_lookup_max}: no ending fits"
            )
        if self.needs_model and self.model is None:
            raise ConfigError(f'method {self.method!r} needs a model: add "model": "{_MODELS[self.method]}"')

    @property
    def needs_model(self) -> bool:
        """Whether the method drafts with weights of its own."""
        return self.method in _MODELS

    @property
    def needs_kv(self) -> bool:
        """Whether the drafter stores its own keys and values in the target's blocks."""
        return self.needs_model and self.method != "medusa"

    @property
    def num_lookahead_tokens(self) -> int:
        """Positions after the newest token at which the drafter writes keys and values."""
        return self.num_speculative_tokens if self.needs_kv else 0

    @classmethod
    def read(cls, value: Mapping[str, Any] | str) -> dict[str, Any]:
        """Return the keys of `value`, completed: the method follows from the model, as in vLLM."""
        settings = super().read(value)
        for name in ("method", "model", "verifier"):
            if not isinstance(settings.get(name, ""), str | None):
                raise ConfigError(f"{name} in speculative_config must be text, got {settings[name]!r}")
        if settings.get("method") is None:
            settings["method"] = _method_of(settings.get("model"))
        if settings["method"] == "suffix":  # as in vLLM
            depth = settings.get("suffix_decoding_max_tree_depth", cls.suffix_decoding_max_tree_depth)
            settings.setdefault("num_speculative_tokens", depth)
        for name in {"prompt_lookup_min", "prompt_lookup_max"} & settings.keys():
            _check_count(name, settings[name])
        if "prompt_lookup_max" in settings:  # the other default gives way, as in vLLM
            settings.setdefault(
                "prompt_lookup_min", min(cls.prompt_lookup_min, settings["prompt_lookup_max"])
            )
        elif "prompt_lookup_min" in settings:
            settings["prompt_lookup_max"] = max(cls.prompt_lookup_max, settings["prompt_lookup_min"])
        return settings


def _method_of(model: str | None) -> str:
    """Guess the method from the model's name. vLLM reads the model's config.json, too."""
    if model is None:
        example = SpeculativeConfig.example
        raise ConfigError(f"speculative_config needs a method or a model; for example {example}")
    if model in ("ngram", "[ngram]"):
        return "ngram"
    if model == "suffix":
        return "suffix"
    return next((method for method in ("eagle", "medusa") if method in model.lower()), "draft_model")


def _check_count(name: str, value: object, least: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(
            f"{name} in speculative_config must be an integer of at least {least}, got {value!r}"
        )


def _check_number(name: str, value: object, most: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= most or value == math.inf:  # type: ignore[operator]
        bound = "at least 0" if most == math.inf else f"from 0 to {most:g}"
        raise ConfigError(f"{name} in speculative_config must be a number {bound}, got {value!r}")
