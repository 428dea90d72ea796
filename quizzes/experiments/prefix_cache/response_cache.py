"""E48: answers from a cache in front of the engine: how many questions it takes, and how many it answers wrongly."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment
from quizzes.experiments.prefix_cache._response_cache import ResponseCache, normalise

TITLES = [
    f"{a} {b}"
    for a in ("Copper", "Quiet", "Paper", "Winter", "Salt")
    for b in ("Harbour", "Fox", "Garden", "Bell")
]
ASPECTS = ("price", "stock", "author", "volumes")
PHRASES = (
    "What is the {aspect} of {title}?",
    "what is the {aspect} of {title}",
    "Please tell me the {aspect} of {title}.",
    "{title}: {aspect}?",
)


@dataclass(frozen=True)
class ResponseHits:
    """Shares of all questions."""

    distinct: Annotated[float, "share"]
    """Questions of which the engine has to answer at least one: different meanings over all questions."""
    exact: Annotated[float, "share"]
    """Answered from the cache when the text must be the same."""
    normalised: Annotated[float, "share"]
    """The same after case and punctuation are dropped."""
    similar: Annotated[float, "share"]
    """Answered when the share of common words reaches the threshold."""
    false_exact: Annotated[float, "share"]
    """Answered from the cache with the answer to another question; of all questions."""
    false_normalised: Annotated[float, "share"]
    false_similar: Annotated[float, "share"]


@experiment("E48")
def response_cache(
    ctx: Context,
    *,
    questions: Annotated[int, Field(ge=10, le=600)] = 300,
    skew: Annotated[float, Field(ge=0, le=3)] = 1.0,
    personal: Annotated[float, Field(ge=0, le=1)] = 0.0,
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.7,
    seed: Annotated[int, Field(ge=0, le=10_000)] = 0,
) -> ResponseHits:
    """Questions of a bookshop before three response caches: exact text, normalised text, similar text.

    80 meanings (20 titles, 4 aspects) in 4 wordings; the k-th most asked has weight 1 / k^skew. personal: share of
    questions that hold an order number, so that nobody else's answer is right. Nothing expires.
    """
    rng = Random(seed)
    meanings = [(title, aspect) for title in TITLES for aspect in ASPECTS]
    rng.shuffle(meanings)
    weights = [1 / (rank + 1) ** skew for rank in range(len(meanings))]
    asked = [_question(rng, meanings, weights, personal) for _ in range(questions)]
    caches = (ResponseCache(), ResponseCache(normalise), ResponseCache(threshold=threshold))
    found = [_serve(cache, asked) for cache in caches]
    return ResponseHits(
        len({meaning for _, meaning in asked}) / questions,
        *(hits / questions for hits, _ in found),
        *(wrong / questions for _, wrong in found),
    )


def _question(
    rng: Random, meanings: list[tuple[str, str]], weights: list[float], personal: float
) -> tuple[str, str]:
    """(text, meaning)."""
    title, aspect = rng.choices(meanings, weights)[0]
    text = rng.choice(PHRASES).format(title=title, aspect=aspect)
    if rng.random() < personal:
        order = f"order {rng.randrange(10**6)}"
        return f"{text} It is for {order}.", f"{title}/{aspect}/{order}"
    return text, f"{title}/{aspect}"


def _serve(cache: ResponseCache, asked: list[tuple[str, str]]) -> tuple[int, int]:
    """(answered from the cache, of those wrong). An answer is right if it answers the question's meaning."""
    hits = wrong = 0
    for text, meaning in asked:
        answer = cache.get(text)
        if answer is None:
            cache.put(text, meaning)
        else:
            hits += 1
            wrong += answer != meaning
    return hits, wrong
