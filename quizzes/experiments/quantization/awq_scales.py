from quizzes.experiments import Context, Result, arg, experiment


@experiment("E33")
def awq_scales(
    ctx: Context,
    loud: float = arg(20.0, 1, 100),
    heavy: float = arg(3.0, 1, 100),
    columns: int = arg(64, 32, 256, multiple_of=16),
) -> Result:
    """Find which channels AWQ protects when a loud input competes with a large weight.

    Runs the engine's scale search on a random matrix: the inputs of one channel are `loud` times larger, the weights
    of another one `heavy` times.

    Returns:
        protected: The channel with the largest scale.
        loud_channel: Channel with large inputs.
        heavy_channel: Channel with large weights.
        alpha: Exponent that the search chose; 0 is plain rounding.
        gain [x]: Output error of plain rounding over AWQ's.
        changes_with_inputs: Whether other inputs, with the same weights, give other scales.
    """
    import torch

    from engine.quant.quantizer.awq import search_scale
    from engine.quant.quantizer.calibration import InputStatistics

    generator = torch.Generator().manual_seed(ctx.seed)
    weight = torch.randn(columns, columns, generator=generator)
    inputs = torch.randn(512, columns, generator=generator)
    loud_channel, heavy_channel = 5, columns - 9
    weight[:, heavy_channel] *= heavy

    def scales(channel: int) -> object:
        x = inputs.clone()
        x[:, channel] *= loud
        statistics = InputStatistics.zeros(columns)
        statistics.add(x)
        return search_scale([weight], statistics, 16)

    choice, other = scales(loud_channel), scales(loud_channel + 7)
    return Result(
        protected=int(choice.scale.argmax()),  # type: ignore[attr-defined]
        loud_channel=loud_channel,
        heavy_channel=heavy_channel,
        alpha=choice.alpha,  # type: ignore[attr-defined]
        gain=choice.error_unscaled / choice.error,  # type: ignore[attr-defined]
        changes_with_inputs=not torch.equal(choice.scale, other.scale),  # type: ignore[attr-defined]
    )
