from time import perf_counter

from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.measure import median_interval
from quizzes.experiments.performance._floor import floor_of, load_of_rows
from quizzes.experiments.performance.cpu_path import WORDS


@experiment("E65", determinism="statistical")
def tokeniser_load(
    ctx: Context,
    words: int = arg(20, 1, 2000),
    output: int = arg(1, 1, 4000),
    model: str = "qwen2.5-0.5b",
    hardware: str = "h100",
    batch: int = arg(256, 1, 1024),
) -> Result:
    """Compare the speed of one tokenising CPU thread with the demand of a GPU.

    The tokenizer of `shop` reads prompts of about `words` words; the device is the simulator's cost model.

    Returns:
        tokenise_us [us]: Measured here: one prompt, one thread, median.
        lo, hi [us]
        device_us [us]: GPU time of such a request at the datasheet's rates: prefill and its part of each decode step.
        ratio_lo, ratio_hi [x]: Tokenising over device time: above 1, a single thread cannot feed this GPU.
    """
    from engine.zoo.registry import resolve
    from engine.zoo.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(resolve("shop"))
    prompts = [" ".join(ctx.rng.choices(WORDS, k=words)) for _ in range(50)]
    length = len(tokenizer.encode(prompts[0]).ids)
    times = []
    for _ in range(11):
        began = perf_counter()
        for prompt in prompts:
            tokenizer.encode(prompt)
        times.append(1e6 * (perf_counter() - began) / len(prompts))
    median, lo, hi = median_interval(times)

    floor = floor_of(model, hardware, "bfloat16")
    prefill = floor.cost.seconds(load_of_rows(batch, max(2, length), 0)) / batch
    decode = floor.cost.seconds(load_of_rows(batch, 1, length)) / batch * (output - 1)
    device = 1e6 * (prefill + decode)
    return Result(
        tokenise_us=median, lo=lo, hi=hi, device_us=device, ratio_lo=lo / device, ratio_hi=hi / device
    )
