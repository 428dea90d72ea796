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

from engine.config import ConfigError, ModelArgs, ModelConfig
from engine.config.model import CHECKPOINT_FORMATS, ONLINE_SCHEMES
from engine.models.checkpoint import (
    StoredTensor,
    content_hash,
    download,
    read_headers,
    read_json,
    same_bytes,
    weight_files,
)
from engine.models.config_fields import check_fields
from engine.models.families import FAMILIES
from engine.models.fields import MOST, Fields
from engine.models.rope_config import parse_rope
from engine.zoo import registry as zoo
from prep_common.names import unknown_name
from prep_common.paths import expanded

logger = logging.getLogger(__name__)

DTYPES = ("float32", "bfloat16", "float16")
_ALIASES = {"float": "float32", "fp32": "float32", "bf16": "bfloat16", "half": "float16", "fp16": "float16"}


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
    family = FAMILIES[architecture]
    check_fields(raw, family, source)
    return read_fields(Fields({**family.defaults, **raw}, source), architecture, max_model_len)


def read_fields(fields: Fields, architecture: str, max_model_len: int | None = None) -> ModelConfig:
    """Return a ModelConfig from the fields of config.json, defaults included; see `parse_config`."""
    source = fields.source
    quantization = fields.object("quantization_config") or None
    if quantization is not None:
        _check_quantization(quantization, source)
    if fields.get("hidden_act") != "silu":
        activation = fields.get("hidden_act")
        raise ConfigError(f"{source}: hidden_act {activation!r} is not supported, only 'silu'")

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
    bos_token_id = fields.token_ids("bos_token_id")
    config = ModelConfig(
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
        sliding_window=(None,) * num_layers,
        bos_token_id=bos_token_id[0] if bos_token_id else None,
        quantization=quantization,
    )
    configure = FAMILIES[architecture].configure
    return config if configure is None else replace(config, **configure(fields, config))


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
    if known := [name for name in names if name in FAMILIES]:
        return known[0]
    if "MedusaModel" in names:
        raise ConfigError(
            f"{source} describes Medusa heads, which draft for another model; load that one, with "
            'speculative_config={"method": "medusa", "model": ...}'
        )
    listed = ", ".join(names)
    problem = f"architecture {listed} is not supported" if names else "no architecture is named"
    raise ConfigError(f"{source}: {problem}; supported: {', '.join(FAMILIES)}")


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
