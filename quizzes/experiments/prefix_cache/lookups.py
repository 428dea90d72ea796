from collections.abc import Sequence
from typing import Any

from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.prefix_cache._tokens import Fresh


class WholePromptCache:
    """One entry per prompt, found by the whole prompt."""

    def __init__(self) -> None:
        self._known: set[tuple[int, ...]] = set()

    def hit(self, prompt: Sequence[int]) -> int:
        """Return the tokens found in the cache, and add the prompt."""
        key = tuple(prompt)
        found = len(prompt) - 1 if key in self._known else 0
        self._known.add(key)
        return found


class TokenTree:
    """A trie over single tokens: the longest known prefix to the token, as SGLang's radix tree finds it (page size 1).

    A radix tree stores runs of tokens per edge to save memory and finds the same.
    """

    def __init__(self) -> None:
        self._root: dict[int, Any] = {}

    def hit(self, prompt: Sequence[int]) -> int:
        """Return the length of the longest known prefix, at most all tokens but the last."""
        node, depth = self._root, 0
        for token in prompt[:-1]:
            if token not in node:
                break
            node, depth = node[token], depth + 1
        return depth

    def add(self, tokens: Sequence[int]) -> None:
        node = self._root
        for token in tokens:
            node = node.setdefault(token, {})


@experiment("E07", "E08")
def lookups(
    ctx: Context,
    system: int = arg(200, 1, 2000),
    user: int = arg(30, 1, 500),
    answer: int = arg(50, 1, 200),
    chats: int = arg(2, 1, 6),
    turns: int = arg(3, 1, 8),
    retry: bool = True,
    block_size: int = arg(16, 1, 128),
) -> Result:
    """Compare three prefix look-ups on one chat: whole prompt, chain of block hashes, tree of tokens.

    `chats` conversations of `turns` turns share one system prompt; retry: the last prompt is sent twice. Each look-up
    knows all earlier prompts; nothing is evicted.

    Returns:
        Hit tokens by request, in order.
        prompt_tokens, whole_prompt [tokens]
        block_hashes [tokens]: Hits of the engine.
        token_tree, whole_prompt_total, block_hashes_total, token_tree_total [tokens]
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
    whole_prompt, block_hashes, token_tree = found
    return Result(
        prompt_tokens=lengths,
        whole_prompt=whole_prompt,
        block_hashes=block_hashes,
        token_tree=token_tree,
        whole_prompt_total=sum(whole_prompt),
        block_hashes_total=sum(block_hashes),
        token_tree_total=sum(token_tree),
    )
