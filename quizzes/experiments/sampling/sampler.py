"""The engine's sampler without an engine: filters, draws, penalties."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from engine.core.sched_output import RequestInit
from engine.sampling_params import SamplingParams
from quizzes.experiments import Result, arg, experiment
from quizzes.experiments.charts import vega


def logits_of(probs: Sequence[float]) -> Any:
    """Return fp32 [V] logits whose softmax at temperature 1 is proportional to `probs`."""
    import torch

    return torch.tensor(list(probs), dtype=torch.float64).log().float()


def sampler_for(vocab_size: int, rows: int, prompt: Sequence[int] = (0,), **params: Any) -> Any:
    """Return a sampler for `rows` requests with equal parameters and seeds 0, 1, 2 ..."""
    from engine.sample.sampler import Sampler

    sampler = Sampler(vocab_size, rows)
    settings = SamplingParams(**params)
    for slot in range(rows):
        sampler.add_request(slot, RequestInit(list(prompt), len(prompt), settings, frozenset(), slot))
    return sampler


def draw(logits: Any, rows: int, **params: Any) -> list[int]:
    """Return `rows` independent draws from logits fp32 [V] with the same parameters."""
    import numpy as np

    from engine.sample.processors import SampleBatch

    sampler = sampler_for(len(logits), rows, **params)
    slots = np.arange(rows)
    ones = np.ones(rows, np.int64)
    batch = SampleBatch(slots, ones, ones, np.zeros((rows, 2), np.int32))
    return list(sampler(logits.repeat(rows, 1), batch).token_ids.tolist())


@experiment("E39", megabytes=2000)
def allowed_set(
    probs: list[float] = arg([50, 20, 12, 8, 6, 4], above=0, high=1e6, count=(2, 1000)),
    temperature: float = arg(1.0, above=0, high=100),
    top_k: int = arg(0, 0, 1000),
    top_p: float = arg(1.0, above=0, high=1),
    min_p: float = arg(0.0, 0, 1),
) -> Result:
    """Find the tokens that temperature, min_p, top_k and top_p leave, in the order in which the sampler applies them.

    probs: weights of the tokens 0, 1, 2 ... at temperature 1; they need not add up to 1. A top_k of 0 is off.

    Returns:
        allowed [token ids]; num_allowed [tokens]
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
    chances = distribution(temperature, **filters)
    allowed = [token for token, p in enumerate(chances) if p > 0]
    cold = distribution(1.0, **filters)
    return Result(
        allowed=allowed,
        num_allowed=len(allowed),
        probs=chances,
        top_prob=max(chances),
        entropy_bits=-sum(p * math.log2(p) for p in chances if p > 0),
        order_free=allowed == [token for token, p in enumerate(cold) if p > 0],
    )


def allowed_set_chart(result: Result) -> dict[str, Any]:
    """Probability of each token after the filters."""
    columns = {"token": range(len(result.probs)), "probability": result.probs}
    return vega(columns, "bar", x="token:O", y="probability:Q")


@experiment("E39", megabytes=2000)
def drawn(
    probs: list[float] = arg([50, 20, 12, 8, 6, 4], above=0, high=1e6, count=(2, 200)),
    temperature: float = arg(1.0, 0, 100),
    top_k: int = arg(0, 0, 1000),
    top_p: float = arg(1.0, above=0, high=1),
    min_p: float = arg(0.0, 0, 1),
    draws: int = arg(4000, 10, 20_000),
) -> Result:
    """Draw thousands of tokens with the engine's sampler and compare their counts with the filtered distribution.

    Seeds are 0, 1, 2 ..., so the counts are the same everywhere. A temperature of 0 is greedy, without filters.

    Returns: Counts of `draws` tokens, each drawn with its own seed.
        counts [draws]: Draws by token id.
        distinct [tokens]
        greedy_share [share]: Share of draws of the most likely token.
        expected [draws]; chi_square [1]
        degrees [1]: Degrees of freedom: tokens that can be drawn, less one.
    """
    filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    tokens = Counter(draw(logits_of(probs), draws, temperature=temperature, **filters))
    counts = [tokens[token] for token in range(len(probs))]
    best = probs.index(max(probs))
    if temperature < 1e-5:
        shares = [float(token == best) for token in range(len(probs))]
    else:
        shares = allowed_set(probs=probs, temperature=temperature, **filters).probs
    expected = [draws * share for share in shares]
    return Result(
        counts=counts,
        distinct=len(tokens),
        greedy_share=counts[best] / draws,
        expected=expected,
        chi_square=sum((n - e) ** 2 / e for n, e in zip(counts, expected, strict=True) if e > 0),
        degrees=sum(e > 0 for e in expected) - 1,
    )


@experiment("E39", megabytes=2000)
def penalties(
    logits: list[float] = arg([3.0, 2.0, -1.0, 0.5], -100, 100, count=(2, 1000)),
    prompt: list[int] = arg([2], 0, 999, count=(0, 1000)),
    output: list[int] = arg([0, 0, 1], 0, 999, count=(0, 1000)),
    repetition_penalty: float = arg(1.2, above=0, high=100),
    presence_penalty: float = arg(0.5, -2, 2),
    frequency_penalty: float = arg(0.5, -2, 2),
) -> Result:
    """Apply repetition, presence and frequency penalties to one row of logits.

    prompt, output: token ids of each. Repetition counts both, the other two count the output only.

    Returns: Logits after the engine's penalty processor.
        logits [logit]
        change [logit]: By token id: after minus before.
        greedy_before, greedy_after [token id]
    """
    import numpy as np
    import torch

    from engine.sample.processors import Penalties, SampleBatch

    said = [token % len(logits) for token in (*prompt, *output)]
    params = SamplingParams(
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
    )
    before = torch.tensor([list(logits)], dtype=torch.float32)
    after = before.clone()
    processor = Penalties(len(logits), 1, torch.device("cpu"))
    if processor.add_request(0, RequestInit(said, len(prompt), params, frozenset(), 0)):
        slots = np.zeros(1, np.int64)
        table = np.array([said or [0]], np.int32)
        batch = SampleBatch(slots, np.array([len(said)]), np.array([len(prompt)]), table)
        processor.apply(after, slots, batch)
    return Result(
        logits=[round(value, 5) for value in after[0].tolist()],
        change=[round(value, 5) for value in (after - before)[0].tolist()],
        greedy_before=int(before.argmax()),
        greedy_after=int(after.argmax()),
    )
