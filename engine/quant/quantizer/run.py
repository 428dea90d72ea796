"""The whole way: float checkpoint -> calibration -> rounded matrices -> a folder in a public format.

    for every decoder layer:
        samples through it, in floats      what each matrix reads (`calibration.py`)
        awq, smoothquant: fold scales      nothing changes but what is hard to round (`folding.py`)
        round every matrix                 (`encode.py`)
        samples through it, rounded        what the next layer reads

A quantised folder appears in one piece when everything is done: after Ctrl-C there is none.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.config import ConfigError
from engine.quant.quantizer.calibration import InputStatistics, watched_inputs
from engine.quant.quantizer.encode import encode, group_of, quantization_config, stored_dtype
from engine.quant.quantizer.folding import INPUT_OF, fold_groups, submodule, watched
from engine.quant.quantizer.methods import search_scale, smoothing_scale
from engine.quant.quantizer.recipe import Recipe
from engine.zoo.export import load_model
from engine.zoo.model import DecoderLayer, ShopModel, rope_tables

Tell = Callable[[str], None]
COPIED = ("*.json", "*.jinja", "*.model", "*.txt")


@dataclass(frozen=True)
class MatrixReport:
    """One matrix: how far its outputs are off, and what it takes on disk."""

    name: str
    shape: tuple[int, ...]
    error: float  # Squared error of the outputs over their squares, on what calibration put in
    stored_bytes: int

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.stored_bytes / (self.shape[0] * self.shape[1])


@dataclass
class Report:
    """Sizes of a quantised checkpoint, and its errors on the calibration samples."""

    model: str
    recipe: Recipe
    output: str = ""
    num_samples: int = 0
    num_tokens: int = 0
    matrices: list[MatrixReport] = field(default_factory=list)
    float_bytes: int = 0  # Embeddings, norms and what else stays float
    file_bytes: int = 0
    original_bytes: int = 0

    @property
    def error(self) -> float:
        """Mean over the matrices."""
        return sum(matrix.error for matrix in self.matrices) / len(self.matrices)

    @property
    def bits_per_weight(self) -> float:
        """Bits per weight of the quantised matrices, scales and zero points included."""
        numbers = sum(matrix.shape[0] * matrix.shape[1] for matrix in self.matrices)
        return 8 * sum(matrix.stored_bytes for matrix in self.matrices) / numbers

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "error": self.error, "bits_per_weight": self.bits_per_weight}


def load_float_model(folder: Path) -> tuple[ShopModel, torch.dtype]:
    """The model in fp32, and the type it is stored in; a ConfigError if we cannot calibrate it."""
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    needed = {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}
    refused = [f"{key} = {raw.get(key)!r}" for key, value in needed.items() if raw.get(key) != value]
    unknown = ("quantization_config", "rope_scaling", "attention_bias", "mlp_bias")
    refused += [key for key in unknown if raw.get(key)]
    if refused:
        raise ConfigError(
            f"{folder} cannot be quantised here ({', '.join(refused)}): the quantiser runs models of the zoo's "
            "layout, float Llamas with a tied head and without biases. Any other is rounded while it is loaded: "
            "quantization='rtn', 'int8' or 'fp8'"
        )
    dtypes = {tensor.dtype for tensor in load_file(str(folder / "model.safetensors")).values()}
    return load_model(folder), dtypes.pop() if len(dtypes) == 1 else torch.float32


@torch.no_grad()
def quantize(
    model: ShopModel,
    recipe: Recipe,
    samples: list[Tensor],
    original: torch.dtype,
    report: Report,
    tell: Tell = lambda text: None,
) -> dict[str, Tensor]:
    """All tensors of the quantised checkpoint. The model's matrices become what they stand for, in place.

    samples: token ids int64 [1, n] each.
    """
    layers = cast("list[DecoderLayer]", list(model.model.layers))
    if recipe.is_grouped:
        for name in INPUT_OF:
            group_of(recipe, name, tuple(submodule(layers[0], name).weight.shape))
    dtype = stored_dtype(recipe, original)
    tables = [rope_tables(model.config, torch.arange(sample.shape[1])) for sample in samples]
    hidden = [model.model.embed_tokens(sample) for sample in samples]
    stored: dict[str, Tensor] = {}

    for index, layer in enumerate(layers):
        tell(f"layer {index + 1} of {len(layers)}")
        with watched_inputs(watched(layer)) as inputs:
            for x, (cos, sin) in zip(hidden, tables, strict=True):
                layer(x, cos, sin, None)
        _fold(recipe, layer, inputs, dtype, tell)
        for name, input_name in INPUT_OF.items():
            matrix, statistics = submodule(layer, name), inputs[input_name]
            encoded = encode(recipe, name, matrix.weight, statistics, original)
            full_name = f"model.layers.{index}.{name}"
            signal = statistics.squared_error(matrix.weight)
            error = statistics.squared_error(encoded.restored - matrix.weight) / signal if signal else 0.0
            num_bytes = sum(tensor.nbytes for tensor in encoded.tensors.values())
            report.matrices.append(MatrixReport(full_name, tuple(matrix.weight.shape), error, num_bytes))
            stored |= {f"{full_name}.{key}": tensor for key, tensor in encoded.tensors.items()}
            matrix.weight.copy_(encoded.restored)
        hidden = [layer(x, cos, sin, None)[0] for x, (cos, sin) in zip(hidden, tables, strict=True)]

    matrices = {f"{matrix.name}.weight" for matrix in report.matrices}
    floats = {name: weight for name, weight in model.state_dict().items() if name not in matrices}
    stored |= {name: weight.to(dtype) for name, weight in floats.items()}
    report.num_samples, report.num_tokens = len(samples), sum(sample.shape[1] for sample in samples)
    report.float_bytes = sum(weight.numel() * dtype.itemsize for weight in floats.values())
    return stored


def _fold(
    recipe: Recipe, layer: DecoderLayer, inputs: dict[str, InputStatistics], dtype: torch.dtype, tell: Tell
) -> None:
    """Move the scales of awq and smoothquant between each layer and the one before it."""
    if recipe.method not in ("awq", "smoothquant"):
        return
    for group in fold_groups(layer, only_norms=recipe.method == "smoothquant"):
        statistics, weights = inputs[group.input_name], [linear.weight for linear in group.linears]
        if recipe.method == "smoothquant":
            scale = smoothing_scale(weights, statistics.abs_max, recipe.alpha)
        else:
            group_size = group_of(recipe, group.input_name, tuple(weights[0].shape))
            choice = search_scale(weights, statistics, group_size)
            gain = choice.error / choice.error_unscaled if choice.error_unscaled else 1.0
            tell(f"  {group.input_name}: alpha {choice.alpha:.2f}, error {gain:.0%} of plain rounding")
            scale = choice.scale
        statistics.divide(group.fold(scale, dtype))


def write_checkpoint(
    source: Path,
    output: Path,
    stored: dict[str, Tensor],
    recipe: Recipe | None,
    dtype: torch.dtype,
    report: Report | None,
) -> int:
    """Write `output` in one piece: tensors, the source's other files, config.json. Returns the weight file's bytes.

    recipe: None for a checkpoint that stays float. Raises OSError, and then leaves nothing behind.
    """
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config.pop("dtype", None)
    config["torch_dtype"] = str(dtype).removeprefix("torch.")
    if recipe is not None:
        config["quantization_config"] = quantization_config(recipe)
    with _new_folder(output) as folder:
        for pattern in COPIED:
            for file in source.glob(pattern):
                shutil.copyfile(file, folder / file.name)
        text = json.dumps(config, indent=2, ensure_ascii=False)
        (folder / "config.json").write_text(text + "\n", encoding="utf-8")
        file = folder / "model.safetensors"
        try:
            save_file(
                {name: tensor.contiguous() for name, tensor in stored.items()}, str(file), {"format": "pt"}
            )
        except SafetensorError as error:
            raise OSError(str(error)) from error
        file.chmod(0o644)  # safetensors writes it for its owner only
        size = file.stat().st_size
        if report is not None:
            report.output, report.file_bytes = str(output), size
            text = json.dumps(report.as_dict(), indent=2)
            (folder / "quantization_report.json").write_text(text + "\n", encoding="utf-8")
    return size


@contextmanager
def _new_folder(output: Path) -> Iterator[Path]:
    """A folder beside `output` that takes its place when the block is over, and disappears if it is not."""
    fresh = output.with_name(f".{output.name}.{os.getpid()}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        yield fresh
        old = output.with_name(f".{output.name}.{os.getpid()}.old")
        if output.exists():
            output.rename(old)
        fresh.rename(output)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
