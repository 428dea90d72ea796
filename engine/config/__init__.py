"""Configuration: the settings of a user (`EngineArgs`) and of a running engine (`EngineConfig`).

Names and defaults are vLLM's (vllm/engine/arg_utils.py, vllm/config/). One file per part; no torch.
"""

from engine.config.args import EngineArgs
from engine.config.cache import CacheConfig
from engine.config.engine import EngineConfig, ParallelConfig
from engine.config.errors import ConfigError
from engine.config.kv_events import KVEventsConfig
from engine.config.kv_transfer import KVTransferConfig
from engine.config.lora import LoRAConfig
from engine.config.memory import MemoryConfig
from engine.config.model import DType, ExpertNames, ModelArgs, ModelConfig, MoEConfig, RopeConfig
from engine.config.scheduler import SchedulerConfig
from engine.config.speculative import SpeculativeConfig
from engine.config.structured_outputs import StructuredOutputsConfig
from engine.config.tiers import TierConfig

__all__ = [
    "CacheConfig",
    "ConfigError",
    "DType",
    "EngineArgs",
    "EngineConfig",
    "KVEventsConfig",
    "KVTransferConfig",
    "ExpertNames",
    "MemoryConfig",
    "MoEConfig",
    "ModelArgs",
    "LoRAConfig",
    "ModelConfig",
    "ParallelConfig",
    "RopeConfig",
    "SchedulerConfig",
    "SpeculativeConfig",
    "StructuredOutputsConfig",
    "TierConfig",
]
