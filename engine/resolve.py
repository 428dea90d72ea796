"""What a user asked for, checked and completed: EngineArgs -> the parts of EngineConfig.

Defaults of None become numbers here, when the model and the device are known. The defaults are vLLM's
(vllm/engine/arg_utils.py, get_batch_defaults).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from engine.config import (
    ConfigError,
    EngineArgs,
    KVEventsConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculativeConfig,
)
from engine.config.classes import load_class
from engine.config.tiers import GIB, disk_folder
from engine.sample.processors import LogitsProcessor
from engine.transfer import connector_class

if TYPE_CHECKING:
    from engine.exec.base import Executor

_CPU_BATCHED_TOKENS, _CPU_SEQS = 4096, 256
_GPU_BATCHED_TOKENS, _GPU_SEQS = 8192, 256
_LARGE_GPU_BATCHED_TOKENS, _LARGE_GPU_SEQS = 16384, 1024
_LARGE_GPU_BYTES = 70 << 30

EXECUTORS = {
    "uni": "engine.exec.uniproc:UniProcExecutor",
    "mp": "engine.exec.multiproc:MultiprocExecutor",
    "ray": "engine.exec.ray:RayExecutor",
}
_LEAST = {
    "max_model_len": 2,
    "block_size": 1,
    "kv_cache_memory_bytes": 1,
    "num_gpu_blocks_override": 2,
    "max_num_batched_tokens": 1,
    "max_num_seqs": 1,
    "long_prefill_token_threshold": 0,
    "debug_port": 0,
    "max_logprobs": -1,
    "seed": -(2**63),
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
}
"""Lowest allowed value of every integer argument. `num_gpu_blocks_override` counts the null block."""
_CHOICES = {
    "load_format": ("auto", "safetensors", "dummy"),
    "device": ("auto", "cpu", "cuda"),
    "scheduling_policy": ("fcfs", "priority"),
}


def check_args(args: EngineArgs) -> None:
    """Refuse values that no model and no machine could make work."""
    for name, least in _LEAST.items():
        value = getattr(args, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise ConfigError(f"{name} must be an integer of at least {least}, got {value!r}")
    if args.debug_port is not None and not 0 <= args.debug_port <= 65535:
        raise ConfigError(f"debug_port is a port number from 0 to 65535, got {args.debug_port!r}")
    if args.debug_port is not None and args.data_parallel_size > 1:
        raise ConfigError(
            "debug_port looks into one engine, and data_parallel_size > 1 makes several: leave one of them out"
        )
    for name, choices in _CHOICES.items():
        if getattr(args, name) not in choices:
            raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {getattr(args, name)!r}")
    for kind, limit in args.limit_mm_per_prompt.items():
        if kind != "image" or not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
            raise ConfigError(
                f"limit_mm_per_prompt takes {{'image': number of images per prompt}}, got "
                f"{args.limit_mm_per_prompt!r}"
            )
    if args.limit_mm_per_prompt.get("image") and args.pipeline_parallel_size > 1:
        raise ConfigError(
            "images in prompts are put in where the embedding is, and pipeline_parallel_size > 1 splits the model: "
            "leave limit_mm_per_prompt or pipeline_parallel_size at its default"
        )
    if args.speculative_config is not None and args.tensor_parallel_size * args.pipeline_parallel_size > 1:
        raise ConfigError(
            "speculative_config drafts and verifies on one worker: leave it out, or leave tensor_parallel_size and "
            "pipeline_parallel_size at 1 (data_parallel_size goes with drafts)"
        )
    share = args.gpu_memory_utilization
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise ConfigError(f"gpu_memory_utilization is a share of memory in (0, 1], got {share!r}")


def resolve_scheduler_config(
    args: EngineArgs, model: ModelConfig, device: torch.device, speculative: SpeculativeConfig | None = None
) -> SchedulerConfig:
    """Sequence length, token budget and batch size."""
    max_model_len = args.max_model_len or model.max_position_embeddings
    if max_model_len > model.max_position_embeddings:
        raise ConfigError(
            f"max_model_len={max_model_len} is more than the {model.max_position_embeddings} positions that "
            f"{model.model} was made for; lower it, or override max_position_embeddings with hf_overrides"
        )
    budget, num_seqs = _default_sizes(device)
    if not args.enable_chunked_prefill:
        budget = max(budget, max_model_len)  # every prompt is computed in one step
    if args.max_num_seqs is not None:
        budget = max(budget, args.max_num_seqs)
    if args.max_num_batched_tokens is not None:
        budget = args.max_num_batched_tokens
        num_seqs = min(num_seqs, budget)
    num_seqs = args.max_num_seqs or num_seqs
    if budget < num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens={budget} is less than max_num_seqs={num_seqs}: a step could not give "
            "each running request its one token; raise the first or lower the second"
        )
    return SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=num_seqs,
        max_model_len=max_model_len,
        policy=args.scheduling_policy,
        enable_chunked_prefill=args.enable_chunked_prefill,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
        max_loras=args.max_loras if args.enable_lora else 0,
        num_lookahead_tokens=0 if speculative is None else speculative.num_lookahead_tokens,
    )


def check_parallel(args: EngineArgs, model: ModelConfig) -> None:
    """Refuse a model that cannot be split as asked."""
    size, stages = args.tensor_parallel_size, args.pipeline_parallel_size
    if stages > model.num_hidden_layers:
        raise ConfigError(
            f"pipeline_parallel_size={stages} is more than the {model.num_hidden_layers} layers of {model.model}: "
            "every stage needs one; lower it"
        )
    if size * stages > 1 and model.quantization is not None:
        raise ConfigError(
            "quantised weights are loaded whole: their layouts do not say yet how ranks share them. Leave "
            "tensor_parallel_size and pipeline_parallel_size at 1, or run the float checkpoint (data_parallel_size may "
            "be any)"
        )
    splits = {
        "attention heads": model.num_attention_heads,
        "intermediate_size": model.intermediate_size,
        "vocab_size": model.vocab_size,
    }
    for what, number in splits.items():
        if number % size:
            fitting = [n for n in range(1, size) if all(value % n == 0 for value in splits.values())]
            raise ConfigError(
                f"tensor_parallel_size={size} does not divide the {number} {what} of {model.model}; "
                f"smaller sizes that do: {', '.join(map(str, fitting))}"
            )
    kv_heads = model.num_key_value_heads
    if kv_heads % size and size % kv_heads:
        raise ConfigError(
            f"tensor_parallel_size={size} neither divides the {kv_heads} kv heads of {model.model}, nor is it a "
            "multiple of them, so that each rank could have one"
        )


def resolve_executor(args: EngineArgs) -> type[Executor]:
    """Where the workers run: `distributed_executor_backend`, or this process for one worker and new ones for more."""
    world_size = args.tensor_parallel_size * args.pipeline_parallel_size
    asked = args.distributed_executor_backend
    if asked is None:
        asked = "uni" if world_size == 1 else "mp"
    if asked == "uni" and world_size > 1:
        raise ConfigError(
            f"distributed_executor_backend='uni' runs one worker and {world_size} were asked for "
            "(tensor_parallel_size x pipeline_parallel_size); use 'mp'"
        )
    if isinstance(asked, str) and asked not in EXECUTORS and ":" not in asked:
        raise ConfigError(
            f"distributed_executor_backend must be one of {', '.join(EXECUTORS)}, or a class as "
            f"'package.module:Class', got {asked!r}"
        )
    return load_class(EXECUTORS.get(asked, asked), "distributed_executor_backend")


def resolve_kv_events(args: EngineArgs) -> KVEventsConfig | None:
    """Who hears of the prefix cache's changes, refused where they could not be told in full."""
    config = KVEventsConfig.from_args(args.kv_events_config)
    if config is None:
        return None
    if not args.enable_prefix_caching:
        raise ConfigError(
            "kv_events_config needs enable_prefix_caching=True: there is nothing to tell without"
        )
    if args.data_parallel_size > 1:
        raise ConfigError(
            "kv_events_config is one engine's feed and data_parallel_size starts several: set it to 1, and start each "
            "engine with a feed of its own"
        )
    if args.kv_transfer_config is not None or _disk_tier(args) is not None:
        raise ConfigError(
            "kv_events_config does not work with a KV connector or a disk tier so far: what they bring arrives by its "
            "hash, without the tokens that an event tells; use one of the two"
        )
    return config


def resolve_kv_transfer(args: EngineArgs) -> KVTransferConfig | None:
    """The KV connector's settings, refused where blocks cannot travel by hash."""
    given = args.kv_transfer_config
    config = KVTransferConfig.from_args(_disk_tier(args) if given is None else given)
    if config is None:
        return None
    if not args.enable_prefix_caching:
        raise ConfigError(
            "kv_transfer_config needs enable_prefix_caching=True: blocks are found by their hash, and what "
            "arrives is a prefix hit"
        )
    if args.data_parallel_size > 1:
        raise ConfigError(
            "kv_transfer_config names one engine and data_parallel_size starts several: set it to 1, and start an "
            "engine for each role"
        )
    if args.tensor_parallel_size * args.pipeline_parallel_size > 1:
        raise ConfigError(
            "kv_transfer_config works with one worker so far: with tensor_parallel_size or "
            "pipeline_parallel_size above 1 no worker has a whole block; set both to 1"
        )
    if args.distributed_executor_backend in ("mp", "ray"):
        raise ConfigError(
            "kv_transfer_config needs the worker in the engine's own process so far; leave "
            f"distributed_executor_backend={args.distributed_executor_backend!r} out"
        )
    connector_class(config)
    return config


def _disk_tier(args: EngineArgs) -> dict[str, Any] | None:
    """`kv_offloading_backend="disk:FOLDER"` is short for the connector that does it."""
    if not disk_folder(args):
        return None
    capacity_bytes = int((args.kv_offloading_size or 0) * GIB)
    extra = {"path": disk_folder(args), "capacity_bytes": capacity_bytes}
    return {"kv_connector": "DiskConnector", "kv_connector_extra_config": extra}


def resolve_logits_processors(args: EngineArgs) -> list[type[LogitsProcessor]]:
    """The user's processors, each checked for the methods that the sampler will call."""
    classes = [load_class(spec, "logits_processors") for spec in args.logits_processors or ()]
    for processor in classes:
        methods = ("add_request", "remove_request", "apply")
        missing = [name for name in methods if not hasattr(processor, name)]
        if missing:
            raise ConfigError(
                f"logits processor {processor!r} has no {', '.join(missing)}; "
                "see LogitsProcessor in engine/sample/processors.py"
            )
    return classes


def _default_sizes(device: torch.device) -> tuple[int, int]:
    """max_num_batched_tokens and max_num_seqs where the user named none."""
    if device.type != "cuda":
        return _CPU_BATCHED_TOKENS, _CPU_SEQS
    if torch.cuda.get_device_properties(device).total_memory >= _LARGE_GPU_BYTES:
        return _LARGE_GPU_BATCHED_TOKENS, _LARGE_GPU_SEQS
    return _GPU_BATCHED_TOKENS, _GPU_SEQS
