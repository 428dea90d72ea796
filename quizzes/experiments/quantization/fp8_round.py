from quizzes.experiments import Context, Result, arg, experiment


@experiment("E31", "E32")
def fp8_round(
    ctx: Context,
    values: list[float] = arg([0.3, 17.0, -41.0, 1000.0], -1e6, 1e6, count=(1, 64)),
    scale: float = arg(1.0, above=0, high=1e6),
) -> Result:
    """Round values to FP8 E4M3 with a scale: stored = e4m3(x / scale), saturating at 448.

    The engine stores fp8 weights, activations and KV in this way.

    Returns:
        stored: The e4m3 numbers, before the scale is taken back.
        restored
        saturated [numbers]: Beyond 448 after scaling.
        zeros [numbers]
        worst_relative [share]: Among those that neither saturate nor become 0.
    """
    import torch

    from kernels.ops import FP8_MAX, to_e4m3

    x = torch.tensor(values, dtype=torch.float32)
    scaled = x / scale
    stored = to_e4m3(scaled).float()
    restored = stored * scale
    ok = [
        v != 0 and abs(s) <= FP8_MAX and t != 0
        for v, s, t in zip(values, scaled.tolist(), stored.tolist(), strict=True)
    ]
    relative = [abs(r - v) / abs(v) for r, v, good in zip(restored.tolist(), values, ok, strict=True) if good]
    return Result(
        stored=stored.tolist(),
        restored=restored.tolist(),
        saturated=int((scaled.abs() > FP8_MAX).sum()),
        zeros=int(((stored == 0) & (x != 0)).sum()),
        worst_relative=max(relative, default=0.0),
    )
