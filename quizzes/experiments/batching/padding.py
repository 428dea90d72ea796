"""Padding and packing, counted."""

from bisect import bisect_left
from itertools import accumulate
from typing import Annotated, Literal

from pydantic import Field

from quizzes.experiments import Ask, Context, Result, arg, experiment

LARGEST = 512
"""Tokens of the largest graph, as in vLLM (1024 on data-centre Blackwell)."""


@experiment("E60")
def graph_padding(
    batches: list[int] = arg([1, 3, 5, 9, 33, 250, 260], 1, 1024, count=(1, 256)),
    max_num_seqs: int = arg(256, 1, 1024),
    sizes: Literal["vllm", "engine"] | list[Annotated[int, Field(ge=1, le=1024)]] = "vllm",
) -> Result:
    """Pad decode batches to the next captured CUDA graph size and measure the waste, one token per row.

    vllm: capture sizes of vLLM config/vllm.py, _set_cudagraph_sizes: 1, 2, 4, multiples of 8 below 256, then of 16, up
    to min(2 x max_num_seqs, 512). engine: this engine's decode graphs, captured when a size is first needed
    (engine/worker/decode_graphs.py). Or a list of sizes.

    Returns: By batch, in the order given.
        padded [rows]: Size of the graph that runs, or the batch itself if it exceeds all graphs and runs eagerly.
        is_eager; wasted_rows [rows]
        waste [share]: Padding over all rows computed.
        num_graphs [graphs]: Graphs captured to cover every batch up to max_num_seqs.
        sizes
    """
    if sizes == "engine":
        from engine.worker.decode_graphs import MAX_TOKENS, graph_size

        captured = sorted({graph_size(rows) for rows in range(1, max_num_seqs + 1)})
        captured = [size for size in captured if size <= MAX_TOKENS]
    elif sizes == "vllm":
        captured = _vllm_sizes(min(2 * max_num_seqs, LARGEST))
    else:
        captured = sorted(set(sizes))
    padded, eager = [], []
    for rows in batches:
        at = bisect_left(captured, rows)
        eager.append(at == len(captured))
        padded.append(rows if eager[-1] else captured[at])
    wasted = [size - rows for size, rows in zip(padded, batches, strict=True)]
    return Result(
        padded=padded,
        is_eager=eager,
        wasted_rows=wasted,
        waste=sum(wasted) / sum(padded),
        num_graphs=len(captured),
        sizes=captured,
    )


def _vllm_sizes(largest: int) -> list[int]:
    fine = [1, 2, 4, *range(8, 256, 8)]
    return [size for size in fine if size <= largest] + list(range(256, largest + 1, 16))


@experiment("E29")
def ragged_vs_padded(
    ctx: Context,
    lens: list[int] = arg([100, 500, 50], 1, 4000, count=(1, 64)),
    block_size: int = arg(16, 1, 256),
) -> Result:
    """Compare packed with padded prompts of different lengths: tokens computed and KV slots taken.

    The engine packs all rows into one list of tokens; `query_start_loc` gives the start of each. Nothing is padded.

    Returns: Figures of one prefill step of all prompts.
        ragged_tokens [tokens]: Positions that go through the model, as the scheduler plans them.
        padded_tokens [tokens]: The same in a rectangle: rows x longest.
        padding_share [share]: Padding over the rectangle.
        query_start_loc: Where each row begins in the packed batch, and where the last ends.
        blocks [blocks]: Blocks that each row holds.
        paged_slots [tokens]: KV slots taken: blocks x block size.
        padded_slots [tokens]: KV slots if each row had as many as the longest.
        unused_slots [tokens]: Empty slots at the ends of last blocks.
    """
    engine = ctx.core(
        max_num_seqs=len(lens), max_num_batched_tokens=sum(lens), block_size=block_size, traced=True
    )
    for index, length in enumerate(lens):
        engine.add(Ask(f"r{index}", length, 2))
    step = engine.step()
    engine.close()
    counts = [step.rows[f"r{index}"][1] for index in range(len(lens))]
    blocks = [len(row.new_block_ids) for row in step.plan.scheduled]
    rectangle, slots = len(lens) * max(lens), sum(blocks) * block_size
    return Result(
        ragged_tokens=step.num_tokens,
        padded_tokens=rectangle,
        padding_share=1 - step.num_tokens / rectangle,
        query_start_loc=list(accumulate(counts, initial=0)),
        blocks=blocks,
        paged_slots=slots,
        padded_slots=len(lens) * max(blocks) * block_size,
        unused_slots=slots - step.num_tokens,
    )
