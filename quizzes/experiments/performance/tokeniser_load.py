"""E65: one CPU thread that tokenises against a GPU that needs work: who waits for whom?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Load:
    tokenise_us: Annotated[float, "us"]
    """Measured here: one prompt, one thread, median."""
    lo: Annotated[float, "us"]
    hi: Annotated[float, "us"]
    device_us: Annotated[float, "us"]
    """Of the GPU, for such a request, at the datasheet's rates: prefill and its part of each decode step."""
    ratio_lo: Annotated[float, "x"]
    """Tokenising over device time: above 1, a single thread cannot feed this GPU."""
    ratio_hi: Annotated[float, "x"]


@experiment("E65", determinism="statistical")
def tokeniser_load(
    ctx: Context,
    *,
    words: Annotated[int, Field(ge=1, le=2000)] = 20,
    output: Annotated[int, Field(ge=1, le=4000)] = 1,
    model: str = "qwen2.5-0.5b",
    hardware: str = "h100",
    batch: Annotated[int, Field(ge=1, le=1024)] = 256,
) -> Load:
    """The tokenizer of `shop` on prompts of about `words` words; the device by the simulator's cost model."""
    from time import perf_counter

    from engine.zoo.registry import resolve
    from engine.zoo.tokenizer import load_tokenizer
    from quizzes.experiments.measure import median_interval
    from quizzes.experiments.performance._floor import floor_of, load_of_rows
    from quizzes.experiments.performance.cpu_path import WORDS

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
    return Load(median, lo, hi, device, lo / device, hi / device)
