"""Engine settings as command-line options, made from `EngineArgs` so that the two cannot drift apart.

`--max-num-batched-tokens 64` sets `EngineArgs.max_num_batched_tokens`: vLLM's names, in kebab case.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from app.cli.terminal import Problem
from engine.config import EngineArgs

HELP = {
    "tokenizer": "Folder or hub id of the tokenizer, if not the model's.",
    "skip_tokenizer_init": "Token ids only, no text.",
    "dtype": "Of weights and computation; auto: the checkpoint's.",
    "max_model_len": "Longest prompt plus output in tokens; the model's own limit by default.",
    "load_format": "dummy: random weights, for work on speed and shapes.",
    "hf_overrides": "JSON object laid over the model's config.json.",
    "revision": "Branch, tag or commit on the hub.",
    "download_dir": "Where hub downloads are kept.",
    "device": "cpu, cuda, or auto.",
    "block_size": "Tokens per KV block.",
    "gpu_memory_utilization": "Share of the memory that the engine may use.",
    "kv_cache_memory_bytes": "Size of the KV cache, instead of what the memory allows.",
    "num_gpu_blocks_override": "Number of KV blocks, instead of what the memory allows.",
    "kv_cache_dtype": "auto: the model's.",
    "enable_prefix_caching": "Reuse the KV of prompts that start alike.",
    "enable_chunked_prefill": "Let a long prompt take several steps.",
    "max_num_batched_tokens": "Token budget of one step.",
    "max_num_seqs": "Most requests that run at once.",
    "long_prefill_token_threshold": "Most tokens of one prompt in one step; 0: the budget.",
    "scheduling_policy": "Who runs first: fcfs or priority.",
    "scheduler_cls": "Your scheduler, as package.module:Class.",
    "attention_backend": "cpu, sdpa, triton, cuda or reference; by default the fastest that works here.",
    "max_logprobs": "Most --logprobs that a request may ask for.",
    "enforce_eager": "Never replay decode steps: every step runs through Python.",
    "enable_lora": "Serve adapters beside the base model.",
    "max_loras": "Adapters in one step.",
    "max_lora_rank": "Highest rank of an adapter.",
    "max_cpu_loras": "Adapters kept in host memory.",
    "lora_dtype": "Of the adapters' weights; auto: the model's.",
    "quantization": "Round a float model to rtn (int4), int8, fp8, llm_int8, mxfp4 or nvfp4 (both emulated).",
    "speculative_config": "JSON: method, num_speculative_tokens, model, ...",
    "structured_outputs_config": "JSON: backend (auto, xgrammar or dfa).",
    "preemption_mode": "What happens to the KV of a preempted request: recompute or swap.",
    "swap_space": "GiB of host memory for swapped blocks.",
    "kv_offloading_size": "GiB for cached blocks that the device has no room for.",
    "kv_offloading_backend": "Where they go: native (host memory) or disk:FOLDER.",
    "kv_transfer_config": "JSON: kv_connector, kv_role, ...: KV from and for other engines.",
    "kv_events_config": "JSON: publisher (memory or file), path: tell others what the prefix cache holds.",
    "tensor_parallel_size": "Workers that share every layer.",
    "pipeline_parallel_size": "Workers that hold some of the layers each.",
    "data_parallel_size": "Whole engines behind one router.",
    "enable_expert_parallel": "Spread whole experts over the workers, not parts of each.",
    "distributed_executor_backend": "Where workers run: uni, mp or ray.",
    "limit_mm_per_prompt": "JSON: most images of one prompt.",
    "disable_log_stats": "Keep no statistics.",
    "trace": "Write a step trace to this file; look at it with prep trace.",
    "debug_port": "Port on 127.0.0.1 where prep app --attach looks into the engine; 0: a free one.",
    "debug_checks": "Check the cache's invariants after every step (slow).",
}
JSON_OPTIONS = {
    "hf_overrides": '{"rope_theta": 10000}',
    "speculative_config": '{"method": "ngram", "num_speculative_tokens": 4}',
    "structured_outputs_config": '{"backend": "dfa"}',
    "kv_transfer_config": '{"kv_connector": "SharedMemoryConnector", "kv_role": "kv_both"}',
    "kv_events_config": '{"publisher": "file", "path": "events.jsonl"}',
    "limit_mm_per_prompt": '{"image": 2}',
}
"""Options that take a JSON object, with an example."""
CLASS_OPTIONS = {"scheduler_cls", "distributed_executor_backend"}
"""A name or `package.module:Class`."""
NOT_OPTIONS = {"model", "logits_processors", "seed"}
"""An argument of the command, a list of classes, and one whose name belongs to the request's seed."""


def engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the engine's options; it receives them as one argument, `engine`, for `EngineArgs`."""
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "engine"]
    settings = [f for f in fields(EngineArgs) if f.name not in NOT_OPTIONS]
    added = [_parameter(setting) for setting in settings]

    @wraps(command)
    def with_engine(**values: Any) -> None:
        engine = {setting.name: values.pop(setting.name) for setting in settings}
        for name in JSON_OPTIONS:
            engine[name] = _json_object(name, engine[name])
        command(**values, engine=engine)

    with_engine.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    with_engine.__annotations__ = {p.name: p.annotation for p in [*own, *added]}
    return with_engine


def _parameter(setting: Field[Any]) -> inspect.Parameter:
    name, default = setting.name, setting.default
    kind = get_type_hints(EngineArgs)[name]
    flag = f"--{name.replace('_', '-')}"
    if name in JSON_OPTIONS or name in CLASS_OPTIONS:
        kind, default = str | None, None
    elif kind is bool and default:
        flag = f"{flag}/--no-{flag[2:]}"
    option = typer.Option(flag, help=HELP.get(name, ""))
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def _json_object(name: str, text: str | None) -> dict[str, Any] | None:
    """The option's value, or what stands for nothing."""
    setting = next(setting for setting in fields(EngineArgs) if setting.name == name)
    if text is None:
        return {} if setting.default is MISSING else None
    flag = f"--{name.replace('_', '-')}"
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise Problem(f"{flag} is not JSON: {error}", next_step=f"{flag} '{JSON_OPTIONS[name]}'") from None
    if not isinstance(value, dict):
        raise Problem(f"{flag} must be a JSON object, got {text}", next_step=f"{flag} '{JSON_OPTIONS[name]}'")
    return value
