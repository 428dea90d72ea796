from quizzes.experiments import Context, Result, arg, experiment

STAGES = ("provision", "pull_image", "fetch_model", "load_weights", "compile_and_capture", "warm_up")


@experiment("E59")
def cold_start(
    ctx: Context,
    provision: float = arg(20.0, 0, 100_000),
    image_gb: float = arg(8.0, above=0, high=1e6),
    model_gb: float = arg(16.0, above=0, high=1e6),
    registry_mb_per_s: float = arg(400.0, above=0, high=1e6),
    store_mb_per_s: float = arg(100.0, above=0, high=1e6),
    disk_mb_per_s: float = arg(2000.0, above=0, high=1e6),
    baked: bool = False,
    image_on_node: bool = False,
    compile_and_capture: float = arg(30.0, 0, 100_000),
    warm_up: float = arg(5.0, 0, 100_000),
    objective: float = arg(90.0, 0, 100_000),
) -> Result:
    """Add up a cold start from bytes and rates: pull, read, load, compile, warm up.

    baked: the model is part of the image and is pulled with it from the registry; otherwise it is fetched from a store
    after the image. image_on_node: the image, and a baked model with it, is already on the node (a warm pool or a
    pre-pulled image). Then weights are read from disk to the device.

    Returns:
        One new replica, stage by stage. GB are 1e9 bytes.
        seconds, stages [s]
        shares [share]
        largest [stage]
        meets_objective
    """
    pulled = 0.0 if image_on_node else (image_gb + (model_gb if baked else 0.0)) * 1000 / registry_mb_per_s
    stages = {
        "provision": provision,
        "pull_image": pulled,
        "fetch_model": 0.0 if baked else model_gb * 1000 / store_mb_per_s,
        "load_weights": model_gb * 1000 / disk_mb_per_s,
        "compile_and_capture": compile_and_capture,
        "warm_up": warm_up,
    }
    total = sum(stages[name] for name in STAGES)
    return Result(
        seconds=round(total, 3),
        stages={name: round(seconds, 3) for name, seconds in stages.items()},
        shares={name: round(seconds / total, 4) if total else 0.0 for name, seconds in stages.items()},
        largest=max(stages, key=lambda name: stages[name]),
        meets_objective=total <= objective,
    )
