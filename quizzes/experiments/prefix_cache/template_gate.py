from typing import Literal

from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.prefix_cache._tokens import Fresh

Change = Literal["none", "edited", "volatile"]


@experiment("E08")
def template_gate(
    ctx: Context,
    change: Change = "edited",
    position: int = arg(40, 0, 3999),
    gate: int = arg(256, 1, 4000),
    template: int = arg(512, 16, 4000),
    question: int = arg(30, 1, 500),
    requests: int = arg(5, 2, 20),
    block_size: int = arg(16, 1, 128),
) -> Result:
    """Run a CI check that compares the first tokens of the canonical prompt with those of the last version.

    A template of `template` tokens is deployed with a change at `position`; the check sees its first `gate` tokens.
    edited: one token changes, the same for all requests. volatile: one token differs in every request.

    Returns:
        Verdict of the check on the new version, and the hits in production afterwards.
        stopped: The first `gate` tokens differ between the old and the new version, rendered once each.
        stopped_by_two_renders: The new version's first `gate` tokens differ between two renders for two requests.
        hit_before [share]: Hit rate with the old version, its cold first request left out.
        hit_first [share]: Hit of the first request with the new version.
        hit_after [share]: Hit of all later requests.
    """
    fresh = Fresh()
    old, position = fresh(template), min(position, template - 1)

    def render(version: str) -> list[int]:
        if version == "edited":
            return [*old[:position], -1, *old[position + 1 :]]
        return [*old[:position], *fresh(1), *old[position + 1 :]] if version == "volatile" else list(old)

    engine = ctx.core(
        block_size=block_size,
        num_blocks=3 * requests * ((template + question) // block_size + 2),
        max_num_batched_tokens=template + question,
        traced=True,
    )
    shares = []
    for number in range(2 * requests):
        prompt = render("none" if number < requests else change) + fresh(question)
        engine.run([Ask(f"r{number}", prompt, fresh(1))])
        shares.append(engine.outcomes[f"r{number}"].cached_tokens / len(prompt))
    return Result(
        stopped=render("none")[:gate] != render(change)[:gate],
        stopped_by_two_renders=render(change)[:gate] != render(change)[:gate],
        hit_before=sum(shares[1:requests]) / (requests - 1),
        hit_first=shares[requests],
        hit_after=sum(shares[requests + 1 :]) / (requests - 1),
    )
