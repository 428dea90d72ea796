"""E48: a long chat under a token budget: how large prompts get, and what trimming does to the prefix cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment
from quizzes.experiments.prefix_cache._budgeter import Budgeter, Policy
from quizzes.experiments.prefix_cache._tokens import Fresh


@dataclass(frozen=True)
class Budgeted:
    """none: the whole history. slide: drop as few old turns as needed. bulk: drop down to half the budget."""

    largest_none: Annotated[int, "tokens"]
    """Prompt of the last turn without a budget."""
    largest_slide: Annotated[int, "tokens"]
    largest_bulk: Annotated[int, "tokens"]
    computed_none: Annotated[int, "tokens"]
    """Prompt tokens that went through the model, the whole chat."""
    computed_slide: Annotated[int, "tokens"]
    computed_bulk: Annotated[int, "tokens"]
    hit_rate_none: Annotated[float, "share"]
    hit_rate_slide: Annotated[float, "share"]
    hit_rate_bulk: Annotated[float, "share"]
    cuts_slide: Annotated[int, "cuts"]
    cuts_bulk: Annotated[int, "cuts"]
    hits_slide: Annotated[list[int], "tokens"]
    """By turn."""
    lengths_slide: Annotated[list[int], "tokens"]


@experiment("E48", "E08")
def prompt_budget(
    ctx: Context,
    *,
    turns: Annotated[int, Field(ge=2, le=60)] = 30,
    system: Annotated[int, Field(ge=1, le=2000)] = 200,
    user: Annotated[int, Field(ge=1, le=500)] = 40,
    answer: Annotated[int, Field(ge=1, le=300)] = 80,
    budget: Annotated[int, Field(ge=64, le=20_000)] = 1200,
    block_size: Annotated[int, Field(ge=1, le=128)] = 16,
) -> Budgeted:
    """A chat of `turns` turns, its history kept to `budget` tokens in three ways."""
    budget = max(budget, system + user)
    lengths, hits, cuts = {}, {}, {}
    for policy in ("none", "slide", "bulk"):
        lengths[policy], hits[policy], cuts[policy] = _chat(
            ctx, policy, turns, system, user, answer, budget, block_size
        )
    computed = {name: sum(lengths[name]) - sum(hits[name]) for name in lengths}
    rate = {name: sum(hits[name]) / sum(lengths[name]) for name in lengths}
    return Budgeted(
        largest_none=max(lengths["none"]),
        largest_slide=max(lengths["slide"]),
        largest_bulk=max(lengths["bulk"]),
        computed_none=computed["none"],
        computed_slide=computed["slide"],
        computed_bulk=computed["bulk"],
        hit_rate_none=rate["none"],
        hit_rate_slide=rate["slide"],
        hit_rate_bulk=rate["bulk"],
        cuts_slide=cuts["slide"],
        cuts_bulk=cuts["bulk"],
        hits_slide=hits["slide"],
        lengths_slide=lengths["slide"],
    )


def _chat(
    ctx: Context,
    policy: Policy,
    turns: int,
    system: int,
    user: int,
    answer: int,
    budget: int,
    block_size: int,
) -> tuple[list[int], list[int], int]:
    """(prompt lengths, hits, cuts)."""
    fresh = Fresh()
    chat = Budgeter(fresh(system), budget, policy)
    longest = system + turns * (user + answer)
    engine = ctx.core(
        block_size=block_size,
        num_blocks=(turns + 1) * (longest // block_size + 2),
        max_num_batched_tokens=longest,
        traced=policy == "slide",
    )
    lengths, hits = [], []
    for turn in range(turns):
        question, reply = fresh(user), fresh(answer)
        prompt = chat.prompt(question)
        engine.run([Ask(f"t{turn}", prompt, reply)])
        lengths.append(len(prompt))
        hits.append(engine.outcomes[f"t{turn}"].cached_tokens)
        chat.add(question + reply)
    return lengths, hits, chat.num_cuts


def chart(result: Budgeted) -> dict[str, Any]:
    """The sliding budget: prompt length and what the cache finds of it, by turn."""
    values = [
        {"turn": turn, "tokens": tokens, "what": what}
        for what, column in (("prompt", result.lengths_slide), ("hit", result.hits_slide))
        for turn, tokens in enumerate(column, 1)
    ]
    return {
        "data": {"values": values},
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": {"field": "turn", "type": "quantitative"},
            "y": {"field": "tokens", "type": "quantitative"},
            "color": {"field": "what", "type": "nominal"},
        },
    }
