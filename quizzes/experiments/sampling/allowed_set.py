"""E39: which tokens temperature, min_p, top_k and top_p leave, in the order in which the sampler applies them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from quizzes.experiments import Context, experiment

Weight = Annotated[float, Field(gt=0, le=1e6)]


@dataclass(frozen=True)
class Allowed:
    """What the next token may be."""

    allowed: Annotated[list[int], "token ids"]
    num_allowed: Annotated[int, "tokens"]
    probs: Annotated[list[float], "share"]
    """By token id: what is drawn from, all filters applied; they add up to 1."""
    top_prob: Annotated[float, "share"]
    """Of the most likely token."""
    entropy_bits: Annotated[float, "bits"]
    order_free: bool
    """Whether filtering before the temperature would have left the same tokens."""


@experiment("E39", megabytes=2000)
def allowed_set(
    ctx: Context,
    *,
    probs: Annotated[list[Weight], Field(min_length=2, max_length=1000)] = (50, 20, 12, 8, 6, 4),
    temperature: Annotated[float, Field(gt=0, le=100)] = 1.0,
    top_k: Annotated[int, Field(ge=0, le=1000)] = 0,
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0,
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0,
) -> Allowed:
    """The distribution that the engine's sampler draws from.

    probs: weights of the tokens 0, 1, 2 ... at temperature 1; they need not add up to 1. A top_k of 0 is off.
    """
    import numpy as np

    from engine.sample.verify import target_probabilities
    from quizzes.experiments.sampling._sampler import logits_of, sampler_for

    def distribution(temperature: float, **filters: float) -> list[float]:
        plan = sampler_for(len(probs), 1, temperature=temperature, **filters).plan(np.arange(1))
        return target_probabilities(logits_of(probs)[None], plan)[0].tolist()

    filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    found = distribution(temperature, **filters)
    allowed = [token for token, p in enumerate(found) if p > 0]
    cold = distribution(1.0, **filters)
    return Allowed(
        allowed=allowed,
        num_allowed=len(allowed),
        probs=found,
        top_prob=max(found),
        entropy_bits=-sum(p * math.log2(p) for p in found if p > 0),
        order_free=allowed == [token for token, p in enumerate(cold) if p > 0],
    )


def chart(result: Allowed) -> dict[str, Any]:
    """What each token is drawn with; tokens that were filtered out have no bar."""
    values = [{"token": token, "probability": p} for token, p in enumerate(result.probs)]
    return {
        "data": {"values": values},
        "mark": "bar",
        "encoding": {
            "x": {"field": "token", "type": "ordinal"},
            "y": {"field": "probability", "type": "quantitative"},
        },
    }
