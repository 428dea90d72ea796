import time

from quizzes.experiments import Context, Result, arg, experiment


@experiment("E59", determinism="statistical", seconds=40)
def first_token(
    ctx: Context, disk_mb_per_s: float = arg(20.0, 1, 10_000), tokens: int = arg(16, 1, 64)
) -> Result:
    """Start the shipped model with weights on a slow disk and time its first two requests.

    The weight file is read in pieces at disk_mb_per_s before the engine loads it; everything else runs at this
    machine's speed. With a slow disk reading dominates, with a fast one loading and the first request.

    Returns:
        Wall clock of one start; the first request of a process against the second.
        read [s]: Reading the weight file at the given rate.
        load [s]: Building the model and the KV pool, weights into place, kernels made ready.
        first_request [s]
        second_request [s]: The same request again, from a fresh cache: what warming up is worth.
        read_share [share]
        cold_over_warm [x]
    """
    from engine import SamplingParams
    from engine.zoo.registry import resolve

    began = time.perf_counter()
    size = 0
    for path in sorted(resolve("shop").glob("*.safetensors")):
        with path.open("rb") as file:
            while piece := file.read(1 << 18):
                size += len(piece)
                ahead = size / (disk_mb_per_s * 1e6) - (time.perf_counter() - began)
                if ahead > 0:
                    time.sleep(ahead)
    read = time.perf_counter()
    with ctx.llm(enable_prefix_caching=False) as llm:
        loaded = time.perf_counter()
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        llm.generate(["A first request"], params)
        first = time.perf_counter()
        llm.generate(["A first request"], params)
        second = time.perf_counter()
    parts = (read - began, loaded - read, first - loaded)
    return Result(
        read=parts[0],
        load=parts[1],
        first_request=parts[2],
        second_request=second - first,
        read_share=parts[0] / sum(parts),
        cold_over_warm=parts[2] / (second - first),
    )
