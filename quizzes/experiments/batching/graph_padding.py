from bisect import bisect_left
from typing import Annotated, Literal

from pydantic import Field

from quizzes.experiments import Context, Result, arg, experiment

LARGEST = 512
"""Tokens of the largest graph, as in vLLM (1024 on data-centre Blackwell)."""


@experiment("E60")
def graph_padding(
    ctx: Context,
    batches: list[int] = arg([1, 3, 5, 9, 33, 250, 260], 1, 1024, count=(1, 256)),
    max_num_seqs: int = arg(256, 1, 1024),
    sizes: Literal["vllm", "engine"] | list[Annotated[int, Field(ge=1, le=1024)]] = "vllm",
) -> Result:
    """Pad decode batches to the next captured CUDA graph size and measure the waste, one token per row.

    vllm: capture sizes of vLLM config/vllm.py, _set_cudagraph_sizes: 1, 2, 4, multiples of 8 below 256, then of 16, up
    to min(2 x max_num_seqs, 512). engine: this engine's decode graphs, captured when a size is first needed
    (engine/worker/decode_graphs.py). Or a list of sizes.

    Returns:
        By batch, in the order given.
        padded [rows]: Size of the graph that runs, or the batch itself if it exceeds all graphs and runs eagerly.
        is_eager
        wasted_rows [rows]
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
