"""Reference solutions of lesson 04."""

# ruff: noqa: E402, F811

# exercise 04.1
import math


def filter_probs(logits: list[float], temperature: float, top_k: int, top_p: float) -> list[float]:
    """Return the distribution that is sampled from, by token id; it adds up to 1.

    Order: temperature, top-k, top-p among the survivors. Tokens that tie with the last survivor survive.
    temperature 0: the smallest id with the largest logit gets 1. top_k 0 and top_p 1 are off. A logit of -inf is a
    banned token. The token whose mass reaches top_p stays.
    """
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
    """Return penalised logits; the argument stays as it is.

    repetition: tokens of prompt or output; divides positive logits and multiplies the others.
    frequency, presence: tokens of the output; subtracted per occurrence, and once.
    """
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
    """Return the token whose share of the line from 0 to 1 contains `uniform`, 0 <= uniform < 1.

    Tokens lie on the line in order of their ids; a share includes its left end. Never returns a token of probability 0,
    even where rounding leaves the sum of probs a little below 1.
    """
    passed, chosen = 0.0, -1
    for token, prob in enumerate(probs):
        if prob > 0:
            chosen = token
            passed += prob
            if uniform < passed:
                break
    return chosen
