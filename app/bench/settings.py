"""Settings of the engines in a comparison: the same work, in the same precision, with the same memory for KV.

vLLM has our names for settings. llama.cpp has other formats, of nearly equal size: int8 is compared with
q8_0 (8.5 bits per weight), and 4 bits with q4_0 (4.5 bits per weight; ours has 4.2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from app.bench.environments import LLAMA_CPP, TRANSFORMERS, VLLM, Environment
from app.bench.side import SIDES, SideSpec, vllm_spec
from engine.config import CacheConfig, EngineArgs, ModelConfig
from engine.models.hf_config import load_model_config

FOR_BOTH = set(
    "dtype seed max_model_len load_format hf_overrides block_size kv_cache_memory_bytes num_gpu_blocks_override "
    "enable_prefix_caching enable_chunked_prefill max_num_batched_tokens max_num_seqs long_prefill_token_threshold "
    "scheduler_reserve_full_isl watermark scheduling_policy enforce_eager skip_tokenizer_init tokenizer".split()
)
"""Engine arguments passed to both sides, under the same names in vLLM."""
SETTINGS = {"block_size": 32, "max_num_batched_tokens": 4096, "max_num_seqs": 256}
"""Defaults for both sides. vLLM's attention on a CPU takes block sizes that are multiples of 32."""
GGUF_OF_DTYPE = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
GGUF_OF_SCHEME = {"int8": "q8_0", "rtn": "q4_0"}


@dataclass(frozen=True)
class Job:
    """A model and settings, complete: what every engine of a comparison gets."""

    model: str
    """Folder."""
    config: ModelConfig
    engine: dict[str, Any]
    """Engine arguments of ours."""
    num_seqs: int
    num_tokens: int
    """Tokens of a sequence at most, prompt and output."""
    scratch: Path
    """Folder for converted checkpoints."""


def complete_job(model: str, engine: dict[str, Any], *, num_seqs: int, num_tokens: int, scratch: Path) -> Job:
    """Add the defaults of comparisons to engine arguments. Raises ConfigError for wrong ones.

    The KV cache is exactly as large as the work needs, so that memory figures are comparable.
    """
    defaults = asdict(EngineArgs())
    chosen = {**SETTINGS, **{name: value for name, value in engine.items() if value != defaults[name]}}
    args = EngineArgs.create(model=model, **chosen)
    config = load_model_config(args)
    chosen["dtype"] = config.dtype
    if "kv_cache_memory_bytes" not in chosen and "num_gpu_blocks_override" not in chosen:
        chosen["kv_cache_memory_bytes"] = kv_bytes(config, args, num_seqs, num_tokens)
    return Job(model, config, chosen, num_seqs, num_tokens, scratch)


def kv_bytes(config: ModelConfig, args: EngineArgs, num_seqs: int, num_tokens: int) -> int:
    """Return bytes for all running sequences, at least one of full length, and the null block."""
    from engine.worker.kv_cache import layout_of

    for_all = min(num_seqs, args.max_num_seqs or num_seqs) * -(-num_tokens // args.block_size)
    for_one = -(-(args.max_model_len or config.max_position_embeddings) // args.block_size)
    layout = layout_of(config, CacheConfig(0, args.block_size, kv_cache_dtype=args.kv_cache_dtype))
    return (max(for_all, for_one) + 1) * layout.bytes_per_block


def common_settings(job: Job) -> dict[str, Any]:
    """Return the engine arguments that vLLM gets, too."""
    return {name: value for name, value in job.engine.items() if name in FOR_BOTH}


def vllm_side(python: str, job: Job) -> SideSpec:
    """vLLM with its engine core in the same process, so that it has as many threads as ours.

    Raises ValueError for weights that our engine quantises while loading.
    """
    if (job.config.quantization or {}).get("quant_method") == "online":
        raise ValueError(
            "vLLM would compute these weights as floats; write a quantised checkpoint: prep zoo quantize"
        )
    return vllm_spec(python, common_settings(job))


def vllm_processes_side(python: str, job: Job) -> SideSpec:
    """vLLM as it comes: its engine core in a process of its own, and a core reserved for the scheduler."""
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    return replace(vllm_side(python, job), name="vLLM, processes", environment=environment)


def llama_cpp_side(python: str, job: Job) -> SideSpec:
    """llama.cpp with a slot for every sequence. Raises ValueError for a precision without a format of GGUF."""
    kind = gguf_kind(job)
    file = job.scratch / f"{Path(job.model).name}-{kind}.gguf"
    slots = min(job.num_seqs, job.engine["max_num_seqs"])
    engine = {"gguf": str(file), "kind": kind, "slots": slots, "slot_len": job.num_tokens}
    return SideSpec("llama.cpp", python, SIDES / "llama_side.py", engine)


def gguf_kind(job: Job) -> str:
    """Return llama.cpp's type of the same size as the weights of ours."""
    if job.config.quantization is None:
        return GGUF_OF_DTYPE[job.config.dtype]
    scheme = job.config.quantization.get("scheme", "")
    if scheme not in GGUF_OF_SCHEME:
        raise ValueError(
            f"llama.cpp has no counterpart here of {scheme or 'a quantised checkpoint'}; use a float model, "
            f"or --quantization {' or '.join(GGUF_OF_SCHEME)}"
        )
    return GGUF_OF_SCHEME[scheme]


def transformers_side(python: str, job: Job) -> SideSpec:
    """transformers' generate with one static batch. Raises ValueError for quantised weights."""
    if job.config.quantization is not None:
        raise ValueError(
            "transformers computes these weights as floats here; use --dtype instead of --quantization"
        )
    return SideSpec("transformers", python, SIDES / "transformers_side.py", {"dtype": job.config.dtype})


@dataclass(frozen=True)
class OtherEngine:
    """An engine to compare with, its environment and its side."""

    environment: Environment
    side: Callable[[str, Job], SideSpec]
    needs_checkpoint: bool = False
    """Whether it cannot fill a model with random weights by itself."""


OTHER_ENGINES = {
    "llama.cpp": OtherEngine(LLAMA_CPP, llama_cpp_side, needs_checkpoint=True),
    "vllm": OtherEngine(VLLM, vllm_side),
    "vllm-processes": OtherEngine(VLLM, vllm_processes_side),
    "transformers": OtherEngine(TRANSFORMERS, transformers_side, needs_checkpoint=True),
}
