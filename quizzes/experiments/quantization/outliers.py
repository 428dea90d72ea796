from typing import Any

from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.quantization._shop import texts

LAYER = 2


@experiment("E31")
def outliers(ctx: Context, factor: int = arg(64, 1, 4096), tokens: int = arg(256, 8, 1024)) -> Result:
    """Multiply real activations with outlier channels in several 8-bit ways and compare the errors.

    Inputs of the query projection of layer 2 of `shop` on a shop conversation. `factor` (a power of two) enlarges two
    channels and shrinks the weights that read them by the same factor, so the float model stays the same bit for bit.

    Returns:
        |y - exact| / |exact| over all outputs of one projection (Frobenius norms).
        weight_only: W8A16: int8 weights per output channel, activations as they are.
        w8a8_tensor: int8 weights; one scale for all activations of the batch.
        w8a8_token: One scale for each token: what int8 kernels do.
        llm_int8: Per token, but activations beyond 6 stay floats.
        smoothquant: Per token, after outliers were moved into the weights.
        fp8: e4m3 weights per channel, activations per token.
        order: Names from the smallest error to the largest.
        outlier_ratio [x]: Largest |activation| over the median one.
    """
    import torch

    from engine.quant.llm_int8 import llm_int8_linear
    from engine.quant.quantizer.folding import inject_outliers
    from engine.quant.quantizer.smoothquant import smoothing_scale
    from engine.zoo.export import load_model
    from engine.zoo.registry import resolve
    from kernels import ops
    from kernels.ops import dequantise_int8, quantise_fp8, quantise_int8

    folder = resolve("shop")
    model = load_model(folder)
    if factor > 1:
        inject_outliers(model, factor=float(factor))
    x, weight = _inputs(model, texts(folder, "en", 3, seed=3), tokens)
    exact = x.double() @ weight.double().T
    qweight, scale = quantise_int8(weight)
    flat, tensor_scale = quantise_int8(x.reshape(1, -1))
    smooth = smoothing_scale([weight], x.abs().amax(0), 0.5)
    smooth_weight = quantise_int8(weight * smooth)
    fp8_weight = quantise_fp8(weight)
    with torch.no_grad():
        found = {
            "weight_only": x @ dequantise_int8(qweight, scale).T,
            "w8a8_tensor": dequantise_int8(flat, tensor_scale).reshape(x.shape)
            @ dequantise_int8(qweight, scale).T,
            "w8a8_token": ops.int8_linear(x, qweight, scale),
            "llm_int8": llm_int8_linear(x, qweight, scale),
            "smoothquant": ops.int8_linear(x / smooth, *smooth_weight),
            "fp8": ops.fp8_linear(x, *fp8_weight),
        }
    errors = {name: float((y.double() - exact).norm() / exact.norm()) for name, y in found.items()}
    ratio = float(x.abs().max() / x.abs().median())
    return Result(**errors, order=sorted(errors, key=errors.__getitem__), outlier_ratio=ratio)


def _inputs(model: Any, samples: list[Any], tokens: int) -> tuple[Any, Any]:
    """Return the inputs of the query projection [tokens, hidden], and its matrix."""
    import torch

    seen: list[Any] = []
    projection = model.model.layers[LAYER].self_attn.q_proj
    handle = projection.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0].detach()))
    with torch.no_grad():
        for sample in samples:
            model.hidden(sample)
    handle.remove()
    return torch.cat(seen)[:tokens].contiguous(), projection.weight.detach()
