"""Everything resolved, in one object."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.config.args import EngineArgs
from engine.config.cache import CacheConfig
from engine.config.kv_events import KVEventsConfig
from engine.config.kv_transfer import KVTransferConfig
from engine.config.lora import LoRAConfig
from engine.config.model import ModelConfig
from engine.config.scheduler import SchedulerConfig
from engine.config.speculative import SpeculativeConfig
from engine.config.structured_outputs import StructuredOutputsConfig


@dataclass(frozen=True)
class EngineConfig:
    """Everything resolved: the one object the engine's parts are built from."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    args: EngineArgs = field(repr=False)
    structured_outputs: StructuredOutputsConfig = field(default_factory=StructuredOutputsConfig)
    kv_transfer: KVTransferConfig | None = None
    speculative: SpeculativeConfig | None = None
    lora: LoRAConfig | None = None
    kv_events: KVEventsConfig | None = None
