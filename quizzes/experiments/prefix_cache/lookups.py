"""E07: the same chat before three look-ups: whole prompt, chain of block hashes, tree of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment
from quizzes.experiments.prefix_cache._lookups import TokenTree, WholePromptCache
from quizzes.experiments.prefix_cache._tokens import Fresh


@dataclass(frozen=True)
class LookupHits:
    """Hit tokens by request, in order."""

    prompt_tokens: Annotated[list[int], "tokens"]
    whole_prompt: Annotated[list[int], "tokens"]
    block_hashes: Annotated[list[int], "tokens"]
    """The engine."""
    token_tree: Annotated[list[int], "tokens"]
    whole_prompt_total: Annotated[int, "tokens"]
    block_hashes_total: Annotated[int, "tokens"]
    token_tree_total: Annotated[int, "tokens"]


@experiment("E07", "E08")
def lookups(
    ctx: Context,
    *,
    system: Annotated[int, Field(ge=1, le=2000)] = 200,
    user: Annotated[int, Field(ge=1, le=500)] = 30,
    answer: Annotated[int, Field(ge=1, le=200)] = 50,
    chats: Annotated[int, Field(ge=1, le=6)] = 2,
    turns: Annotated[int, Field(ge=1, le=8)] = 3,
    retry: bool = True,
    block_size: Annotated[int, Field(ge=1, le=128)] = 16,
) -> LookupHits:
    """`chats` conversations of `turns` turns under one system prompt; retry: the last prompt is sent twice.

    Each look-up knows everything that was computed before; nothing is evicted.
    """
    fresh = Fresh()
    instructions = fresh(system)
    whole, tree = WholePromptCache(), TokenTree()
    engine = ctx.core(
        block_size=block_size,
        num_blocks=2 * chats * turns * ((system + turns * (user + answer)) // block_size + 2),
        traced=True,
    )
    lengths: list[int] = []
    found: tuple[list[int], list[int], list[int]] = ([], [], [])

    def send(prompt: list[int], reply: list[int]) -> None:
        name = f"r{len(lengths)}"
        found[0].append(whole.hit(prompt))
        found[2].append(tree.hit(prompt))
        tree.add((prompt + reply)[:-1])  # the last token of an answer never goes through the model
        engine.run([Ask(name, prompt, reply)])
        found[1].append(engine.outcomes[name].cached_tokens)
        lengths.append(len(prompt))

    prompt: list[int] = []
    for _ in range(chats):
        history = instructions
        for _ in range(turns):
            prompt, reply = history + fresh(user), fresh(answer)
            send(prompt, reply)
            history = prompt + reply
    if retry:
        send(prompt, fresh(answer))
    return LookupHits(lengths, found[0], found[1], found[2], *(sum(each) for each in found))
