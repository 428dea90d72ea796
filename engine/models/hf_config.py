"""From a model's name to a ModelConfig: find the checkpoint, read its config.json, reject what cannot work.

Both styles of config.json are read: transformers 5 (`rope_parameters`, `dtype`, `layer_types`) and the older one
(`rope_theta`, `rope_scaling`, `torch_dtype`). An absent key that shapes the computation has the default of its
transformers config class; sizes must be there. `config_fields.py` lists every field, the refused ones included.

A checkpoint whose config.json ties head and embedding (`tie_word_embeddings`), but which holds another head, is
computed with the stored head, as vLLM (config/model.py, maybe_untie_word_embeddings) and transformers (tie_weights) do.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from engine.config import ConfigError, ModelArgs, ModelConfig, MoEConfig
from engine.config.model import CHECKPOINT_FORMATS, ONLINE_SCHEMES, ExpertNames
from engine.models.checkpoint import (
    StoredTensor,
    content_hash,
    download,
    read_headers,
    read_json,
    same_bytes,
    weight_files,
)
from engine.models.config_fields import MOST, Fields, check_fields
from engine.models.rope_config import parse_rope
from engine.zoo import registry as zoo
from prep_common.names import unknown_name
from prep_common.paths import expanded
from prep_common.text import counted

logger = logging.getLogger(__name__)

DTYPES = ("float32", "bfloat16", "float16")
_ALIASES = {"float": "float32", "fp32": "float32", "bf16": "bfloat16", "half": "float16", "fp16": "float16"}


def _defaults(
    positions: int, kv_heads: int | None = None, window: int | None = None, **others: Any
) -> dict[str, Any]:
    """Return the defaults that most families share, less those in `others`."""
    return {
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "max_position_embeddings": positions,
        "num_key_value_heads": kv_heads,
        "sliding_window": window,
        "max_window_layers": 28,
        "rope_theta": 1e4,
        **others,
    }


_MOE = {
    "num_local_experts": 128,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "norm_topk_prob": False,
    "max_window_layers": None,
}
_CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": _defaults(2048),
    "EagleLlamaForCausalLM": _defaults(2048),
    "MistralForCausalLM": _defaults(131072, 8, 4096),
    "Qwen2ForCausalLM": _defaults(32768, 32, 4096),
    "MixtralForCausalLM": _defaults(
        131072, 8, num_local_experts=8, num_experts_per_tok=2, rms_norm_eps=1e-5, rope_theta=1e6
    ),
    "Qwen3MoeForCausalLM": _defaults(32768, 4, 4096, num_experts_per_tok=8, **_MOE),
    "Qwen3ForCausalLM": _defaults(32768, 32, 4096, head_dim=128),
}
"""Supported architectures, with the defaults of their config classes in transformers."""
_LLAMAS = ("LlamaForCausalLM", "EagleLlamaForCausalLM")
_WITH_ATTENTION_BIAS = (*_LLAMAS, "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")


def load_model_config(args: ModelArgs) -> ModelConfig:
    """Return the configuration of `args.model`: folder, shape, dtype and identity.

    Reads JSON files and the headers of the weight files, but no tensors. Raises ConfigError.
    """
    folder = find_model(args)
    source = folder / "config.json"
    raw = _merged(read_json(source), args.hf_overrides)
    config = parse_config(raw, source=source, max_model_len=args.max_model_len)
    config = replace(
        config,
        model=args.model,
        path=folder,
        dtype=_resolve_dtype(args, raw),
        quantization=_resolve_quantization(args, config),
        eos_token_ids=_eos_token_ids(raw, folder, config.vocab_size),
        load_format="dummy" if args.load_format == "dummy" else "safetensors",
        seed=args.seed if args.load_format == "dummy" else 0,
    )
    config = _share_out_experts(config, args)
    if config.load_format == "safetensors":
        stored = read_headers(folder)
        _check_sizes(config, stored, source)
        if config.tie_word_embeddings and _has_another_head(config, stored):
            config = replace(config, tie_word_embeddings=False)
    return replace(config, fingerprint=_fingerprint(config, raw))


def _check_sizes(config: ModelConfig, stored: dict[str, StoredTensor], source: Path) -> None:
    """Raise ConfigError if the weights are those of a smaller model: one of the size in config.json may not fit in
    memory. The loader compares every tensor."""
    embedding, expected = stored.get("model.embed_tokens.weight"), (config.vocab_size, config.hidden_size)
    if embedding is not None and embedding.shape != expected:
        raise ConfigError(
            f"{source}: vocab_size and hidden_size are {expected}, but model.embed_tokens.weight in "
            f"{embedding.file.name} is {embedding.shape}; correct the file or fetch the checkpoint again"
        )
    layers = {match[1] for name in stored if (match := re.match(r"(?:model\.)?layers\.(\d+)\.", name))}
    if layers and config.num_hidden_layers > len(layers):
        raise ConfigError(
            f"{source}: num_hidden_layers is {config.num_hidden_layers}, but the weights are those of {len(layers)} "
            "layers; correct the file or fetch the checkpoint again"
        )


def _has_another_head(config: ModelConfig, stored: dict[str, StoredTensor]) -> bool:
    """Whether the checkpoint holds a head that differs from its embedding."""
    head, embedding = stored.get("lm_head.weight"), stored.get("model.embed_tokens.weight")
    if head is None or embedding is None or same_bytes(head, embedding):
        return False
    logger.warning(
        "%s ties lm_head to the embedding (tie_word_embeddings), but holds another lm_head.weight, which is used",
        config.path,
    )
    return True


def find_model(args: ModelArgs) -> Path:
    """Return the folder of a shipped model, a local folder, or a Hub repository (downloaded when needed)."""
    folder = local_folder(args.model)
    if folder is not None:
        return folder
    shipped = [info.name for info in zoo.list_models()]
    return download(fspath(args.model), revision=args.revision, cache_dir=args.download_dir, shipped=shipped)


def local_folder(name: str | PathLike[str]) -> Path | None:
    """Return the folder of a shipped model or a local folder; None for a Hub id. Raises ConfigError for other names."""
    name = fspath(name)
    if not name:
        raise ConfigError("the model's name is empty; give a shipped model, a folder or a Hub id (org/name)")
    shipped = [info.name for info in zoo.list_models()]
    if name in shipped:
        return zoo.resolve(name)
    try:
        path = expanded(name)
    except ValueError as error:
        raise ConfigError(f"model {error}") from None
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
    check_fields(raw, architecture, source)
    return read_fields(Fields({**_CLASS_DEFAULTS[architecture], **raw}, source), architecture, max_model_len)


def read_fields(fields: Fields, architecture: str, max_model_len: int | None = None) -> ModelConfig:
    """Return a ModelConfig from the fields of config.json, defaults included; see `parse_config`."""
    source = fields.source
    quantization = fields.object("quantization_config") or None
    if quantization is not None:
        _check_quantization(quantization, source)
    if fields.get("hidden_act") != "silu":
        found = fields.get("hidden_act")
        raise ConfigError(f"{source}: hidden_act {found!r} is not supported, only 'silu'")

    num_layers, hidden_size = fields.count("num_hidden_layers"), fields.count("hidden_size")
    num_heads = fields.count("num_attention_heads")
    num_kv_heads = fields.optional_count("num_key_value_heads") or num_heads
    if num_heads % num_kv_heads:
        raise ConfigError(
            f"{source}: num_attention_heads ({num_heads}) must be a multiple of num_key_value_heads ({num_kv_heads})"
        )
    head_dim = fields.optional_count("head_dim") or hidden_size // num_heads
    if head_dim % 2 or not 0 < head_dim <= MOST["head_dim"]:
        raise ConfigError(
            f"{source}: head_dim ({head_dim}) must be even, for rotary embeddings, and at most {MOST['head_dim']}"
        )
    most = fields.count("max_position_embeddings")
    rope, positions = parse_rope(fields, head_dim=head_dim, positions=most, max_model_len=max_model_len)
    has_bias = architecture in _WITH_ATTENTION_BIAS and fields.flag("attention_bias")
    bos_token_id = fields.token_ids("bos_token_id")
    return ModelConfig(
        model="",
        path=Path(),
        architecture=architecture,
        dtype="float32",
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope=rope,
        max_position_embeddings=positions,
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        # Qwen2 always has biases on q, k and v and never on o; Mistral has none; the others say so.
        attention_bias=has_bias or architecture == "Qwen2ForCausalLM",
        attention_output_bias=has_bias,
        mlp_bias=architecture in _LLAMAS and fields.flag("mlp_bias"),
        qk_norm=architecture in ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
        moe=_mixture(architecture, fields, num_layers),
        sliding_window=_sliding_windows(architecture, fields, num_layers),
        bos_token_id=bos_token_id[0] if bos_token_id else None,
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
    if not isinstance(names, list) or any(not isinstance(name, str) for name in names):
        raise ConfigError(
            f"{source}: 'architectures' is {names!r}, expected a list of names; fetch the file again"
        )
    if known := [name for name in names if name in _CLASS_DEFAULTS]:
        return known[0]
    if "MedusaModel" in names:
        raise ConfigError(
            f"{source} describes Medusa heads, which draft for another model; load that one, with "
            'speculative_config={"method": "medusa", "model": ...}'
        )
    listed = ", ".join(names)
    found = f"architecture {listed} is not supported" if names else "no architecture is named"
    raise ConfigError(f"{source}: {found}; supported: {', '.join(_CLASS_DEFAULTS)}")


def _mixture(architecture: str, fields: Fields, num_layers: int) -> MoEConfig | None:
    """Experts, if the family has them. Qwen3: in every `decoder_sparse_step`-th layer that `mlp_only_layers` does not
    name."""
    if architecture == "MixtralForCausalLM":
        names = ExpertNames("block_sparse_moe", gate="w1", up="w3", down="w2")
        size, normalises, layers = fields.count("intermediate_size"), True, (True,) * num_layers
    elif architecture == "Qwen3MoeForCausalLM":
        names = ExpertNames("mlp", gate="gate_proj", up="up_proj", down="down_proj")
        size, normalises = fields.count("moe_intermediate_size"), fields.flag("norm_topk_prob")
        dense, every = fields.counts("mlp_only_layers"), fields.count("decoder_sparse_step")
        layers = tuple(index not in dense and (index + 1) % every == 0 for index in range(num_layers))
    else:
        return None
    # `num_experts` in older files of Qwen3; transformers 5 reads either name.
    num_experts = fields.count("num_local_experts" if fields.get("num_experts") is None else "num_experts")
    num_chosen = fields.count("num_experts_per_tok")
    if num_chosen > num_experts:
        raise ConfigError(
            f"{fields.source}: num_experts_per_tok ({num_chosen}) is more than {num_experts} experts"
        )
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


def _sliding_windows(architecture: str, fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Return the window of every layer. Raises ConfigError for windows that a family does not compute.

    Mistral               every layer, or those that `layer_types` names (transformers' Ministral)
    Mixtral               every layer
    Qwen2, Qwen3          with `use_sliding_window`: layers that `layer_types` names, or from `max_window_layers` on
    Qwen3 MoE             with `use_sliding_window`: every layer
    Llama                 none
    """
    window, kinds = fields.optional_count("sliding_window"), _layer_types(fields, num_layers)
    by_kind = [window if kind == "sliding_attention" else None for kind in kinds]
    everywhere: list[int | None] = [window] * num_layers
    nowhere: list[int | None] = [None] * num_layers
    if architecture == "MistralForCausalLM":
        return tuple(by_kind or everywhere)
    if architecture == "MixtralForCausalLM":
        found = everywhere
    elif architecture in _LLAMAS:
        found = nowhere
        _check_window_is_off(fields, window)
    else:
        is_used = fields.flag("use_sliding_window") and window is not None
        first = fields.optional_count("max_window_layers") or 0
        if architecture != "Qwen3MoeForCausalLM":
            later = [window if index >= first else None for index in range(num_layers)]
            return tuple((by_kind or later) if is_used else nowhere)
        if is_used and first:
            raise ConfigError(
                f"{fields.source}: use_sliding_window with max_window_layers {first} is not supported for "
                f"{architecture}: transformers gives every layer the window; set max_window_layers to 0 with "
                "hf_overrides to do that"
            )
        found = everywhere if is_used else nowhere
    if kinds and by_kind != found:
        raise ConfigError(
            f"{fields.source}: layer_types {sorted(set(kinds))} is not supported for {architecture}, whose layers "
            f"{'all have the window sliding_window' if any(found) else 'have no window'}; use another checkpoint"
        )
    return tuple(found)


def _check_window_is_off(fields: Fields, window: int | None) -> None:
    """Raise ConfigError for a Llama with a window: transformers' forward pass ignores it, its cache and vLLM do not."""
    is_off = fields.get("use_sliding_window") is not None and not fields.flag("use_sliding_window")
    if window is not None and not is_off and window < fields.count("max_position_embeddings"):
        raise ConfigError(
            f"{fields.source}: sliding_window {window} is not supported for Llama, whose layers see all tokens; use "
            "a checkpoint of Mistral, or compute without it with hf_overrides={'sliding_window': None}"
        )


def _layer_types(fields: Fields, num_layers: int) -> list[str]:
    """Return `layer_types`, checked; empty if there is no such field."""
    kinds = fields.get("layer_types", default=[])
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or any(kind not in known for kind in kinds):
        raise fields.error("layer_types", f"a list of {' and '.join(known)}, one for each layer")
    if kinds and len(kinds) != num_layers:
        raise ConfigError(
            f"{fields.source}: layer_types names {counted(len(kinds), 'layer')}, and num_hidden_layers is "
            f"{num_layers}; correct the file or fetch it again"
        )
    if "sliding_attention" in kinds and fields.optional_count("sliding_window") is None:
        raise ConfigError(
            f"{fields.source}: layer_types has sliding_attention, and there is no sliding_window; correct the file"
        )
    return kinds


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


def _eos_token_ids(raw: dict[str, Any], folder: Path, vocab_size: int) -> tuple[int, ...]:
    """Return the ids that end a sequence, from config.json and generation_config.json (Llama 3 has more there).

    Ids outside the vocabulary, which can never be sampled, are left out.
    """
    generation_file = folder / "generation_config.json"
    generation = read_json(generation_file) if generation_file.exists() else {}
    ids = Fields(raw, folder / "config.json").token_ids("eos_token_id")
    ids += Fields(generation, generation_file).token_ids("eos_token_id")
    return tuple(dict.fromkeys(token_id for token_id in ids if 0 <= token_id < vocab_size))


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
