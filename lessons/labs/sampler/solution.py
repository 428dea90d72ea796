"""Solution of lab sampler. The docstrings of the stub state the contract."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

GREEDY_BELOW = 1e-5
SLACK = 1e-9


def penalise(
    logits: Sequence[float],
    prompt: Sequence[int],
    output: Sequence[int],
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
) -> list[float]:
    scaled = {token for token in (*prompt, *output) if token < len(logits)}
    counts = Counter(token for token in output if token < len(logits))
    penalised = list(logits)
    for token in scaled:
        logit = penalised[token]
        penalised[token] = logit / repetition if logit > 0 else logit * repetition
    for token, count in counts.items():
        penalised[token] -= frequency * count + presence
    return penalised


def probabilities(
    logits: Sequence[float], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> list[float]:
    peak = max(logits)
    if any(math.isnan(logit) for logit in logits) or math.isinf(peak):
        raise ValueError("logits must not be NaN or +inf, and not all of them -inf")
    if temperature < GREEDY_BELOW:
        best = list(logits).index(peak)
        return [1.0 if token == best else 0.0 for token in range(len(logits))]
    weights = _normalised([math.exp((logit - peak) / temperature) for logit in logits])
    weights = _above(weights, min_p * max(weights) - SLACK)
    if 0 < top_k < len(weights):
        weights = _above(weights, sorted(weights, reverse=True)[top_k - 1])
    if top_p < 1:
        weights = _above(weights, _crossing(weights, top_p))
    return weights


def _normalised(weights: Sequence[float]) -> list[float]:
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _above(weights: Sequence[float], floor: float) -> list[float]:
    """Return the weights without those below the floor, with a sum of 1."""
    return _normalised([weight if weight >= floor else 0.0 for weight in weights])


def _crossing(weights: Sequence[float], top_p: float) -> float:
    """Return the weight at which the sum from the largest down reaches top_p."""
    total = 0.0
    for weight in sorted(weights, reverse=True):
        total += weight
        if total + SLACK >= top_p:
            return weight
    return 0.0


def draw(probabilities: Sequence[float], u: float) -> int:
    total, last = 0.0, 0
    for token, probability in enumerate(probabilities):
        total += probability
        if total > u:
            return token
        if probability > 0:
            last = token
    return last
