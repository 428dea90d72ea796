"""Configuration: what a user may ask for (`EngineArgs`) and what the engine runs with (`EngineConfig`).

Names and defaults are vLLM's (vllm/engine/arg_utils.py, vllm/config/). One file per part; no torch.
"""

from engine.config.args import DType, EngineArgs
from engine.config.cache import CacheConfig, resolve_sliding_window
from engine.config.engine import EngineConfig
from engine.config.errors import ConfigError
from engine.config.kv_events import KVEventsConfig
from engine.config.kv_transfer import KVTransferConfig
from engine.config.lora import LoRAConfig
from engine.config.model import ExpertNames, ModelConfig, MoEConfig, RopeConfig
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
    "MoEConfig",
    "LoRAConfig",
    "ModelConfig",
    "RopeConfig",
    "SchedulerConfig",
    "SpeculativeConfig",
    "StructuredOutputsConfig",
    "resolve_sliding_window",
    "TierConfig",
]
