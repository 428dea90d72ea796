from dataclasses import dataclass, field
from typing import Any, Literal

from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.charts import LINE, vega
from quizzes.experiments.prefix_cache._tokens import Fresh

Policy = Literal["none", "slide", "bulk"]


@dataclass
class Budgeter:
    """A system prompt and the turns after it, at most `budget` tokens in all.

    none   keeps everything
    slide  drops as few of the oldest turns as needed: at the budget, before every request
    bulk   drops the oldest turns down to half the budget once it is exceeded: rarely, many at once
    """

    system: list[int]
    budget: int
    policy: Policy
    turns: list[list[int]] = field(default_factory=list)
    num_cuts: int = 0
    """Number of times that turns were dropped."""

    def add(self, turn: list[int]) -> None:
        self.turns.append(turn)

    def prompt(self, question: list[int]) -> list[int]:
        """Return the history that fits and the question; system prompt and question are never cut."""
        if self.policy != "none" and self._size(question) > self.budget:
            goal = self.budget if self.policy == "slide" else self.budget // 2
            while self.turns and self._size(question) > goal:
                self.turns.pop(0)
            self.num_cuts += 1
        return [*self.system, *(token for turn in self.turns for token in turn), *question]

    def _size(self, question: list[int]) -> int:
        return len(self.system) + sum(map(len, self.turns)) + len(question)


@experiment("E48", "E08")
def prompt_budget(
    ctx: Context,
    turns: int = arg(30, 2, 60),
    system: int = arg(200, 1, 2000),
    user: int = arg(40, 1, 500),
    answer: int = arg(80, 1, 300),
    budget: int = arg(1200, 64, 20_000),
    block_size: int = arg(16, 1, 128),
) -> Result:
    """Trim a long chat to a token budget in three ways, and see what that does to the prefix cache.

    Returns:
        The policy none keeps the whole history, slide drops as few old turns as needed, and bulk drops turns down to
        half the budget.
        largest_none [tokens]: Prompt of the last turn without a budget.
        largest_slide, largest_bulk [tokens]
        computed_none, computed_slide, computed_bulk [tokens]: Prompt tokens that went through the model, the whole
            chat.
        hit_rate_none, hit_rate_slide, hit_rate_bulk [share]
        cuts_slide, cuts_bulk [cuts]
        hits_slide [tokens]: Hit tokens by turn.
        lengths_slide [tokens]
    """
    budget = max(budget, system + user)
    lengths, hits, cuts = {}, {}, {}
    for policy in ("none", "slide", "bulk"):
        lengths[policy], hits[policy], cuts[policy] = _chat(
            ctx, policy, turns, system, user, answer, budget, block_size
        )
    return Result(
        **{f"largest_{name}": max(row) for name, row in lengths.items()},
        **{f"computed_{name}": sum(row) - sum(hits[name]) for name, row in lengths.items()},
        **{f"hit_rate_{name}": sum(hits[name]) / sum(row) for name, row in lengths.items()},
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


def chart(result: Result) -> dict[str, Any]:
    """Sliding budget: prompt length and hit tokens by turn."""
    values = [
        {"turn": turn, "tokens": tokens, "what": what}
        for what, column in (("prompt", result.lengths_slide), ("hit", result.hits_slide))
        for turn, tokens in enumerate(column, 1)
    ]
    return vega(values, LINE, x="turn:Q", y="tokens:Q", color="what:N")
