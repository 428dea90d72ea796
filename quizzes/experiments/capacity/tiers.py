from engine.sim.sizing import size
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.capacity._deploy import Gpu
from quizzes.experiments.simulated import deploy


@experiment("E63")
def tiers(
    ctx: Context,
    model: str = "llama-3-8b",
    small_model: str = "qwen3-0.6b",
    gpu: Gpu = "h100",
    rate: float = arg(100.0, above=0, high=100_000),
    times: float = arg(10.0, 1, 1000),
    cached: float = arg(0.35, 0, 1),
    to_small: float = arg(0.5, 0, 1),
    prompt: int = arg(1000, 1, 100_000),
    output: int = arg(200, 1, 10_000),
) -> Result:
    """Size a fleet for `times` the traffic behind a response cache and a router to a smaller model.

    cached: share of requests answered without a model. to_small: share of the rest that the small model serves.

    Returns:
        GPUs by arithmetic, not rounded to machines.
        gpus_now, gpus_later, gpus_later_untiered [GPUs]
        growth [x]: gpus_later / gpus_now.
        large_share [share]: Share of the requests that still reach the large model.
    """

    def gpus(name: str, requests: float) -> float:
        if not requests:
            return 0.0
        deployment = deploy(name, gpu, max_model_len=prompt + output)
        found = size(deployment, rate=requests, prompt=prompt, output=output)
        return found.replicas * deployment.num_devices

    large = (1 - cached) * (1 - to_small)
    now = gpus(model, rate)
    later = gpus(model, rate * times * large) + gpus(small_model, rate * times * (1 - cached) * to_small)
    return Result(
        gpus_now=now,
        gpus_later=later,
        gpus_later_untiered=gpus(model, rate * times),
        growth=later / now,
        large_share=large,
    )
