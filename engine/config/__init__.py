"""Configuration: the settings of a user (`EngineArgs`) and of a running engine (`EngineConfig`).

Names and defaults are vLLM's (vllm/engine/arg_utils.py, vllm/config/). No torch.
"""

from engine.config.args import EngineArgs as EngineArgs
from engine.config.cache import CacheConfig as CacheConfig
from engine.config.cache import MemoryConfig as MemoryConfig
from engine.config.cache import TierConfig as TierConfig
from engine.config.engine import EngineConfig as EngineConfig
from engine.config.engine import ParallelConfig as ParallelConfig
from engine.config.features import KVEventsConfig as KVEventsConfig
from engine.config.features import KVTransferConfig as KVTransferConfig
from engine.config.features import LoRAConfig as LoRAConfig
from engine.config.features import SpeculativeConfig as SpeculativeConfig
from engine.config.features import StructuredOutputsConfig as StructuredOutputsConfig
from engine.config.model import MedusaConfig as MedusaConfig
from engine.config.model import ModelArgs as ModelArgs
from engine.config.model import ModelConfig as ModelConfig
from engine.config.model import MoEConfig as MoEConfig
from engine.config.model import RopeConfig as RopeConfig
from engine.config.scheduler import SchedulerConfig as SchedulerConfig
from engine.config.settings import ConfigError as ConfigError
