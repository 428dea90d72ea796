from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.sampling._sampler import draw, logits_of
from quizzes.experiments.sampling.allowed_set import allowed_set


@experiment("E39", megabytes=2000)
def drawn(
    ctx: Context,
    probs: list[float] = arg([50, 20, 12, 8, 6, 4], above=0, high=1e6, count=(2, 200)),
    temperature: float = arg(1.0, 0, 100),
    top_k: int = arg(0, 0, 1000),
    top_p: float = arg(1.0, above=0, high=1),
    min_p: float = arg(0.0, 0, 1),
    draws: int = arg(4000, 10, 20_000),
) -> Result:
    """Draw thousands of tokens with the engine's sampler and compare their counts with the filtered distribution.

    Seeds are 0, 1, 2 ..., so the counts are the same everywhere. A temperature of 0 is greedy and makes the filters
    irrelevant.

    Returns:
        Counts of `draws` tokens, each drawn with its own seed.
        counts [draws]: Draws by token id.
        distinct [tokens]
        greedy_share [share]: Share of draws of the most likely token.
        expected [draws]
        chi_square [1]
        degrees [1]: Degrees of freedom: tokens that can be drawn, less one.
    """
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
    return Result(
        counts=counts,
        distinct=sum(count > 0 for count in counts),
        greedy_share=counts[best] / draws,
        expected=expected,
        chi_square=sum((n - e) ** 2 / e for n, e in zip(counts, expected, strict=True) if e > 0),
        degrees=sum(e > 0 for e in expected) - 1,
    )
