"""Resolve the settings once: `resolve(EngineArgs) -> EngineConfig`.

Everything that depends on the settings, the model and the device is decided here, before workers start. Two things
come later, because only workers can measure them: the number of KV blocks and of host blocks (`EngineCore.create`).
Settings that exclude each other: `engine/config/combinations.py`.
"""

from __future__ import annotations

import os
from dataclasses import fields, replace
from typing import Any

import torch

from engine.config import (
    CacheConfig,
    ConfigError,
    EngineArgs,
    EngineConfig,
    KVEventsConfig,
    KVTransferConfig,
    LoRAConfig,
    MemoryConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    StructuredOutputsConfig,
)
from engine.config.combinations import check_combinations
from engine.config.scheduler import ON_CPU, default_batch_sizes
from engine.config.settings import check_types, load_class, require_one_of
from engine.exec.base import EXECUTORS, executor_class
from engine.models.hf_config import load_model_config
from engine.spec.draft_loading import load_draft_config, refuse_head
from engine.transfer import connector_class
from engine.worker.worker import resolve_device
from prep_common.text import GIB, shown

_LEAST = {
    "max_model_len": 2,
    "block_size": 1,
    "kv_cache_memory_bytes": 1,
    "num_gpu_blocks_override": 2,
    "max_num_batched_tokens": 1,
    "max_num_seqs": 1,
    "long_prefill_token_threshold": 0,
    "debug_port": 0,
    "lora_prefetch": 0,
    "max_logprobs": -1,
    "max_loras": 1,
    "max_lora_rank": 1,
    "max_cpu_loras": 1,
    "seed": -(2**63),
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
}
"""Lowest allowed value of every integer argument. `num_gpu_blocks_override` counts the null block."""
_MOST = {"kv_cache_memory_bytes": 2**63 - 1, "seed": 2**63 - 1}
"""Highest value, where it is not 2 ** 31 - 1, the largest index of a kernel."""
_CHOICES = {
    "load_format": ("auto", "safetensors", "dummy"),
    "device": ("auto", "cpu", "cuda"),
    "scheduling_policy": ("fcfs", "priority"),
    "preemption_mode": (None, "recompute", "swap"),
}


def resolve(args: EngineArgs) -> EngineConfig:
    """Check and complete the settings. Raises ConfigError for settings that cannot work.

    Reads the model's config.json and the headers of its weight files, and loads no weights.
    """
    check_args(args)
    structured_outputs = StructuredOutputsConfig.from_args(args.structured_outputs_config)
    kv_events = KVEventsConfig.from_args(args.kv_events_config)
    kv_transfer = _resolve_kv_transfer(args)
    lora = _resolve_lora(args)
    speculative = SpeculativeConfig.from_args(args.speculative_config)
    methods = ("add_request", "remove_request", "apply")  # the sampler calls them
    processors = tuple(
        load_class(spec, "logits processor", methods, "LogitsProcessor in engine/sample/processors.py")
        for spec in args.logits_processors or ()
    )
    scheduler_cls = (
        None
        if args.scheduler_cls is None
        else load_class(
            args.scheduler_cls,
            "scheduler_cls",
            ("add", "abort", "schedule", "update"),
            "Scheduler in engine/core/scheduler.py",
        )
    )
    parallel = _resolve_parallel(args)
    model = load_model_config(args)
    refuse_head(model)
    device = resolve_device(args.device)
    scheduler = _resolve_scheduler(args, model, device, speculative, lora)
    _check_split(parallel, model)
    draft_model = None
    if speculative is not None:
        draft_model = load_draft_config(speculative, model, args, scheduler.max_model_len)
    return EngineConfig(
        model=model,
        cache=CacheConfig(
            0,  # until the workers have measured their memory
            args.block_size,
            args.enable_prefix_caching,
            args.kv_cache_dtype,
            sliding_window=_sliding_window(args, model),
            detect_hash_collisions=args.debug_checks,
            drop_last_hit_block=speculative is not None and speculative.method == "eagle",
            watermark=args.watermark,
        ),
        scheduler=scheduler,
        device=device.type,
        parallel=parallel,
        memory=MemoryConfig(
            gpu_memory_utilization=args.gpu_memory_utilization,
            kv_cache_memory_bytes=args.kv_cache_memory_bytes,
            num_gpu_blocks_override=args.num_gpu_blocks_override,
            swap=_uses_swap(args),
            swap_bytes=None if args.swap_space is None else int(args.swap_space * GIB),
            offload_bytes=0 if _disk_folder(args) else _offload_bytes(args),
        ),
        attention_backend=args.attention_backend,
        enforce_eager=args.enforce_eager,
        scheduler_cls=scheduler_cls,
        logits_processors=processors,
        structured_outputs=structured_outputs or StructuredOutputsConfig(),
        kv_transfer=kv_transfer,
        speculative=speculative,
        draft_model=draft_model,
        lora=lora,
        kv_events=kv_events,
        max_logprobs=args.max_logprobs,
        max_images=args.limit_mm_per_prompt.get("image", 0),
        seed=args.seed,
        trace=args.trace,
        debug_port=args.debug_port,
        debug_wait=args.debug_wait,
        debug_checks=args.debug_checks,
        asked={field.name: getattr(args, field.name) for field in fields(args)},
    )


def _resolve_lora(args: EngineArgs) -> LoRAConfig | None:
    if not args.enable_lora:
        return None
    max_cpu_loras = args.max_loras if args.max_cpu_loras is None else args.max_cpu_loras
    return LoRAConfig(
        args.max_loras,
        args.max_lora_rank,
        max_cpu_loras,
        prefetch=args.lora_prefetch,
        lora_dtype=args.lora_dtype,
    )


def check_args(args: EngineArgs) -> None:
    """Raise ConfigError for values and combinations that cannot work with any model on any machine."""
    for name, least in _LEAST.items():
        value, most = getattr(args, name), _MOST.get(name, 2**31 - 1)
        if value is not None and (type(value) is not int or not least <= value <= most):
            bound = (
                f"of at least {least}" if type(value) is not int or value < least else f"of at most {most}"
            )
            raise ConfigError(f"{name} must be an integer {bound}, got {shown(value)}")
    share = args.gpu_memory_utilization
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise ConfigError(f"gpu_memory_utilization must be a share of memory in (0, 1], got {shown(share)}")
    _check_host_memory(args)
    check_types(args)
    if args.debug_port is not None and args.debug_port > 65535:
        raise ConfigError(f"debug_port must be a port number from 0 to 65535, got {args.debug_port!r}")
    if args.debug_wait and args.debug_port is None:
        raise ConfigError(
            "debug_wait waits for a debugger at the debug port: set debug_port too, 0 for a free one"
        )
    for name, choices in _CHOICES.items():
        require_one_of(choices, **{name: getattr(args, name)})
    for kind, limit in args.limit_mm_per_prompt.items():
        if kind != "image" or not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
            expected, given = "{'image': number of images per prompt}", args.limit_mm_per_prompt
            raise ConfigError(f"limit_mm_per_prompt takes {expected}, got {given!r}")
    disk, backend = _disk_folder(args), args.distributed_executor_backend
    check_combinations(
        debug_port=args.debug_port is not None,
        data_parallel=args.data_parallel_size > 1,
        images=args.limit_mm_per_prompt.get("image"),
        pipeline_parallel=args.pipeline_parallel_size > 1,
        several_workers=args.tensor_parallel_size * args.pipeline_parallel_size > 1,
        remote_workers=backend if backend in ("mp", "ray") else None,
        speculative=args.speculative_config is not None,
        lora=args.enable_lora,
        kv_events=KVEventsConfig.from_args(args.kv_events_config),
        kv_transfer=args.kv_transfer_config is not None,
        kv_connector=disk or args.kv_transfer_config is not None,
        disk_tier=disk and args.kv_offloading_backend,
        no_prefix_caching=not args.enable_prefix_caching,
        offload=args.kv_offloading_size and not disk,
        swap=args.preemption_mode == "swap",
        no_swap_space=args.swap_space == 0,
    )


def _check_host_memory(args: EngineArgs) -> None:
    for name in ("swap_space", "kv_offloading_size"):
        size = getattr(args, name)
        is_number = isinstance(size, (int, float)) and not isinstance(size, bool)
        if size is not None and not (is_number and 0 <= size < float("inf")):
            raise ConfigError(f"{name} must be a non-negative number of GiB of host memory, got {size!r}")
    backend, folder = args.kv_offloading_backend, _disk_folder(args)
    if backend != "native" and not folder:
        remedy = "use native (host memory) or disk:FOLDER"
        raise ConfigError(f"kv_offloading_backend={backend!r} is not supported; {remedy}")
    if folder and not args.kv_offloading_size:
        remedy = "the GiB that the folder may hold"
        raise ConfigError(f"kv_offloading_backend={backend!r} needs kv_offloading_size: {remedy}")


def _disk_folder(args: EngineArgs) -> str:
    """Return the folder of `kv_offloading_backend="disk:FOLDER"`; empty for another backend."""
    backend = args.kv_offloading_backend
    return backend.partition(":")[2] if isinstance(backend, str) and backend.startswith("disk:") else ""


def _offload_bytes(args: EngineArgs) -> int:
    return int((args.kv_offloading_size or 0) * GIB)


def _uses_swap(args: EngineArgs) -> bool:
    """Whether preemption swaps: if requested, or by default if there is swap space."""
    return args.preemption_mode == "swap" or (args.preemption_mode is None and bool(args.swap_space))


def _sliding_window(args: EngineArgs, model: ModelConfig) -> int | None:
    """Return the widest window of all layers if blocks behind it can be freed, else None.

    They cannot be freed if a layer attends to all tokens, or if a host tier, a KV connector or a draft model reads
    whole prefixes.
    """
    reads_prefixes = (
        _uses_swap(args) or args.kv_offloading_size or args.kv_transfer_config or args.speculative_config
    )
    windows = [window for window in model.sliding_window if window is not None]
    if reads_prefixes or not windows or None in model.sliding_window:
        return None
    return max(windows)


def _resolve_scheduler(
    args: EngineArgs,
    model: ModelConfig,
    device: torch.device,
    speculative: SpeculativeConfig | None,
    lora: LoRAConfig | None,
) -> SchedulerConfig:
    """Return sequence length, token budget and batch size."""
    max_model_len = args.max_model_len or model.max_position_embeddings
    if max_model_len > model.max_position_embeddings:
        raise ConfigError(
            f"max_model_len={max_model_len} is more than the {model.max_position_embeddings} positions that "
            f"{model.model} was made for; lower it, or override max_position_embeddings with hf_overrides"
        )
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    budget, num_seqs = default_batch_sizes(device.type, gpu.total_memory, gpu.name) if gpu else ON_CPU
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
            f"max_num_batched_tokens={budget} is less than max_num_seqs={num_seqs}: a step must give "
            "each running request one token; raise max_num_batched_tokens or lower max_num_seqs"
        )
    # Replay of a trace plays one step at a time, so a traced pipeline has one step under way.
    is_traced = trace_path(args.trace) or args.debug_port is not None
    return SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=num_seqs,
        max_model_len=max_model_len,
        policy=args.scheduling_policy,
        enable_chunked_prefill=args.enable_chunked_prefill,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
        scheduler_reserve_full_isl=args.scheduler_reserve_full_isl,
        max_concurrent_batches=1 if is_traced else args.pipeline_parallel_size,
        max_loras=0 if lora is None else lora.max_loras,
        max_cpu_loras=0 if lora is None else lora.max_cpu_loras,
        lora_prefetch=0 if lora is None else lora.prefetch,
        num_lookahead_tokens=0 if speculative is None else speculative.num_lookahead_tokens,
    )


def trace_path(asked: str | None) -> str:
    """Return the path of the trace; empty if there is none. `prep trace record` sets PREP_TRACE."""
    return asked or os.environ.get("PREP_TRACE", "")


def _resolve_parallel(args: EngineArgs) -> ParallelConfig:
    """Return sizes and backend: by default one worker runs in this process, several in processes of their own."""
    backend = args.distributed_executor_backend
    config = ParallelConfig(
        args.tensor_parallel_size, args.pipeline_parallel_size, args.data_parallel_size, backend or "uni"
    )
    if backend == "uni" and config.world_size > 1:
        raise ConfigError(
            f"distributed_executor_backend='uni' runs one worker and {config.world_size} were asked for "
            "(tensor_parallel_size x pipeline_parallel_size); use 'mp'"
        )
    if isinstance(backend, str) and backend not in EXECUTORS and ":" not in backend:
        raise ConfigError(
            f"distributed_executor_backend must be one of {', '.join(EXECUTORS)}, or a class as "
            f"'package.module:Class', got {backend!r}"
        )
    if backend is None and config.world_size > 1:
        config = replace(config, backend="mp")
    executor_class(config.backend)
    return config


def _check_split(parallel: ParallelConfig, model: ModelConfig) -> None:
    """Raise ConfigError for a model that cannot be split as asked."""
    size, stages = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    if stages > model.num_hidden_layers:
        raise ConfigError(
            f"pipeline_parallel_size={stages} is more than the {model.num_hidden_layers} layers of {model.model}: "
            "every stage needs one; lower it"
        )
    check_combinations(quantized=model.quantization is not None, several_workers=parallel.world_size > 1)
    splits = {
        "attention heads": model.num_attention_heads,
        "intermediate_size": model.intermediate_size,
        "vocab_size": model.vocab_size,
    }
    for what, number in splits.items():
        if number % size:
            most = min(size, model.num_attention_heads + 1)
            fitting = [n for n in range(1, most) if all(value % n == 0 for value in splits.values())]
            raise ConfigError(
                f"tensor_parallel_size={size} does not divide the {number} {what} of {model.model}; "
                f"smaller sizes that do: {', '.join(map(str, fitting))}"
            )
    kv_heads = model.num_key_value_heads
    if kv_heads % size and size % kv_heads:
        raise ConfigError(
            f"tensor_parallel_size={size} neither divides the {kv_heads} kv heads of {model.model} nor is a "
            "multiple of them; choose a size that does or is"
        )


def _resolve_kv_transfer(args: EngineArgs) -> KVTransferConfig | None:
    """Return the KV connector's settings; `kv_offloading_backend="disk:FOLDER"` is short for a DiskConnector."""
    given: Any = args.kv_transfer_config
    if folder := _disk_folder(args):
        extra = {"path": folder, "capacity_bytes": _offload_bytes(args)}
        given = {"kv_connector": "DiskConnector", "kv_connector_extra_config": extra}
    config = KVTransferConfig.from_args(given)
    if config is not None:
        connector_class(config)
    return config
