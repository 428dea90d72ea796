"""The model `shop` (or its draft) in plain torch, with texts in one language."""

from __future__ import annotations

from typing import Any


def texts(folder: Any, language: str, count: int, seed: int, split: str = "train") -> list[Any]:
    """Conversations in one language as token ids int64 [1, n]."""
    from engine.quant.quantizer.calibration import tokenized
    from engine.zoo.corpus import conversations, to_text
    from engine.zoo.tokenizer import load_tokenizer

    found = (c for c in conversations(split, seed, 40 * count) if c.language == language)
    chosen = [to_text(conversation) for conversation, _ in zip(found, range(count), strict=False)]
    return tokenized(chosen, load_tokenizer(folder))


def quantised(
    folder: Any, method: str, samples: list[Any], group_size: int, **options: Any
) -> tuple[Any, Any]:
    """Return the float model with quantised matrices, and the quantiser's report."""
    from engine.quant.quantizer.recipe import Recipe
    from engine.quant.quantizer.run import Report, load_float_model, quantize

    model, original = load_float_model(folder)
    recipe = Recipe.create(method, group_size=group_size, **options)
    report = Report(folder.name, recipe)
    quantize(model, recipe, samples, original, report)
    return model, report


def divergence(exact: Any, model: Any, samples: list[Any]) -> float:
    """KL(exact || model) of the next token, nats per token."""
    import torch

    total = 0.0
    with torch.no_grad():
        for sample in samples:
            expected = exact.logits(exact.hidden(sample)[0]).log_softmax(-1)
            found = model.logits(model.hidden(sample)[0]).log_softmax(-1)
            total += float((expected.exp() * (expected - found)).sum())
    return total / sum(int(sample.shape[1]) for sample in samples)


def exact_match(folder: Any, model: Any, language: str, count: int) -> tuple[int, int]:
    """(answers right to the last character, answers) of unseen test questions in one language."""
    from engine.zoo.corpus import draw_cases
    from engine.zoo.evaluate import forced_match
    from engine.zoo.tokenizer import load_tokenizer

    cases = [case for case in draw_cases(6 * count, seed=5) if case.language == language][:count]
    right = forced_match(model, load_tokenizer(folder), cases)
    return sum(right), len(right)
