from typing import Literal

from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.quantization._shop import divergence, exact_match, quantised, texts


@experiment("E33", seconds=30)
def calibration_shift(
    ctx: Context,
    method: Literal["rtn", "gptq", "awq"] = "gptq",
    group_size: Literal[8, 16] = 16,
    samples: int = arg(8, 1, 16),
    cases: int = arg(24, 0, 64),
) -> Result:
    """Calibrate 4-bit weights in English and in Japanese, and evaluate both in Japanese.

    Quantises `shop-draft` twice with the engine's quantiser; rtn does not calibrate and shows no gap.

    Returns:
        KL of the next token from the float model on Japanese texts, nats per token.
        english: Calibrated on English conversations.
        japanese: Calibrated on Japanese ones.
        gap: english - japanese: what the wrong language costs.
        right_english [answers]: Unseen Japanese questions answered right to the last character.
        right_japanese, right_float, cases [answers]
    """
    from engine.quant.quantizer.run import load_float_model
    from engine.zoo.registry import resolve

    folder = resolve("shop-draft")
    judged = texts(folder, "ja", 4, seed=11)
    exact, _ = load_float_model(folder)
    found, right = {}, {}
    for language in ("en", "ja"):
        model, _ = quantised(folder, method, texts(folder, language, samples, seed=7), group_size)
        found[language] = divergence(exact, model, judged)
        right[language] = exact_match(folder, model, "ja", cases) if cases else (0, 0)
    float_right, total = exact_match(folder, exact, "ja", cases) if cases else (0, 0)
    return Result(
        english=found["en"],
        japanese=found["ja"],
        gap=found["en"] - found["ja"],
        right_english=right["en"][0],
        right_japanese=right["ja"][0],
        right_float=float_right,
        cases=total,
    )
