"""E33 and E34 on a trained model: which method is nearer to the float model, and what calibration texts are worth.

shop-draft in 4 bits, groups of 16, judged on Japanese conversations outside the calibration set: the mean KL divergence
of its next-token distributions from the float model's, in nats.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.quant.quantizer.calibration import tokenized
from engine.quant.quantizer.recipe import Recipe
from engine.quant.quantizer.run import Report, load_float_model, quantize
from engine.zoo.corpus import conversations, to_text
from engine.zoo.model import ShopModel
from engine.zoo.registry import resolve
from engine.zoo.tokenizer import load_tokenizer

DRAFT = resolve("shop-draft")


def texts(language: str, count: int, seed: int) -> list[Tensor]:
    """Conversations in one language as token ids."""
    found = (c for c in conversations("train", seed, 20 * count) if c.language == language)
    chosen = [to_text(conversation) for conversation, _ in zip(found, range(count), strict=False)]
    return tokenized(chosen, load_tokenizer(DRAFT))


@torch.no_grad()
def divergence(model: ShopModel, samples: list[Tensor]) -> float:
    """KL(float || model), nats per token."""
    exact, _ = load_float_model(DRAFT)
    total = 0.0
    for sample in samples:
        expected = exact.logits(exact.hidden(sample)[0]).log_softmax(-1)
        found = model.logits(model.hidden(sample)[0]).log_softmax(-1)
        total += float((expected.exp() * (expected - found)).sum())
    return total / sum(sample.shape[1] for sample in samples)


@pytest.fixture(scope="module")
def divergences() -> dict[tuple[str, str], float]:
    """(method, language of the calibration texts) -> divergence on Japanese."""
    judged, results = texts("ja", 6, seed=11), {}
    for language in ("en", "ja"):
        samples = texts(language, 12, seed=7)
        for method, options in (("rtn", {}), ("gptq", {}), ("awq", {})):
            model, original = load_float_model(DRAFT)
            recipe = Recipe.create(method, group_size=16, **options)
            quantize(model, recipe, samples, original, Report("shop-draft", recipe))
            results[method, language] = divergence(model, judged)
    return results


@pytest.mark.slow
def test_gptq_and_awq_stay_nearer_to_the_float_model_than_rounding(divergences: dict[Any, float]) -> None:
    assert divergences["gptq", "ja"] < 0.6 * divergences["rtn", "ja"], divergences
    assert divergences["awq", "ja"] < 0.8 * divergences["rtn", "ja"], divergences


@pytest.mark.slow
def test_calibration_in_another_language_costs_gptq_more_than_awq(divergences: dict[Any, float]) -> None:
    """GPTQ compensates errors for the inputs it saw; AWQ takes from them only which channels are large."""
    loss = {
        method: divergences[method, "en"] - divergences[method, "ja"] for method in ("rtn", "gptq", "awq")
    }
    assert loss["rtn"] == 0, "nothing is calibrated"
    assert loss["gptq"] > 0.02 and loss["gptq"] > 2 * loss["awq"], divergences
