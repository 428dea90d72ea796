"""Engine settings as command-line options, derived from `EngineArgs`.

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
    "dtype": "Type of weights and computation; auto: the checkpoint's.",
    "max_model_len": "Longest prompt plus output in tokens; the model's own limit by default.",
    "load_format": "dummy: random weights, for measuring speed.",
    "hf_overrides": "JSON object laid over the model's config.json.",
    "revision": "Branch, tag or commit on the hub.",
    "download_dir": "Folder of hub downloads.",
    "device": "cpu, cuda, or auto.",
    "block_size": "Tokens per KV block.",
    "gpu_memory_utilization": "Share of the memory for the engine.",
    "kv_cache_memory_bytes": "Size of the KV cache; by default as large as fits.",
    "num_gpu_blocks_override": "Number of KV blocks; by default as many as fit.",
    "kv_cache_dtype": "auto: the model's.",
    "enable_prefix_caching": "Reuse the KV of shared prompt prefixes.",
    "enable_chunked_prefill": "Split a long prompt over several steps.",
    "max_num_batched_tokens": "Token budget of one step.",
    "max_num_seqs": "Maximum number of running requests.",
    "long_prefill_token_threshold": "Maximum tokens of one prompt in one step; 0: the budget.",
    "scheduling_policy": "Order of requests: fcfs or priority.",
    "scheduler_cls": "Custom scheduler, as package.module:Class.",
    "attention_backend": "cpu, sdpa, triton, cuda or reference; by default the fastest available.",
    "max_logprobs": "Maximum --logprobs of a request.",
    "enforce_eager": "Never replay decode steps: every step runs through Python.",
    "enable_lora": "Serve LoRA adapters of the base model.",
    "max_loras": "Maximum adapters in one step.",
    "max_lora_rank": "Highest rank of an adapter.",
    "max_cpu_loras": "Adapters kept in host memory.",
    "lora_dtype": "Type of the adapters' weights; auto: the model's.",
    "quantization": "Round a float model to rtn (int4), int8, fp8, llm_int8, mxfp4 or nvfp4 (both emulated).",
    "speculative_config": "JSON: method, num_speculative_tokens, model, ...",
    "structured_outputs_config": "JSON: backend (auto, xgrammar or dfa).",
    "preemption_mode": "What happens to the KV of a preempted request: recompute or swap.",
    "swap_space": "GiB of host memory for swapped blocks.",
    "kv_offloading_size": "GiB for cached blocks that the device evicts.",
    "kv_offloading_backend": "Their storage: native (host memory) or disk:FOLDER.",
    "kv_transfer_config": "JSON: kv_connector, kv_role, ...: transfer KV between engines.",
    "kv_events_config": "JSON: publisher (memory or file), path: publish the contents of the prefix cache.",
    "tensor_parallel_size": "Workers that split every layer.",
    "pipeline_parallel_size": "Workers that hold different layers.",
    "data_parallel_size": "Engines behind one router.",
    "enable_expert_parallel": "Distribute whole experts over the workers instead of splitting each.",
    "distributed_executor_backend": "Executor of the workers: uni, mp or ray.",
    "limit_mm_per_prompt": "JSON: maximum images of one prompt.",
    "disable_log_stats": "Collect no statistics.",
    "trace": "Write a step trace to this file; read it with prep trace.",
    "debug_port": "Port on 127.0.0.1 for prep app --attach; 0: a free one.",
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
"""Options with a JSON object, and an example of each."""
CLASS_OPTIONS = {"scheduler_cls", "distributed_executor_backend"}
"""A name or `package.module:Class`."""
NOT_OPTIONS = {"model", "logits_processors", "seed"}
"""Fields without an option: an argument of the command, a list of classes, and a name used for the request's seed."""


def engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the engine's options to a command, which receives them as one argument `engine` for `EngineArgs`."""
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
    """Return the option's value, or the default if it is absent."""
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
