"""Engine settings as command-line options, derived from `EngineArgs`; adapters; and opening the engine.

`--max-num-batched-tokens 64` sets `EngineArgs.max_num_batched_tokens`: vLLM's names, in kebab case.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from app.cli import terminal
from app.cli.options import keyword, option, parse_json_object, with_parameters
from app.cli.terminal import Problem
from engine.config import EngineArgs
from engine.outputs import RequestOutput
from engine.zoo.registry import MODELS, resolve
from prep_common.text import counted

if TYPE_CHECKING:
    from engine.llm import LLM
    from engine.lora.request import LoRARequest

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
    "scheduler_reserve_full_isl": "Start a request only with blocks for its whole prompt.",
    "watermark": "Share of the KV blocks that stays free when a request starts beside others.",
    "scheduling_policy": "Order of requests: fcfs or priority.",
    "scheduler_cls": "Custom scheduler, as package.module:Class.",
    "attention_backend": "cpu, sdpa, triton, cuda or reference; by default the fastest available.",
    "max_logprobs": "Maximum --logprobs of a request.",
    "enforce_eager": "Never replay decode steps: every step runs through Python.",
    "enable_lora": "Serve LoRA adapters of the base model.",
    "max_loras": "Maximum adapters in one step.",
    "max_lora_rank": "Highest rank of an adapter.",
    "max_cpu_loras": "Adapters kept in host memory.",
    "lora_prefetch": "Adapters of waiting requests read from disk ahead, while steps run; 0: none.",
    "lora_dtype": "Type of the adapters' weights; auto: the model's.",
    "quantization": "Round a float model to rtn (int4), int8, int8_weight_only, fp8, llm_int8, mxfp4 or nvfp4 "
    "(both emulated).",
    "speculative_config": "JSON: method, num_speculative_tokens, model, ...",
    "structured_outputs_config": "JSON: backend (auto, xgrammar or dfa), finish_json and others.",
    "preemption_mode": "What happens to the KV of a preempted request: recompute or swap.",
    "swap_space": "GiB of host memory for swapped blocks.",
    "kv_offloading_size": "GiB for cached blocks that the device evicts.",
    "kv_offloading_backend": "Their storage: native (host memory) or disk:FOLDER.",
    "kv_transfer_config": "JSON: kv_connector, kv_role, ...: transfer KV between engines.",
    "kv_events_config": "JSON: publisher (memory, file, zmq), path, endpoint: publish what the prefix cache holds.",
    "tensor_parallel_size": "Workers that split every layer.",
    "pipeline_parallel_size": "Workers that hold different layers.",
    "data_parallel_size": "Engines behind one router.",
    "enable_expert_parallel": "Distribute whole experts over the workers instead of splitting each.",
    "distributed_executor_backend": "Executor of the workers: uni, mp or ray.",
    "limit_mm_per_prompt": "JSON: maximum images of one prompt.",
    "disable_log_stats": "Collect no statistics.",
    "trace": "Write a step trace to this file; read it with prep trace.",
    "debug_port": "Port on 127.0.0.1 for prep app --attach; 0: a free one.",
    "debug_wait": "Run no step until the debugger at the debug port says so.",
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
    parameters = dict(inspect.signature(command, eval_str=True).parameters)
    del parameters["engine"]
    settings = [setting for setting in fields(EngineArgs) if setting.name not in NOT_OPTIONS]

    def with_engine(**values: Any) -> None:
        engine = {setting.name: values.pop(setting.name) for setting in settings}
        for name, example in JSON_OPTIONS.items():
            if engine[name] is not None:
                engine[name] = parse_json_object(f"--{name.replace('_', '-')}", engine[name], example)
            elif EngineArgs.__dataclass_fields__[name].default is MISSING:
                engine[name] = {}
        command(**values, engine=engine)

    return with_parameters(command, with_engine, [*parameters.values(), *map(_parameter, settings)])


def _parameter(setting: Field[Any]) -> inspect.Parameter:
    name, default = setting.name, setting.default
    kind = get_type_hints(EngineArgs)[name]
    flag = f"--{name.replace('_', '-')}"
    if name in JSON_OPTIONS or name in CLASS_OPTIONS:
        kind, default = str | None, None
    elif kind is bool and default:
        flag = f"{flag}/--no-{flag[2:]}"
    return keyword(name, Annotated[kind, option(HELP.get(name, ""), flag)], default)


@contextmanager
def open_llm(model: str, engine: dict[str, Any], lora: Lora | None = None) -> Iterator[LLM]:
    """Load a model, with room for the requested adapters, and shut it down at the end."""
    if lora and (lora.lora or lora.lora_modules):
        engine = {**engine, "enable_lora": True}
    with terminal.loading(model):
        from engine.llm import LLM

        llm = LLM(model, **engine)
    with llm:
        yield llm


@dataclass(frozen=True)
class Lora:
    """The adapter of a command."""

    lora: Annotated[
        str | None, option("Answer with this adapter: a shipped one, or a name of --lora-modules.")
    ] = None
    lora_modules: Annotated[
        list[str] | None, option("NAME=PATH of an adapter to load (PEFT's layout); repeatable.")
    ] = None

    def load(self, llm: LLM) -> LoRARequest | None:
        """Load the adapters of --lora-modules; return the adapter chosen by --lora, if any."""
        for module in self.lora_modules or []:
            name, separator, path = module.partition("=")
            if not (separator and name and path):
                raise Problem(f"--lora-modules {module!r} must look like NAME=PATH", "prep generate --help")
            llm.load_lora_adapter(name, path)
        if self.lora is None:
            return None
        loaded = {request.lora_name: request for request in llm.list_lora_adapters()}
        if self.lora in loaded:
            return loaded[self.lora]
        if (MODELS / self.lora / "adapter_config.json").exists():
            return llm.load_lora_adapter(self.lora, self.lora)
        shipped = sorted(path.parent.name for path in MODELS.glob("*/adapter_config.json"))
        raise Problem(
            f"no adapter {self.lora!r}; there are: {', '.join([*loaded, *shipped])}",
            "prep generate shop --lora-modules NAME=PATH --lora NAME",
        )


def model_folder(model: str) -> Path:
    """Return the folder of a shipped model, or any other folder."""
    try:
        return resolve(model)
    except FileNotFoundError as error:
        raise Problem(str(error), "prep zoo list") from None


def show_bar() -> bool | None:
    """Value of `use_tqdm`: a bar on a terminal, nothing elsewhere."""
    return None if terminal.is_live(terminal.err()) else False


def speed_line(output: RequestOutput, num_tokens: int, seconds: float) -> str:
    """Return the dim line under an answer: tokens, time, cache hits."""
    reasons = {completion.finish_reason for completion in output.outputs}
    ending = f", ended by {'/'.join(sorted(map(str, reasons)))}" if output.finished else ""
    return (
        f"{counted(num_tokens, 'token')} in {seconds:.2f} s ({num_tokens / max(seconds, 1e-9):,.0f} tok/s), "
        f"{output.num_cached_tokens} of {len(output.prompt_token_ids)} prompt tokens cached{ending}"
    )
