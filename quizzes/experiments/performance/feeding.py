"""Whether the host keeps up with the device, without a model."""

from time import perf_counter

from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.measure import median_interval
from quizzes.experiments.performance.roofline import floor_of, load_of_rows

WORDS = "Which volume of this series is in stock and what does it cost with shipping please".split()


@experiment("E65")
def host_overlap(
    host_ms: float = arg(2.0, 0, 10_000),
    device_ms: float = arg(10.0, 0, 10_000),
    steps: int = arg(100, 1, 10_000),
) -> Result:
    """Compare a step's host work before its forward pass with host work beside it: how long the device waits.

    Overlapped, as with vLLM's asynchronous scheduling: the host prepares step n + 1 while the device runs step n.

    Returns: `steps` steps, one after the other and overlapped. Busy: share of the time in which the device computes.
        serial_ms, overlapped_ms [ms]; serial_busy, overlapped_busy [share]; speedup [x]
    """
    host_free = device_free = serial = 0.0
    for _ in range(steps):
        serial += host_ms + device_ms
        prepared = host_free + host_ms
        device_free = max(prepared, device_free) + device_ms
        # The host starts on the next step when the device has taken this one.
        host_free = max(prepared, device_free - device_ms)
    busy = steps * device_ms
    return Result(
        serial_ms=serial,
        overlapped_ms=device_free,
        serial_busy=busy / serial if serial else 0.0,
        overlapped_busy=busy / device_free if device_free else 0.0,
        speedup=serial / device_free if device_free else 1.0,
    )


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

    Returns: The tokenizer of `shop` reads prompts of about `words` words; the device is the cost model.
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
    cost = floor_of(model, hardware, "bfloat16", rows=batch, length=length + output).cost
    prefill, decode = (cost.seconds(load_of_rows(batch, *row)) for row in ((max(2, length), 0), (1, length)))
    device = 1e6 * (prefill + decode * (output - 1)) / batch
    return Result(
        tokenise_us=median, lo=lo, hi=hi, device_us=device, ratio_lo=lo / device, ratio_hi=hi / device
    )
