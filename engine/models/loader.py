"""Create a model by its architecture, and fill its storage from safetensors, or with seeded random numbers.

A model says what it wants by name (`checkpoint_tensors`), the headers say what there is; loading starts only
when the two agree. Files are memory-mapped and copied tensor by tensor, converting the dtype on the way, so a
checkpoint is never in memory twice.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor, nn

from engine.config import ConfigError, MedusaConfig, ModelConfig
from engine.layers.embedding import VocabParallelEmbedding
from engine.layers.linear import Linear, LinearMethod
from engine.layers.moe import FusedMoE
from engine.models.checkpoint import StoredTensor, read_headers
from engine.models.families import FAMILIES
from engine.parallel import ALONE, Ranks, Shard, use_ranks
from engine.quant.base import QuantizationConfig, parse_quantization
from prep_common.dotted_path import load_object
from prep_common.memory import total_host_bytes
from prep_common.text import GIB

_FLOAT_DTYPES = ("F64", "F32", "F16", "BF16")
_QUANTISED_DTYPES = {
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
}
_DUMMY_STD = 0.02
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class CausalLM(Protocol):
    """Interface of a model for the worker, which picks the rows that need logits between the two calls."""

    def __call__(
        self, input_ids: Tensor, positions: Tensor, inputs_embeds: Tensor | None = None
    ) -> Tensor | None:
        """input_ids, positions int64 [T] -> hidden [T, hidden]; None in any pipeline stage but the last.
        Reads the current ForwardContext, writes the step's KV.

        inputs_embeds [T, hidden], if given, takes the place of the token embeddings.
        """
        ...

    def embed_tokens(self, input_ids: Tensor) -> Tensor:
        """ids [T] -> their embeddings [T, hidden]; in the first pipeline stage."""
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor | None:
        """hidden [S, hidden] -> logits fp32 [S, vocab]; None on any tensor rank but the first."""
        ...


def create_model(config: ModelConfig, device: torch.device | str, ranks: Ranks = ALONE) -> nn.Module:
    """The model, or what `ranks` has of it, with storage for weights not yet filled (see `loader.load_model`)."""
    if config.architecture not in FAMILIES:
        raise ConfigError(
            f"unsupported architecture {config.architecture!r}; supported: {', '.join(FAMILIES)}"
        )
    quantization = None if config.quantization is None else parse_quantization(config.quantization)
    with torch.device(device), use_ranks(ranks):
        model = load_object(FAMILIES[config.architecture].model)(config)
        for name, module in model.named_modules():
            if isinstance(module, Linear):
                if quantization is not None:
                    module.method = _linear_method(quantization, name, module, config)
                module.create_weights()  # in the checkpoint's layout
    return model


def _linear_method(
    quantization: QuantizationConfig, name: str, layer: Linear, config: ModelConfig
) -> LinearMethod:
    try:
        return quantization.linear_method(name, layer)
    except ConfigError as error:
        raise ConfigError(f"{config.path}: {error}") from None


def load_model(config: ModelConfig, device: torch.device | str, ranks: Ranks = ALONE) -> nn.Module:
    """The model with its weights, in inference mode on `device`; of a parallel one, what `ranks` has.

    Raises ConfigError before any memory is taken if the checkpoint does not fit the model, or the model the device.
    """
    _check_largest(config, device)
    whole = checkpoint_tensors(create_model(config, "meta"))
    if config.load_format == "dummy":
        num_ranks = ranks.tensor.size * ranks.pipeline.size
        _check_bytes(
            sum(tensor.nbytes for tensor in whole.values()) // num_ranks, "its weights", config, device
        )
        model = create_model(config, device, ranks)
        fill_with_random(model, config.seed)
    else:
        stored = stored_tensors(config, whole)
        check_fit(whole, stored, config)
        model = create_model(config, device, ranks)
        load_weights(model, stored)
    for module in model.modules():
        if isinstance(module, (Linear, FusedMoE)):
            module.finish_loading()
    return model.eval()


def checkpoint_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor a checkpoint must hold: its name there -> the storage it fills (a view into a parameter).

    Parts of merged projections appear one by one; a head that shares the embedding's table does not appear.
    """
    return {name: tensor for path, module in model.named_modules() for name, tensor in _tensors(path, module)}


def checkpoint_shards(model: nn.Module) -> dict[str, Shard]:
    """Return the part of each checkpoint tensor that this rank holds, where it does not hold all of it."""
    shards: dict[str, Shard] = {}
    for path, module in model.named_modules():
        if isinstance(module, (Linear, FusedMoE, VocabParallelEmbedding)):
            held = {name: module.shard_of(name) for name, _ in _tensors(path, module)}
            shards |= {name: shard for name, shard in held.items() if shard is not None}
    return shards


def _tensors(path: str, module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    if isinstance(module, (Linear, FusedMoE)):
        return module.checkpoint_tensors(path)
    return ((f"{path}.{name}", parameter.data) for name, parameter in module.named_parameters(recurse=False))


def load_weights(model: nn.Module, stored: dict[str, StoredTensor]) -> None:
    """Copy every tensor of a checkpoint that fits to its place; a rank of several reads its own slices only."""
    copy_tensors(checkpoint_tensors(model), stored, checkpoint_shards(model))


def stored_tensors(config: ModelConfig, targets: dict[str, Tensor]) -> dict[str, StoredTensor]:
    """Return the tensors of the checkpoint in `config.path` that a model with the tensors `targets` is filled from.

    Left out is what some checkpoints store and what is computed or shared here: rope frequencies, scales of a KV cache,
    a tied head, biases of zeros.
    """
    not_ours = ("rotary_emb.inv_freq", ".k_scale", ".v_scale")
    stored = {
        name: tensor for name, tensor in read_headers(config.path).items() if not name.endswith(not_ours)
    }
    if config.tie_word_embeddings:
        stored.pop("lm_head.weight", None)
    if config.quantization is not None:
        stored = {name: tensor for name, tensor in stored.items() if not _is_zero_bias(name, tensor, targets)}
    return stored


def _check_largest(config: ModelConfig, device: torch.device | str) -> None:
    """Raise ConfigError if a single matrix is larger than the device's memory: a wrong number in config.json."""
    moe = config.moe
    widths = {
        "vocab_size": config.vocab_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_attention_heads * config.head_dim,
        "experts": 0 if moe is None else moe.num_experts * moe.intermediate_size,
    }
    for name, width in widths.items():
        _check_bytes(
            width * config.hidden_size * DTYPE_BYTES[config.dtype], f"{name} x hidden_size", config, device
        )
    _check_bytes(
        config.max_position_embeddings * config.head_dim * 4, "max_position_embeddings", config, device
    )


def _check_bytes(num_bytes: int, what: str, config: ModelConfig, device: torch.device | str) -> None:
    device = torch.device(device)
    if device.type == "meta":
        return
    is_cuda = device.type == "cuda"
    total = torch.cuda.get_device_properties(device).total_memory if is_cuda else total_host_bytes()
    if num_bytes > total:
        raise ConfigError(
            f"{config.path}: {what} takes {num_bytes / GIB:,.1f} GiB, and this device has {total / GIB:,.1f} GiB; "
            "correct config.json, override it with hf_overrides, or use a smaller model"
        )


@torch.no_grad()
def copy_tensors(
    targets: dict[str, Tensor], stored: dict[str, StoredTensor], shards: dict[str, Shard] | None = None
) -> None:
    """Copy tensors, or the slices in `shards`, from their files; each name in `targets` is one in `stored`."""
    from safetensors import SafetensorError, safe_open

    shards = shards or {}
    names_by_file = defaultdict(list)
    for name in targets:
        names_by_file[stored[name].file].append(name)
    for file, names in names_by_file.items():
        try:
            with safe_open(file, framework="pt") as reader:
                for name in names:
                    if name in shards:
                        source = reader.get_slice(name)[shards[name].slices(stored[name].shape)]
                    else:
                        source = reader.get_tensor(name)
                    targets[name].copy_(source.reshape(targets[name].shape))
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{file} cannot be read as safetensors ({error}); fetch it again") from error


def _is_zero_bias(name: str, tensor: StoredTensor, targets: dict[str, Tensor]) -> bool:
    """AutoGPTQ gives every layer a bias, zeros where the model has none."""
    if name in targets or not name.endswith(".bias"):
        return False
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(tensor.file, framework="pt") as reader:
            return not reader.get_tensor(name).any()
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{tensor.file} cannot be read as safetensors ({error}); fetch it again") from error


def check_fit(
    targets: dict[str, Tensor], stored: dict[str, StoredTensor], config: ModelConfig | MedusaConfig
) -> None:
    """Names, shapes and types of the checkpoint are those of the model, or a ConfigError that lists the rest."""
    names = targets.keys() & stored.keys()
    wrong_shape = (name for name in names if _shape(stored[name].shape) != _shape(targets[name].shape))
    wrong_type = (name for name in names if not _converts(stored[name].dtype, targets[name].dtype))
    faults: dict[str, list[str]] = {
        "missing": [f"{name} {list(targets[name].shape)}" for name in targets.keys() - stored.keys()],
        "unexpected": [f"{name} {list(stored[name].shape)}" for name in stored.keys() - targets.keys()],
        "wrong shape": [f"{n} {list(stored[n].shape)}, model {list(targets[n].shape)}" for n in wrong_shape],
        "wrong type": [f"{n} {stored[n].dtype}, expected {_type_name(targets[n].dtype)}" for n in wrong_type],
    }
    if listed := "; ".join(f"{fault}: {_listed(items)}" for fault, items in faults.items() if items):
        raise ConfigError(
            f"the weights in {config.path} do not fit its config.json ({config.architecture}). {listed}. "
            "Check that both come from the same checkpoint"
        )


def _shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A single number has the shape [] or [1], as its checkpoint likes."""
    return () if math.prod(shape) == 1 else tuple(shape)


def _type_name(target: torch.dtype) -> str:
    return _QUANTISED_DTYPES.get(target, "floating point")


def _converts(stored: str, target: torch.dtype) -> bool:
    """Floating point goes into any floating point; packed and quantised numbers only into what they are."""
    return stored == _type_name(target) or (target not in _QUANTISED_DTYPES and stored in _FLOAT_DTYPES)


def _listed(items: list[str], limit: int = 5) -> str:
    """The first few in order, and how many more there are."""
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(sorted(items)[:limit]) + more


@torch.no_grad()
def fill_with_random(model: nn.Module, seed: int) -> None:
    """Seeded weights for a model without a checkpoint: norms one, the rest uniform with transformers' usual spread.

    A tensor's values depend on the seed and its name, so that every rank of a parallel model has its part of the
    same weights.
    """
    shards = checkpoint_shards(model)
    bound = _DUMMY_STD * math.sqrt(3)
    for name, target in checkpoint_tensors(model).items():
        if name.endswith("norm.weight"):
            target.fill_(1.0)
            continue
        generator = torch.Generator(target.device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        if (shard := shards.get(name)) is None:
            target.uniform_(-bound, bound, generator=generator)
        else:
            whole = target.new_empty(shard.whole_shape(target.shape))
            whole.uniform_(-bound, bound, generator=generator)
            target.copy_(whole[shard.slices(whole.shape)])
