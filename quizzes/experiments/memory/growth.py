from itertools import accumulate
from typing import Any

from engine.core.blocks import Block, BlockEvent
from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.charts import vega


@experiment("E06")
def growth(
    ctx: Context,
    prompt: int = arg(50, 1, 4000),
    output: int = arg(20, 1, 1000),
    block_size: int = arg(16, 1, 1024),
    max_model_len: int = arg(2048, 1, 200_000),
) -> Result:
    """Show the blocks that one request holds, step by step, while it generates.

    Returns:
        One request runs alone. Step 0 computes the prompt and gives the first output token.
        steps [steps]
        held [blocks]: Blocks held in the forward pass of each step.
        block_steps [step]: Steps after the first that take a block.
        peak_blocks [blocks]
        kv_tokens [tokens]: Positions written; the last output token is never computed.
        reserved_blocks [blocks]: Blocks that a reservation for max_model_len would hold from the start.
    """
    engine = ctx.core(block_size=block_size, num_blocks=prompt + output + 1, traced=True)
    taken: list[int] = []
    pool = engine.scheduler.kv.pool
    others = pool.on_event

    def count(kind: BlockEvent, block: Block, request_id: str | None) -> None:
        taken[-1] += kind == "alloc"
        if others is not None:
            others(kind, block, request_id)

    pool.on_event = count
    engine.add(Ask("r", prompt, output))
    written = 0
    while engine.scheduler.has_unfinished():
        taken.append(0)
        start, num_tokens = engine.step().rows["r"]
        written = start + num_tokens
    engine.close()
    return Result(
        steps=engine.num_steps,
        held=list(accumulate(taken)),
        block_steps=[step for step, blocks in enumerate(taken) if blocks and step],
        peak_blocks=sum(taken),
        kv_tokens=written,
        reserved_blocks=-(-max_model_len // block_size),
    )


def chart(result: Result) -> dict[str, Any]:
    """Blocks held in every step."""
    rows = [{"step": step, "blocks": blocks} for step, blocks in enumerate(result.held)]
    return vega(rows, {"type": "line", "interpolate": "step-after"}, x="step:Q", y="blocks:Q")
