from quizzes.experiments import Context, Result, arg, experiment


@experiment("E63")
def gpus_for_speedup(
    ctx: Context,
    load: float = arg(10_000.0, above=0, high=1e9),
    per_gpu: float = arg(500.0, above=0, high=1e9),
    speedup: float = arg(2.5, 1, 1000),
    saving: float = arg(0.4, 0, below=1),
) -> Result:
    """Compute the GPUs that a speed-up saves at a given load.

    Each GPU serves `per_gpu` before and `speedup` times as much after.

    Returns:
        For the same load.
        gpus_before, gpus_after [GPUs]
        saved [share]: Share of the GPUs saved, not rounded to whole ones.
        speedup_for_saving [x]: The speed-up that `saving` would need.
    """
    return Result(
        gpus_before=-int(-load // per_gpu),
        gpus_after=-int(-load // (per_gpu * speedup)),
        saved=1 - 1 / speedup,
        speedup_for_saving=1 / (1 - saving),
    )
