"""Chats and agents that send their history again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from quizzes.experiments import Ask, Context, Fresh, Result, arg, experiment
from quizzes.experiments.charts import LINE, stacked, vega


@experiment("E07")
def conversation(
    ctx: Context,
    system: int = arg(200, 1, 8000),
    user: int = arg(30, 1, 2000),
    answer: int = arg(50, 1, 500),
    turns: int = arg(5, 1, 40),
    block_size: int = arg(16, 1, 128),
) -> Result:
    """Count the prefix-cache hits of a chat that sends its whole history in every turn.

    Returns: One entry per turn. Every prompt is the previous prompt, its answer and a new question, in tokens.
        prompt_tokens [tokens]
        cached_tokens [tokens]: Prompt tokens found in the cache.
        computed_tokens [tokens]: Prompt tokens sent through the model.
        prefill_with_cache [tokens]
        prefill_without_cache [tokens]: All turns together, the second measured with enable_prefix_caching=False.
        saved [share]: Cached over all prompt tokens.
        hit_rate [share]: Cached tokens over prompt tokens, as vLLM's prefix_cache_hits / prefix_cache_queries.
    """
    num_blocks = (system + turns * (user + answer)) // block_size + 8

    def play(caching: bool) -> tuple[list[int], list[int]]:
        """Return (hits, prompt lengths) by turn."""
        engine = ctx.core(
            block_size=block_size, num_blocks=num_blocks, enable_prefix_caching=caching, traced=caching
        )
        fresh = Fresh()
        history, lengths = fresh(system), []
        for turn in range(turns):
            prompt, reply = history + fresh(user), fresh(answer)
            engine.run([Ask(f"turn{turn}", prompt, reply)])
            lengths.append(len(prompt))
            history = prompt + reply
        return engine.cached_tokens, lengths

    (cached, lengths), (none, _) = play(True), play(False)
    computed = [length - hit for length, hit in zip(lengths, cached, strict=True)]
    return Result(
        prompt_tokens=lengths,
        cached_tokens=cached,
        computed_tokens=computed,
        prefill_with_cache=sum(computed),
        prefill_without_cache=sum(lengths) - sum(none),
        saved=sum(cached) / sum(lengths),
        hit_rate=sum(cached) / sum(lengths),
    )


def conversation_chart(result: Result) -> dict[str, Any]:
    """Prompt tokens by turn: found in the cache and computed."""
    turns = range(1, len(result.cached_tokens) + 1)
    columns = stacked("turn", turns, "tokens", cached=result.cached_tokens, computed=result.computed_tokens)
    return vega(columns, "bar", x="turn:O", y="tokens:Q", color="what:N")


@experiment("E07", "E08")
def agent_loop(
    ctx: Context,
    system: int = arg(120, 1, 2000),
    tools: int = arg(6, 2, 20),
    tool_tokens: int = arg(80, 1, 400),
    calls: int = arg(6, 2, 12),
    thinking: int = arg(100, 1, 400),
    call_tokens: int = arg(30, 1, 200),
    result_tokens: int = arg(150, 1, 800),
    block_size: int = arg(16, 1, 128),
) -> Result:
    """Run an agent loop and see what its habits do to the prefix of the next call.

    One agent run of `calls` model calls: system prompt, tool definitions, then (thinking, call, result) per step.
    Every call generates thinking and a tool call; the tool's result precedes the next one. Lengths in tokens.

    Returns: Computed prompt tokens of a whole run, by habit; less is better.
        append_only [tokens]: Tools first and in one order; results are appended; nothing is ever rewritten.
        thinking_dropped [tokens]: The last step's thinking is cut out of the history before the next call.
        tools_reordered [tokens]: The tool definitions change their order in every call.
        tools_grow [tokens]: Every call adds a tool definition after the others, before the history.
        no_cache [tokens]
        prompt_tokens [tokens]: Prompt tokens of the append-only run, all calls.
        append_only_hit_rate [share]
    """
    longest = system + (tools + calls) * tool_tokens + calls * (thinking + call_tokens + result_tokens)

    def run(habit: str) -> tuple[int, int]:
        """Return (prompt tokens computed, prompt tokens)."""
        fresh = Fresh()
        engine = ctx.core(
            block_size=block_size,
            num_blocks=(calls + 1) * (longest // block_size + 2),
            max_num_batched_tokens=longest,
            traced=habit == "append",
        )
        head, definitions = fresh(system), [fresh(tool_tokens) for _ in range(tools)]
        history: list[int] = []
        total = 0
        for number in range(calls):
            if habit == "reorder" and number:
                definitions = definitions[1:] + definitions[:1]
            if habit == "grow" and number:
                definitions = [*definitions, fresh(tool_tokens)]
            prompt = [*head, *(token for tool in definitions for token in tool), *history]
            thought, call = fresh(thinking), fresh(call_tokens)
            engine.run([Ask(f"c{number}", prompt, thought + call)])
            history = history + ([] if habit == "drop" else thought) + call + fresh(result_tokens)
            total += len(prompt)
        return total - sum(engine.cached_tokens), total

    append, total = run("append")
    return Result(
        append_only=append,
        thinking_dropped=run("drop")[0],
        tools_reordered=run("reorder")[0],
        tools_grow=run("grow")[0],
        no_cache=total,
        prompt_tokens=total,
        append_only_hit_rate=1 - append / total,
    )


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

    Returns: The policy none keeps the whole history, slide drops as few old turns as needed, and bulk drops turns down
        to half the budget.
        largest_none [tokens]: Prompt of the last turn without a budget.
        largest_slide, largest_bulk [tokens]
        computed_none, computed_slide, computed_bulk [tokens]: Prompt tokens computed, the whole chat.
        hit_rate_none, hit_rate_slide, hit_rate_bulk [share]; cuts_slide, cuts_bulk [cuts]
        hits_slide [tokens]: Hit tokens by turn.
        lengths_slide [tokens]
    """
    budget = max(budget, system + user)
    longest = system + turns * (user + answer)

    def play(policy: Policy) -> tuple[list[int], list[int], int]:
        """Return (prompt lengths, hits, cuts)."""
        fresh = Fresh()
        chat = Budgeter(fresh(system), budget, policy)
        engine = ctx.core(
            block_size=block_size,
            num_blocks=(turns + 1) * (longest // block_size + 2),
            max_num_batched_tokens=longest,
            traced=policy == "slide",
        )
        lengths = []
        for turn in range(turns):
            question, reply = fresh(user), fresh(answer)
            prompt = chat.prompt(question)
            engine.run([Ask(f"t{turn}", prompt, reply)])
            lengths.append(len(prompt))
            chat.turns.append(question + reply)
        return lengths, engine.cached_tokens, chat.num_cuts

    played = {policy: play(policy) for policy in get_args(Policy)}
    return Result(
        **{f"largest_{name}": max(lengths) for name, (lengths, _, _) in played.items()},
        **{f"computed_{name}": sum(lengths) - sum(hits) for name, (lengths, hits, _) in played.items()},
        **{f"hit_rate_{name}": sum(hits) / sum(lengths) for name, (lengths, hits, _) in played.items()},
        cuts_slide=played["slide"][2],
        cuts_bulk=played["bulk"][2],
        hits_slide=played["slide"][1],
        lengths_slide=played["slide"][0],
    )


def prompt_budget_chart(result: Result) -> dict[str, Any]:
    """Sliding budget: prompt length and hit tokens by turn."""
    turns = range(1, len(result.hits_slide) + 1)
    columns = stacked("turn", turns, "tokens", prompt=result.lengths_slide, hit=result.hits_slide)
    return vega(columns, LINE, x="turn:Q", y="tokens:Q", color="what:N")


class WholePromptCache:
    """One entry per prompt, found by the whole prompt."""

    def __init__(self) -> None:
        self._known: set[tuple[int, ...]] = set()

    def hit(self, prompt: Sequence[int]) -> int:
        """Return the tokens found in the cache, and add the prompt."""
        key = tuple(prompt)
        num_hit = len(prompt) - 1 if key in self._known else 0
        self._known.add(key)
        return num_hit


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

    Returns: Hit tokens by request, in order.
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
    cached: dict[str, list[int]] = {"whole_prompt": [], "token_tree": []}

    def send(prompt: list[int], reply: list[int]) -> None:
        cached["whole_prompt"].append(whole.hit(prompt))
        cached["token_tree"].append(tree.hit(prompt))
        tree.add((prompt + reply)[:-1])  # the last token of an answer never goes through the model
        engine.run([Ask(f"r{len(lengths)}", prompt, reply)])
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
    cached["block_hashes"] = engine.cached_tokens
    totals = {f"{name}_total": sum(hits) for name, hits in cached.items()}
    return Result(prompt_tokens=lengths, **cached, **totals)
