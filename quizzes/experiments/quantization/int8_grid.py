from quizzes.experiments import Context, Result, arg, experiment


@experiment("E31")
def int8_grid(
    ctx: Context, values: list[float] = arg([0.3, -0.2, 0.1, -41.0], -1e6, 1e6, count=(1, 64))
) -> Result:
    """Round one vector to an int8 grid and see what an outlier costs the other values.

    Rounds as `ops.int8_linear` rounds a token's activations: symmetric, scale max|x| / 127, half to even.

    Returns:
        step: max|x| / 127: the distance of neighbouring levels.
        levels: Stored level of each number.
        zeros [numbers]: Numbers that were not 0 and are stored as 0.
        distinct [levels]
        largest_error
        worst_relative [share]: Largest |restored - x| / |x|.
    """
    import torch

    from kernels.ops import dequantise_int8, quantise_int8

    x = torch.tensor([values], dtype=torch.float32)
    steps, scale = quantise_int8(x)
    restored = dequantise_int8(steps, scale)[0]
    levels = steps[0].tolist()
    errors = (restored - x[0]).abs()
    relative = [float(e) / abs(v) for e, v in zip(errors, values, strict=True) if v]
    return Result(
        step=float(scale[0]),
        levels=levels,
        zeros=sum(1 for level, value in zip(levels, values, strict=True) if value and not level),
        distinct=len(set(levels)),
        largest_error=float(errors.max()),
        worst_relative=max(relative, default=0.0),
    )
