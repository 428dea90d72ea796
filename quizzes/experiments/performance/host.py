"""Work of the host beside the forward pass."""

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any
from unittest.mock import patch

from quizzes.experiments import Context, Result, arg, experiment, worker_of
from quizzes.experiments.measure import median_interval
from quizzes.experiments.performance.roofline import floor_of, load_of_rows


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


PARTS = ("tokenise", "schedule", "forward", "sample", "update", "detokenise")


@experiment("E65", determinism="statistical", seconds=30)
def cpu_path(
    ctx: Context, batch: int = arg(8, 1, 64), output: int = arg(16, 1, 64), words: int = arg(20, 1, 400)
) -> Result:
    """Profile serving on this CPU: the share of each component beside the forward pass.

    `shop` serves `batch` prompts of about `words` words with `output` tokens each; every component is timed.

    Returns: Shares of the time from the first prompt's text to the last answer's text; they add up to 1.
        tokenise, schedule, forward, sample, update, detokenise, other [share]
        host [share]: Everything but the forward pass: what would remain with an infinitely fast device.
        forward_us_per_token [us]: Forward time per generated token.
        steps [steps]
    """
    from engine import SamplingParams

    prompts = [" ".join(ctx.rng.choices(WORDS, k=words)) for _ in range(batch)]
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=output, ignore_eos=True)
    with ctx.llm(max_num_seqs=batch, enable_prefix_caching=False) as llm:
        llm.generate(prompts, params, use_tqdm=False)
        with _clocks(llm) as seconds:
            began = perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            total = perf_counter() - began
    shares = {part: seconds[part] / total for part in PARTS}
    return Result(
        **shares,
        other=max(0.0, 1 - sum(shares.values())),
        host=1 - shares["forward"],
        forward_us_per_token=1e6 * seconds["forward"] / (batch * output),
        steps=int(seconds["steps"]),
    )


WORDS = "Which volume of this series is in stock and what does it cost with shipping please".split()


@contextmanager
def _clocks(llm: Any) -> Any:
    """Wrap the parts' methods for as long as the block lasts. Time belongs to the innermost part that runs."""
    engine = llm.llm_engine
    core = engine.engine_core
    seconds: dict[str, float] = dict.fromkeys((*PARTS, "steps"), 0.0)
    running: list[str] = []
    last = perf_counter()

    def switch() -> None:
        nonlocal last
        now = perf_counter()
        if running:
            seconds[running[-1]] += now - last
        last = now

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            switch()
            running.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                switch()
                running.pop()
                seconds["steps"] += part == "schedule"

        return call

    places = [
        (engine.input_processor, "process", "tokenise"),
        (core.scheduler, "schedule", "schedule"),
        (core.executor, "submit", "forward"),
        (type(worker_of(llm).runner.sampler), "__call__", "sample"),
        (core.scheduler, "update", "update"),
        (engine.output_processor, "update", "detokenise"),
    ]
    with ExitStack() as patches:
        for owner, name, part in places:
            patches.enter_context(patch.object(owner, name, timed(part, getattr(owner, name))))
        yield seconds


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
    cost = floor_of(model, hardware, "bfloat16").cost
    prefill, decode = (cost.seconds(load_of_rows(batch, *row)) for row in ((max(2, length), 0), (1, length)))
    device = 1e6 * (prefill + decode * (output - 1)) / batch
    return Result(
        tokenise_us=median, lo=lo, hi=hi, device_us=device, ratio_lo=lo / device, ratio_hi=hi / device
    )
