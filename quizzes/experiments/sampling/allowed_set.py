import math
from typing import Any

from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.charts import vega
from quizzes.experiments.sampling._sampler import logits_of, sampler_for


@experiment("E39", megabytes=2000)
def allowed_set(
    ctx: Context,
    probs: list[float] = arg([50, 20, 12, 8, 6, 4], above=0, high=1e6, count=(2, 1000)),
    temperature: float = arg(1.0, above=0, high=100),
    top_k: int = arg(0, 0, 1000),
    top_p: float = arg(1.0, above=0, high=1),
    min_p: float = arg(0.0, 0, 1),
) -> Result:
    """Find the tokens that temperature, min_p, top_k and top_p leave, in the order in which the sampler applies them.

    probs: weights of the tokens 0, 1, 2 ... at temperature 1; they need not add up to 1. A top_k of 0 is off.

    Returns:
        allowed [token ids]
        num_allowed [tokens]
        probs [share]: By token id: the distribution after all filters; it adds up to 1.
        top_prob [share]: Probability of the most likely token.
        entropy_bits [bits]
        order_free: Whether filtering before the temperature would have left the same tokens.
    """
    import numpy as np

    from engine.sample.draft_acceptance import target_probabilities

    def distribution(temperature: float, **filters: Any) -> list[float]:
        plan = sampler_for(len(probs), 1, temperature=temperature, **filters).plan(np.arange(1))
        return target_probabilities(logits_of(probs)[None], plan)[0].tolist()

    filters: dict[str, Any] = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    found = distribution(temperature, **filters)
    allowed = [token for token, p in enumerate(found) if p > 0]
    cold = distribution(1.0, **filters)
    return Result(
        allowed=allowed,
        num_allowed=len(allowed),
        probs=found,
        top_prob=max(found),
        entropy_bits=-sum(p * math.log2(p) for p in found if p > 0),
        order_free=allowed == [token for token, p in enumerate(cold) if p > 0],
    )


def chart(result: Result) -> dict[str, Any]:
    """Probability of each token after the filters."""
    values = [{"token": token, "probability": p} for token, p in enumerate(result.probs)]
    return vega(values, "bar", x="token:O", y="probability:Q")
