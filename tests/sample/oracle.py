"""The sampling rules once more, slow and obvious: one row, float64, plain loops.

Shares no code with the sampler.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from engine.sampling_params import SamplingParams


def edited_logits(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    eos: Sequence[int] = (),
) -> list[float]:
    """Logits after bias, penalties and bans."""
    edited = [float(value) for value in logits]
    for token, bias in (params.logit_bias or {}).items():
        edited[token] += bias
    for token in {*prompt, *output}:
        if edited[token] > 0:
            edited[token] /= params.repetition_penalty
        else:
            edited[token] *= params.repetition_penalty
    for token in set(output):
        edited[token] -= params.frequency_penalty * list(output).count(token)
        edited[token] -= params.presence_penalty
    banned: set[int] = set()
    if params.allowed_token_ids is not None:
        banned |= set(range(len(edited))) - set(params.allowed_token_ids)
    for word in params.bad_words_token_ids:
        *start, last = word
        if not start or list(output)[-len(start) :] == start:
            banned.add(last)
    if len(output) < params.min_tokens:
        banned |= {*eos, *params.stop_token_ids}
    return [-math.inf if token in banned else value for token, value in enumerate(edited)]


def distribution(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    eos: Sequence[int] = (),
) -> np.ndarray:
    """Probability of every token: float64 [V]."""
    edited = edited_logits(logits, params, prompt, output, eos)
    if params.is_greedy:
        best = max(range(len(edited)), key=lambda token: edited[token])  # the first of equals
        return np.eye(len(edited))[best]
    peak = max(edited)
    probs = np.array([math.exp((value - peak) / params.temperature) for value in edited])
    probs /= probs.sum()
    if params.min_p > 0:
        probs[probs < params.min_p * probs.max()] = 0
    if 0 < params.top_k < len(probs):
        probs[probs < sorted(probs, reverse=True)[params.top_k - 1]] = 0
    probs /= probs.sum()
    if params.top_p < 1:
        mass = 0.0
        for prob in sorted(probs, reverse=True):
            mass += prob
            if mass >= params.top_p:  # this one crosses p, and stays
                probs[probs < prob] = 0
                break
    return probs / probs.sum()
