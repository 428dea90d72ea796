from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.performance._floor import floor_of, load_of_rows

HUGE = 1_000_000


@experiment("E24", "E31")
def precision_speedup(
    ctx: Context,
    model: str = "llama-3-8b",
    hardware: str = "h100",
    base: str = "bfloat16",
    other: str = "fp8",
    rows: int = arg(1, 1, 100_000),
    tokens_per_row: int = arg(1, 1, 1_000_000),
    context: int = arg(1000, 0, 1_000_000),
) -> Result:
    """Compare one step in two weight precisions at the datasheet's rates.

    Fewer bytes help where memory is the limit, more FLOP/s where arithmetic is. KV stays 16 bits wide.

    Returns:
        Base over other: above 1, the other precision is faster.
        flop_rate [x]: Peak FLOP/s of other over base, on this device.
        weight_bytes [x]: Bytes per weight of base over other, scales included.
        linear [x]: Time of the linear layers.
        linear_limit [x]: The same for a step so large that arithmetic limits both.
        step [x]: Time of the whole step, attention and the 16-bit head included.
        base_bound, other_bound
    """
    load, huge = load_of_rows(rows, tokens_per_row, context), load_of_rows(1, HUGE, 0)
    a, b = (floor_of(model, hardware, dtype, "bfloat16") for dtype in (base, other))
    bounds = ["compute" if f.cost.intensity(load) > f.ridge else "memory" for f in (a, b)]
    return Result(
        flop_rate=b.peak / a.peak,
        weight_bytes=a.deployment.precision.weight_bytes / b.deployment.precision.weight_bytes,
        linear_limit=a.cost.parts(huge)["linear"] / b.cost.parts(huge)["linear"],
        linear=a.cost.parts(load)["linear"] / b.cost.parts(load)["linear"],
        step=a.cost.seconds(load) / b.cost.seconds(load),
        base_bound=bounds[0],
        other_bound=bounds[1],
    )
