"""Reference solutions of lesson 04."""

# ruff: noqa: E402, F811

# exercise 04.1
import math


def filter_probs(logits: list[float], temperature: float, top_k: int, top_p: float) -> list[float]:
    peak = max(logits)
    if temperature == 0:
        best = logits.index(peak)
        return [float(token == best) for token in range(len(logits))]
    weights = [math.exp((logit - peak) / temperature) for logit in logits]
    if 0 < top_k < len(weights):
        floor = sorted(weights, reverse=True)[top_k - 1]
        weights = [weight if weight >= floor else 0.0 for weight in weights]
    if top_p < 1:
        wanted, mass = top_p * sum(weights), 0.0
        for floor in sorted(weights, reverse=True):
            mass += floor
            if mass >= wanted:
                break
        weights = [weight if weight >= floor else 0.0 for weight in weights]
    total = sum(weights)
    return [weight / total for weight in weights]


# exercise 04.2
from collections import Counter


def apply_penalties(
    logits: list[float],
    prompt_ids: list[int],
    output_ids: list[int],
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
) -> list[float]:
    counts = Counter(output_ids)
    seen = counts.keys() | set(prompt_ids)
    penalised = list(logits)
    for token in seen:
        logit = logits[token]
        penalised[token] = logit / repetition if logit > 0 else logit * repetition
    for token, count in counts.items():
        penalised[token] -= frequency * count + presence
    return penalised


# exercise 04.3
def sample(probs: list[float], uniform: float) -> int:
    passed, chosen = 0.0, -1
    for token, prob in enumerate(probs):
        if prob > 0:
            chosen = token
            passed += prob
            if uniform < passed:
                break
    return chosen
