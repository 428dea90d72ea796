"""`EngineConfig`: every setting, resolved once (`engine/resolve.py`). Executors and workers are built from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.config.cache import CacheConfig, MemoryConfig
from engine.config.features import (
    KVEventsConfig,
    KVTransferConfig,
    LoRAConfig,
    SpeculativeConfig,
    StructuredOutputsConfig,
)
from engine.config.model import MedusaConfig, ModelConfig
from engine.config.scheduler import SchedulerConfig


@dataclass(frozen=True)
class ParallelConfig:
    """Number of workers per engine, number of engines, and placement of the workers."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    backend: type | str = "uni"
    """Place of the workers: a key of EXECUTORS in `engine/exec/base.py`, or an Executor class."""

    @property
    def world_size(self) -> int:
        """Workers of one engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


@dataclass(frozen=True)
class EngineConfig:
    """Everything the engine's parts are built from."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    device: str = "cpu"
    """cpu or cuda: resolved, never auto."""
    parallel: ParallelConfig = ParallelConfig()
    memory: MemoryConfig = MemoryConfig()
    attention_backend: str | None = None
    """None: each worker picks the fastest that serves the model."""
    enforce_eager: bool = False
    scheduler_cls: type | None = None
    """None: `Scheduler`."""
    logits_processors: tuple[type, ...] = ()
    structured_outputs: StructuredOutputsConfig = field(default_factory=StructuredOutputsConfig)
    kv_transfer: KVTransferConfig | None = None
    speculative: SpeculativeConfig | None = None
    draft_model: ModelConfig | MedusaConfig | None = None
    lora: LoRAConfig | None = None
    kv_events: KVEventsConfig | None = None
    max_logprobs: int = 20
    max_images: int = 0
    """Images per prompt."""
    seed: int = 0
    trace: str | None = None
    debug_port: int | None = None
    debug_wait: bool = False
    debug_checks: bool = False
    asked: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The engine arguments as the user gave them, for the header of a trace."""
