from typing import Literal

from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.quantization._shop import divergence, quantised, texts

METHODS = ("rtn", "gptq", "awq")
Language = Literal["en", "ja"]


@experiment("E34", "E33", seconds=30)
def int4_methods(
    ctx: Context,
    group_size: Literal[8, 16] = 16,
    calibrate: Language = "ja",
    judge: Language = "ja",
    samples: int = arg(3, 1, 16),
) -> Result:
    """Quantise `shop-draft` to 4 bits with RTN, GPTQ and AWQ; calibrate in one language and evaluate in another.

    Returns:
        KL of the next token from the float model, nats per token, on texts not used for calibration.
        rtn, gptq, awq
        order: Smallest divergence first.
        rtn_layer_error, gptq_layer_error, awq_layer_error: Squared output error over the outputs' squares on
            calibration inputs, mean over all matrices.
        bits [bits]: Per matrix weight of the AWQ checkpoint, scales and zero points included.
    """
    from engine.quant.quantizer.run import load_float_model
    from engine.zoo.registry import resolve

    folder = resolve("shop-draft")
    seen, judged = texts(folder, calibrate, samples, seed=7), texts(folder, judge, 4, seed=11)
    exact, _ = load_float_model(folder)
    found, layer, bits = {}, {}, 0.0
    for method in METHODS:
        model, report = quantised(folder, method, seen, group_size)
        found[method], layer[method] = divergence(exact, model, judged), report.error
        bits = report.bits_per_weight
    return Result(
        **found,
        order=sorted(found, key=found.__getitem__),
        rtn_layer_error=layer["rtn"],
        gptq_layer_error=layer["gptq"],
        awq_layer_error=layer["awq"],
        bits=bits,
    )
