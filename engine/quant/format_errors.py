"""Error that rounding to each format causes in the outputs of a model's matrices, on the model's own inputs.

    error of a format = mean over the matrices of |y - y_float| / |y_float|,   y = what the rounded layer puts out

Every layer is rounded to nearest by the same `LinearMethod` that `quantization=` uses: no calibration, no compensation.
So this is about the formats: quantisers such as GPTQ and AWQ start from here and do better.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.layers.linear import Linear
from engine.quant.fp4 import FP4_BLOCKS, quantise_fp4
from engine.quant.online import OnlineConfig
from engine.quant.quantizer.calibration import watch_inputs
from engine.quant.size import layer_bytes
from engine.zoo.model import ShopModel
from prep_common.text import counted

Tell = Callable[[str], None]
Change = Callable[[Tensor], Tensor]
FORMATS = {
    "int8": OnlineConfig("int8"),
    "fp8": OnlineConfig("fp8"),
    "int8 weights": OnlineConfig("int8_weight_only"),
    "int4 g32": OnlineConfig("rtn", group_size=32),
    "int4 g128": OnlineConfig("rtn", group_size=128),
    "nvfp4": OnlineConfig("nvfp4"),
    "mxfp4": OnlineConfig("mxfp4"),
}
ROUNDS_ACTIVATIONS = ("int8", "fp8")


@dataclass(frozen=True)
class FormatResult:
    """One format on all matrices of a model."""

    name: str
    bits_per_weight: float  # Scales and zero points included
    activations: str  # Format of the activations: int8, fp8 or float
    error: float  # Mean over the matrices of the relative error of their outputs


def format_errors(
    model: ShopModel,
    samples: list[Tensor],
    tell: Tell = lambda text: None,
    change: Change = lambda weight: weight,
) -> list[FormatResult]:
    """Every format that the model's shapes allow, on the model's matrices after `change`.

    samples: token ids int64 [1, n] each, which the float model reads to give the matrices their inputs.
    """
    matrices = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    seen = defaultdict(list)  # name -> inputs [tokens, K] of each call
    with torch.no_grad(), watch_inputs(matrices, lambda name, x: seen[name].append(x.flatten(0, -2))):
        for sample in samples:
            model.hidden(sample)
    inputs = {name: torch.cat(seen.pop(name)) for name in matrices if name in seen}
    results = []
    for name, config in FORMATS.items():
        tell(f"rounding {counted(len(inputs), 'matrix', 'matrices')} to {name}")
        group = config.group_size or FP4_BLOCKS.get(name, 1)
        if any(matrices[matrix].in_features % group for matrix in inputs):
            continue
        errors, num_bits, num_weights = [], 0, 0
        for matrix, x in inputs.items():
            weight = change(matrices[matrix].weight.detach())
            layer = rounded_layer(config, weight)
            errors.append(relative_error(layer(x), x @ weight.T))
            num_bits += 8 * (quantise_fp4(weight, name).nbytes if name in FP4_BLOCKS else layer_bytes(layer))
            num_weights += weight.numel()
        activations = name if name in ROUNDS_ACTIVATIONS else "float"
        results.append(FormatResult(name, num_bits / num_weights, activations, sum(errors) / len(errors)))
    return results


def rounded_layer(config: OnlineConfig, weight: Tensor) -> Linear:
    """A layer with this float matrix [N, K], rounded as a model's is while it is loaded."""
    layer = Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float32)
    layer.method = config.linear_method("matrix", layer)
    layer.create_weights()
    layer.weight.data.copy_(weight)
    layer.finish_loading()
    return layer


def relative_error(y: Tensor, expected: Tensor) -> float:
    return float((y - expected).norm() / expected.norm())


def with_large_weights(weight: Tensor, factor: float = 32.0) -> Tensor:
    """A matrix [N, K] with one weight in each row, at another column than in the rows around it, `factor` times as
    large."""
    rows = torch.arange(weight.shape[0])
    weight = weight.clone()
    weight[rows, rows * 37 % weight.shape[1]] *= factor
    return weight
