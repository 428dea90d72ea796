"""E33: what calibration texts are worth: the same method calibrated in English and in Japanese, judged in Japanese."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Shift:
    """KL of the next token from the float model on Japanese texts, nats per token."""

    english: float
    """Calibrated on English conversations."""
    japanese: float
    """Calibrated on Japanese ones."""
    gap: float
    """english - japanese: what the wrong language costs."""
    right_english: Annotated[int, "answers"]
    """Unseen Japanese questions answered right to the last character."""
    right_japanese: Annotated[int, "answers"]
    right_float: Annotated[int, "answers"]
    cases: Annotated[int, "answers"]


@experiment("E33", seconds=30)
def calibration_shift(
    ctx: Context,
    *,
    method: Literal["rtn", "gptq", "awq"] = "gptq",
    group_size: Literal[8, 16] = 16,
    samples: Annotated[int, Field(ge=1, le=16)] = 8,
    cases: Annotated[int, Field(ge=0, le=64)] = 24,
) -> Shift:
    """`shop-draft` in 4 bits, twice, with the engine's quantiser; rtn does not calibrate and shows no gap."""
    from engine.quant.quantizer.run import load_float_model
    from engine.zoo.registry import resolve
    from quizzes.experiments.quantization._shop import divergence, exact_match, quantised, texts

    folder = resolve("shop-draft")
    judged = texts(folder, "ja", 4, seed=11)
    exact, _ = load_float_model(folder)
    found, right = {}, {}
    for language in ("en", "ja"):
        model, _ = quantised(folder, method, texts(folder, language, samples, seed=7), group_size)
        found[language] = divergence(exact, model, judged)
        right[language] = exact_match(folder, model, "ja", cases) if cases else (0, 0)
    float_right, total = exact_match(folder, exact, "ja", cases) if cases else (0, 0)
    return Shift(
        found["en"],
        found["ja"],
        found["en"] - found["ja"],
        right["en"][0],
        right["ja"][0],
        float_right,
        total,
    )
