"""E39: thousands of draws from one distribution, counted, and held against what the filters promise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment
from quizzes.experiments.sampling.allowed_set import Weight, allowed_set


@dataclass(frozen=True)
class Drawn:
    """Counts of `draws` tokens, each drawn with a seed of its own."""

    counts: Annotated[list[int], "draws"]
    """By token id."""
    distinct: Annotated[int, "tokens"]
    greedy_share: Annotated[float, "share"]
    """How often the most likely token was drawn."""
    expected: Annotated[list[float], "draws"]
    chi_square: Annotated[float, "1"]
    degrees: Annotated[int, "1"]
    """Degrees of freedom: tokens that can be drawn, less one."""


@experiment("E39", megabytes=2000)
def drawn(
    ctx: Context,
    *,
    probs: Annotated[list[Weight], Field(min_length=2, max_length=200)] = (50, 20, 12, 8, 6, 4),
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0,
    top_k: Annotated[int, Field(ge=0, le=1000)] = 0,
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0,
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0,
    draws: Annotated[int, Field(ge=10, le=20_000)] = 4000,
) -> Drawn:
    """Draw with the engine's sampler and count. Seeds are 0, 1, 2 ..., so the counts are the same everywhere.

    A temperature of 0 is greedy: the filters then have nothing to say.
    """
    from quizzes.experiments.sampling._sampler import draw, logits_of

    filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    tokens = draw(logits_of(probs), draws, temperature=temperature, **filters)
    counts = [0] * len(probs)
    for token in tokens:
        counts[token] += 1
    best = max(range(len(probs)), key=lambda token: probs[token])
    if temperature < 1e-5:
        shares = [float(token == best) for token in range(len(probs))]
    else:
        shares = allowed_set(ctx, probs=probs, temperature=temperature, **filters).probs
    expected = [draws * share for share in shares]
    return Drawn(
        counts=counts,
        distinct=sum(count > 0 for count in counts),
        greedy_share=counts[best] / draws,
        expected=expected,
        chi_square=sum((n - e) ** 2 / e for n, e in zip(counts, expected, strict=True) if e > 0),
        degrees=sum(e > 0 for e in expected) - 1,
    )
