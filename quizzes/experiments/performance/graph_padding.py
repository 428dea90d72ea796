from quizzes.experiments import Context, Result, arg, experiment


@experiment("E26")
def graph_padding(ctx: Context, batches: list[int] = arg([1, 3, 9, 17, 30], 1, 512, count=(1, 64))) -> Result:
    """Find which CUDA graph of this engine replays decode batches of given sizes.

    Graphs exist for some batch sizes only, so a batch runs in the next larger one (`engine/worker/decode_graphs.py`).

    Returns:
        sizes [rows]: Graph size that each batch runs in, in the order given.
        padded_rows [rows]
        graphs [graphs]: Number of different graphs that these batches need.
        waste [share]: Padding over all rows computed.
    """
    from engine.worker.decode_graphs import graph_size

    sizes = [graph_size(rows) for rows in batches]
    padded = [size - rows for size, rows in zip(sizes, batches, strict=True)]
    return Result(sizes=sizes, padded_rows=padded, graphs=len(set(sizes)), waste=sum(padded) / sum(sizes))
