from engine.sim.cost import CostModel, StepLoad, pairs_of
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.scheduling._cluster import Gpu, Model, deployment


@experiment("E15", "E24")
def mixed_step(
    ctx: Context,
    decodes: int = arg(32, 1, 512),
    context: int = arg(1000, 1, 32_000),
    chunk: int = arg(512, 2, 32_000),
    model: Model = "llama-3.1-8b",
    gpu: Gpu = "h100",
) -> Result:
    """Compare decodes and a prefill chunk in one step with the same work in two steps.

    Sharing a step reads the weights once. Bound: arithmetic intensity against the card's ridge point, both at the
    rates that kernels reach.

    Returns:
        Roofline prices of single steps.
        decode_ms, chunk_ms, mixed_ms [ms]
        saving [share]: Time saved over the time of two steps.
        decode_intensity [FLOP/byte]: Arithmetic intensity of the linear layers.
        chunk_intensity, ridge [FLOP/byte]
        decode_is_memory_bound, chunk_is_compute_bound
    """
    replica = deployment(model, gpu)
    cost = CostModel(replica)
    pairs = pairs_of(0, chunk, None)
    alone = StepLoad(decodes, decodes, decodes, decodes * context)
    prompt = StepLoad(1, chunk, 0, 0, pairs, chunk)
    both = StepLoad(decodes + 1, decodes + chunk, decodes, decodes * context, pairs, chunk)
    seconds = [cost.seconds(load) for load in (alone, prompt, both)]
    ridge = cost.rates.flops / cost.rates.bytes_per_s
    return Result(
        decode_ms=1000 * seconds[0],
        chunk_ms=1000 * seconds[1],
        mixed_ms=1000 * seconds[2],
        saving=1 - seconds[2] / (seconds[0] + seconds[1]),
        decode_intensity=cost.intensity(alone),
        chunk_intensity=cost.intensity(prompt),
        ridge=ridge,
        decode_is_memory_bound=cost.intensity(alone) < ridge,
        chunk_is_compute_bound=cost.intensity(prompt) > ridge,
    )
