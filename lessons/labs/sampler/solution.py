"""Lab sampler: from a list of logits to a token.

The seam is the sampler of engine/sample (processors.py for the penalties, kernels/reference/sampling.py for the
filters); the order is that of vLLM v1/sample/sampler.py. Everything here is one row of a batch, in plain floats.

    logits  -- repetition, frequency, presence -->  logits  -- temperature -->  softmax
            -- min_p, then top_k among the survivors, then top_p among those -->  probabilities  -- u -->  token

    probabilities   0.5   0.2   0.2   0.1
    top_k=2         stay  stay  stay  -           equally likely tokens stay or go together
    top_p=0.6       stay  stay  stay  -           0.5 is less than 0.6; the token that crosses it stays, with its equals

Ids are indices into the logits. A logit of -inf is a banned token. No function changes its arguments.
"""

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
    """Return new logits, less favourable for tokens that occurred before.

    1. repetition (> 0): the logit of each token that occurs in prompt or output is divided by it if the logit is
       positive, otherwise multiplied; once, however often the token occurs.
    2. Then, for tokens of the output only: minus frequency times the number of occurrences, minus presence once.
    Ids of len(logits) and above are placeholders, of images for example: ignore them.
    """
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
    """Return the distribution that is sampled: one number per token, the sum is 1, dropped tokens have 0.0.

    1. temperature below 1e-5 is greedy: 1.0 for the largest logit (of equals the lowest id), and no filter applies.
       Otherwise take the softmax of logits / temperature. It must not overflow, whatever the logits and temperature.
    2. min_p: drop tokens less likely than min_p times the most likely one.
    3. top_k: drop a token if at least top_k of the tokens left are more likely. 0 and -1 drop none.
    4. top_p: make the tokens left sum to 1 and add them from the most likely down. The token at which the sum reaches
       top_p is the last that stays; tokens as likely as it stay too. 1.0 drops none.
    5. Make the rest sum to 1.

    Tokens with equal logits always share their fate. Against rounding, a value or a sum that is less than 1e-9 below
    its bound in 2 or 4 counts as having reached it. Raises ValueError if every logit is -inf, or if one is NaN or +inf.
    """
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
    """Return the token that 0 <= u < 1 selects: the lowest id at which the sum of probabilities[: id + 1] exceeds u.

    So a token of probability 0.0 is never drawn. If no sum exceeds u, because of rounding: the last id with a
    probability above 0.
    """
    total, last = 0.0, 0
    for token, probability in enumerate(probabilities):
        total += probability
        if total > u:
            return token
        if probability > 0:
            last = token
    return last
