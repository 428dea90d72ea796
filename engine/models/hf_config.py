"""From a model's name to a ModelConfig: find the checkpoint, read its config.json, reject what cannot work.

Both styles of config.json are read: transformers 5 (`rope_parameters`, `dtype`, `layer_types`) and the older one
(`rope_theta`, `rope_scaling`, `torch_dtype`). An absent key has the default of its transformers config class.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from common.names import unknown_name
from engine.config import ConfigError, ModelArgs, ModelConfig, MoEConfig
from engine.config.model import CHECKPOINT_FORMATS, ONLINE_SCHEMES, ExpertNames
from engine.models.checkpoint import content_hash, download, read_headers, read_json, weight_files
from engine.models.rope_config import parse_rope
from engine.zoo import registry as zoo

DTYPES = ("float32", "bfloat16", "float16")
_ALIASES = {"float": "float32", "fp32": "float32", "bf16": "bfloat16", "half": "float16", "fp16": "float16"}


def _defaults(
    positions: int, kv_heads: int | None = None, window: int | None = None, **others: Any
) -> dict[str, Any]:
    return {
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "max_position_embeddings": positions,
        "num_key_value_heads": kv_heads,
        "sliding_window": window,
        "max_window_layers": 28,
        **others,
    }


_MOE = {"num_experts": 128, "moe_intermediate_size": 768, "decoder_sparse_step": 1, "norm_topk_prob": False}
_CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": _defaults(2048),
    "EagleLlamaForCausalLM": _defaults(2048),
    "MistralForCausalLM": _defaults(131072, 8, 4096),
    "Qwen2ForCausalLM": _defaults(32768, 32, 4096),
    "MixtralForCausalLM": _defaults(131072, 8, num_local_experts=8, num_experts_per_tok=2, rms_norm_eps=1e-5),
    "Qwen3MoeForCausalLM": _defaults(32768, 4, 4096, num_experts_per_tok=8, **_MOE),
    "Qwen3ForCausalLM": _defaults(32768, 32, 4096, head_dim=128),
}
"""Supported architectures, with the defaults of their config classes in transformers."""


def load_model_config(args: ModelArgs) -> ModelConfig:
    """Return the configuration of `args.model`: folder, shape, dtype and identity.

    Reads JSON files and the headers of the weight files, but no tensors. Raises ConfigError.
    """
    folder = find_model(args)
    raw = _merged(read_json(folder / "config.json"), args.hf_overrides)
    config = parse_config(raw, source=folder / "config.json", max_model_len=args.max_model_len)
    config = replace(
        config,
        model=args.model,
        path=folder,
        dtype=_resolve_dtype(args, raw),
        quantization=_resolve_quantization(args, config),
        eos_token_ids=_eos_token_ids(raw, folder),
        load_format="dummy" if args.load_format == "dummy" else "safetensors",
        seed=args.seed if args.load_format == "dummy" else 0,
    )
    config = _share_out_experts(config, args)
    if config.load_format == "safetensors":
        read_headers(folder)
    return replace(config, fingerprint=_fingerprint(config, raw))


def find_model(args: ModelArgs) -> Path:
    """Return the folder of a shipped model, a local folder, or a Hub repository (downloaded when needed)."""
    folder = local_folder(args.model)
    if folder is not None:
        return folder
    shipped = [info.name for info in zoo.list_models()]
    return download(args.model, revision=args.revision, cache_dir=args.download_dir, shipped=shipped)


def local_folder(name: str) -> Path | None:
    """Return the folder of a shipped model or a local folder; None for a Hub id. Raises ConfigError for other names."""
    if not name:
        raise ConfigError("the model's name is empty; give a shipped model, a folder or a Hub id (org/name)")
    path = Path(name).expanduser()
    shipped = [info.name for info in zoo.list_models()]
    if name in shipped:
        return zoo.resolve(name)
    if path.is_dir():
        return path
    if path.is_file():
        raise ConfigError(f"{name} is a file; give the folder that holds config.json and the weights")
    if name.count("/") == 1 and name[0] not in "./~\\" and not name.endswith("/"):
        return None
    if "/" in name or "\\" in name or name.startswith((".", "~")):
        raise ConfigError(
            f"no folder {path}; give an existing folder, a Hub id (org/name) or a shipped model"
        )
    others = (
        f"shipped: {', '.join(shipped) or 'none'}; otherwise give a folder (./path) or a Hub id (org/name)"
    )
    raise ConfigError(unknown_name("no model", name, shipped, others))


def parse_config(
    raw: dict[str, Any], source: Path | str = "config.json", *, max_model_len: int | None = None
) -> ModelConfig:
    """Return a ModelConfig from the content of config.json; the caller adds path, dtype and identity.

    Errors name `source`. max_model_len extends the context of some rope rules, see `rope_config.py`.
    """
    architecture = _architecture(raw, source)
    raw = {**_CLASS_DEFAULTS[architecture], **raw}
    quantization = raw.get("quantization_config") or None
    if quantization is not None:
        _check_quantization(quantization, source)
    number = partial(_positive_int, raw, source)
    if raw["hidden_act"] != "silu":
        raise ConfigError(f"{source}: hidden_act {raw['hidden_act']!r} is not supported, only 'silu'")

    num_heads, num_layers = number("num_attention_heads"), number("num_hidden_layers")
    raw["num_key_value_heads"] = raw.get("num_key_value_heads") or num_heads
    hidden_size = number("hidden_size")
    raw["head_dim"] = raw.get("head_dim") or hidden_size // num_heads
    num_kv_heads = number("num_key_value_heads")
    if num_heads % num_kv_heads:
        raise ConfigError(
            f"{source}: num_attention_heads ({num_heads}) must be a multiple of num_key_value_heads ({num_kv_heads})"
        )
    if raw["head_dim"] % 2:
        raise ConfigError(f"{source}: head_dim ({raw['head_dim']}) must be even for rotary embeddings")
    lengths = {"head_dim": number("head_dim"), "positions": number("max_position_embeddings")}
    rope, positions = parse_rope(raw, source, **lengths, max_model_len=max_model_len)
    attention_bias = bool(raw.get("attention_bias", False))
    return ModelConfig(
        model="",
        path=Path(),
        architecture=architecture,
        dtype="float32",
        vocab_size=number("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=number("intermediate_size"),
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=raw["head_dim"],
        rms_norm_eps=float(raw["rms_norm_eps"]),
        rope=rope,
        max_position_embeddings=positions,
        tie_word_embeddings=bool(raw["tie_word_embeddings"]),
        # Qwen2 always has biases on q, k and v and never on o; Mistral has none; the others say so.
        attention_bias=architecture == "Qwen2ForCausalLM"
        or (attention_bias and architecture not in ("MistralForCausalLM", "MixtralForCausalLM")),
        attention_output_bias=attention_bias
        and architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
        mlp_bias=bool(raw.get("mlp_bias", False)) and architecture == "LlamaForCausalLM",
        qk_norm=architecture in ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
        moe=_mixture(architecture, raw, num_layers, source),
        sliding_window=_sliding_windows(architecture, raw, num_layers),
        bos_token_id=raw.get("bos_token_id"),
        quantization=quantization,
    )


def _check_quantization(quantization: Any, source: Path | str) -> None:
    from engine.quant.base import parse_quantization  # torch, which a float model's config does not need

    try:
        if not isinstance(quantization, dict):
            raise ConfigError(f"quantization_config must be an object, got {quantization!r}")
        parse_quantization(quantization)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _resolve_quantization(args: ModelArgs, config: ModelConfig) -> dict[str, Any] | None:
    """Return the checkpoint's format; for a float checkpoint, the format to round to while loading."""
    asked, stored = args.quantization, config.quantization
    if config.moe is not None and (asked or stored):
        raise ConfigError(
            f"{args.model} is a mixture of experts, whose experts cannot be quantised here; load the float checkpoint "
            "without quantization"
        )
    if stored is None:
        if asked is None:
            return None
        if asked not in ONLINE_SCHEMES:
            known = f"on the fly: {', '.join(ONLINE_SCHEMES)}"
            made = f"; {asked} needs a checkpoint that was quantised that way: prep zoo quantize makes one"
            raise ConfigError(
                f"quantization={asked!r}, but {args.model} is not quantised; {known}"
                + (made if asked in CHECKPOINT_FORMATS else "")
            )
        return {"quant_method": "online", "scheme": asked}
    method = stored["quant_method"]
    if asked is not None and asked != method:
        raise ConfigError(
            f"quantization={asked!r}, but the checkpoint {args.model} is quantised with {method!r}; leave "
            "quantization out, or load the original"
        )
    if args.load_format == "dummy" and method != "online":
        raise ConfigError(
            f"load_format='dummy' cannot make up weights in the format {method!r}; use a float config.json "
            "and quantization='rtn', 'int8' or 'fp8'"
        )
    return stored


def _architecture(raw: dict[str, Any], source: Path | str) -> str:
    names = raw.get("architectures") or []
    if known := [name for name in names if name in _CLASS_DEFAULTS]:
        return known[0]
    if "MedusaModel" in names:
        raise ConfigError(
            f"{source} describes Medusa heads, which draft for another model; load that one, with "
            'speculative_config={"method": "medusa", "model": ...}'
        )
    listed = ", ".join(map(str, names))
    found = f"architecture {listed} is not supported" if names else "no architecture is named"
    raise ConfigError(f"{source}: {found}; supported: {', '.join(_CLASS_DEFAULTS)}")


def _positive_int(raw: dict[str, Any], source: Path | str, key: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        found = "is missing" if key not in raw else f"is {value!r}"
        raise ConfigError(f"{source}: {key!r} {found}, expected a positive integer")
    return value


def _mixture(architecture: str, raw: dict[str, Any], num_layers: int, source: Path | str) -> MoEConfig | None:
    """Experts, if the family has them. Qwen3: in every `decoder_sparse_step`-th layer that `mlp_only_layers` does not
    name."""
    number = partial(_positive_int, raw, source)
    if architecture == "MixtralForCausalLM":
        names = ExpertNames("block_sparse_moe", gate="w1", up="w3", down="w2")
        num_experts, size = number("num_local_experts"), number("intermediate_size")
        normalises, layers = True, (True,) * num_layers
    elif architecture == "Qwen3MoeForCausalLM":
        names = ExpertNames("mlp", gate="gate_proj", up="up_proj", down="down_proj")
        # transformers 5, and before
        num_experts = number("num_local_experts" if "num_local_experts" in raw else "num_experts")
        size, normalises = number("moe_intermediate_size"), bool(raw["norm_topk_prob"])
        dense, every = raw.get("mlp_only_layers") or [], number("decoder_sparse_step")
        layers = tuple(index not in dense and (index + 1) % every == 0 for index in range(num_layers))
    else:
        return None
    num_chosen = number("num_experts_per_tok")
    if num_chosen > num_experts:
        raise ConfigError(f"{source}: num_experts_per_tok ({num_chosen}) is more than {num_experts} experts")
    return MoEConfig(num_experts, num_chosen, size, normalises, layers, names)


def _share_out_experts(config: ModelConfig, args: ModelArgs) -> ModelConfig:
    """Apply `enable_expert_parallel`; raise ConfigError if the experts cannot be divided so."""
    moe, size = config.moe, args.tensor_parallel_size
    if moe is None:
        if args.enable_expert_parallel:
            raise ConfigError(
                f"enable_expert_parallel is set, but {args.model} ({config.architecture}) has no experts; leave it out"
            )
        return config
    if args.enable_expert_parallel and moe.num_experts % size:
        raise ConfigError(
            f"{moe.num_experts} experts cannot be shared out evenly over tensor_parallel_size={size}; choose a "
            "divisor, or leave enable_expert_parallel out to cut every expert"
        )
    if not args.enable_expert_parallel and moe.intermediate_size % size:
        raise ConfigError(
            f"experts of size {moe.intermediate_size} cannot be cut into tensor_parallel_size={size} equal parts; "
            "set enable_expert_parallel to give each rank whole experts"
        )
    return replace(config, moe=replace(moe, expert_parallel=args.enable_expert_parallel))


def _sliding_windows(architecture: str, raw: dict[str, Any], num_layers: int) -> tuple[int | None, ...]:
    """Window of every layer. Mistral: the same for all. Qwen: for the layers that `layer_types` or
    `max_window_layers` name, and only with `use_sliding_window`."""
    window = raw.get("sliding_window")
    if architecture in ("MistralForCausalLM", "MixtralForCausalLM"):
        return (window,) * num_layers
    if architecture == "LlamaForCausalLM" or window is None or not raw.get("use_sliding_window", False):
        return (None,) * num_layers
    if layer_types := raw.get("layer_types"):
        return tuple(window if kind == "sliding_attention" else None for kind in layer_types[:num_layers])
    return tuple(window if index >= raw["max_window_layers"] else None for index in range(num_layers))


def _resolve_dtype(args: ModelArgs, raw: dict[str, Any]) -> str:
    """Return the dtype to compute in. `auto` is the checkpoint's, but float32 on a CPU.

    Most CPUs have no fast 16-bit arithmetic. In float32, and within bfloat16, the C++ kernels give a request of any
    model the same bits alone, in a batch, in chunks and after a preemption (tests/engine/test_tight_swap.py,
    test_decode_graphs.py). Without a C++ compiler, or
    with `attention_backend="sdpa"`, torch computes attention: logprobs of two chunkings differ by up to 1e-6.
    """
    if args.dtype != "auto":
        asked = _ALIASES.get(args.dtype, args.dtype)
        if asked not in DTYPES:
            raise ConfigError(f"unknown dtype {args.dtype!r}; choose auto, {', '.join(DTYPES)}")
        return asked
    if args.device == "auto":
        import torch

        is_cpu = not torch.cuda.is_available()
    else:
        is_cpu = args.device == "cpu"
    if is_cpu:
        return "float32"
    stored = str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch.")
    return stored if stored in DTYPES else "float32"


def _eos_token_ids(raw: dict[str, Any], folder: Path) -> tuple[int, ...]:
    """Return the ids that end a sequence, from config.json and generation_config.json (Llama 3 has more there)."""
    generation_file = folder / "generation_config.json"
    generation = read_json(generation_file) if generation_file.exists() else {}
    ids: list[int | None] = []
    for value in (raw.get("eos_token_id"), generation.get("eos_token_id")):
        ids += value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(token_id for token_id in ids if token_id is not None))


def _merged(raw: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """`raw` with the user's overrides; where both hold an object, key by key."""
    merged = {**raw, **overrides}
    for key in raw.keys() & overrides.keys():
        if isinstance(raw[key], dict) and isinstance(overrides[key], dict):
            merged[key] = {**raw[key], **overrides[key]}
    return merged


def _fingerprint(config: ModelConfig, raw: dict[str, Any]) -> str:
    """Return the identity of the weights and of everything that shapes their KV: 32 hex digits.

    It survives moving the folder and changes with weights, dtype and overrides.
    """
    identity = [raw, config.quantization, config.dtype, config.load_format, config.seed]
    if config.rope.scaling and config.rope.scaling["rope_type"] in ("dynamic", "longrope"):
        identity.append(config.rope.scaling)  # depends on max_model_len
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode())
    if config.load_format == "safetensors":
        for file in weight_files(config.path):
            digest.update(content_hash(file).encode())
    return digest.hexdigest()[:32]
