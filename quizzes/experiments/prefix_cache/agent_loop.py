from typing import Any

from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.prefix_cache._tokens import Fresh


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

    Returns:
        Computed prompt tokens of a whole run, by habit; less is better.
        append_only [tokens]: Tools first and in one order; results are appended; nothing is ever rewritten.
        thinking_dropped [tokens]: The last step's thinking is cut out of the history before the next call.
        tools_reordered [tokens]: The tool definitions change their order in every call.
        tools_grow [tokens]: Every call adds a tool definition after the others, before the history.
        no_cache [tokens]
        prompt_tokens [tokens]: Prompt tokens of the append-only run, all calls.
        append_only_hit_rate [share]
    """
    sizes: dict[str, Any] = {
        "system": system,
        "tools": tools,
        "tool_tokens": tool_tokens,
        "calls": calls,
        "step": (thinking, call_tokens, result_tokens),
        "block_size": block_size,
    }
    append, total = _run(ctx, "append", **sizes)
    return Result(
        append_only=append,
        thinking_dropped=_run(ctx, "drop", **sizes)[0],
        tools_reordered=_run(ctx, "reorder", **sizes)[0],
        tools_grow=_run(ctx, "grow", **sizes)[0],
        no_cache=total,
        prompt_tokens=total,
        append_only_hit_rate=1 - append / total,
    )


def _run(
    ctx: Context,
    habit: str,
    *,
    system: int,
    tools: int,
    tool_tokens: int,
    calls: int,
    step: tuple[int, int, int],
    block_size: int,
) -> tuple[int, int]:
    """(prompt tokens computed, prompt tokens)."""
    fresh = Fresh()
    thinking, call_tokens, result_tokens = step
    longest = system + (tools + calls) * tool_tokens + calls * sum(step)
    engine = ctx.core(
        block_size=block_size,
        num_blocks=(calls + 1) * (longest // block_size + 2),
        max_num_batched_tokens=longest,
        traced=habit == "append",
    )
    head, definitions = fresh(system), [fresh(tool_tokens) for _ in range(tools)]
    history: list[int] = []
    total = cached = 0
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
        cached += engine.outcomes[f"c{number}"].cached_tokens
    return total - cached, total
