"""E44: tokens per second with adapters on, in pairs: none, one and several in a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from quizzes.experiments import Context, NeedsHardware, experiment
from quizzes.experiments.measure import paired_ratio

SHIPPED = ("recommend", "support", "ja")


@dataclass(frozen=True)
class Overhead:
    """Time of a decoded batch with adapters over the time without: 1.1 is 10 % more."""

    ratio: Annotated[float, "x"]
    lo: Annotated[float, "x"]
    hi: Annotated[float, "x"]
    """Bootstrap 95 % interval of the median."""
    penalty: Annotated[float, "share"]
    """Of throughput: 1 - 1 / ratio."""
    penalty_lo: Annotated[float, "share"]
    penalty_hi: Annotated[float, "share"]
    repeats: Annotated[int, "pairs"]
    adapters: Annotated[int, "adapters"]


@experiment("E44", seconds=60, megabytes=2500, determinism="statistical")
def overhead(
    ctx: Context,
    *,
    adapters: Annotated[int, Field(ge=1, le=3)] = 3,
    batch: Annotated[int, Field(ge=1, le=32)] = 8,
    tokens: Annotated[int, Field(ge=4, le=64)] = 24,
    seconds: Annotated[float, Field(ge=1, le=20)] = 6.0,
    device: Literal["auto", "cuda"] = "auto",
) -> Overhead:
    """Decode the same batch on the base alone and with shipped adapters, in one engine, interleaved.

    device: cuda asks for a GPU, auto takes what is there.
    """
    import torch

    from engine import SamplingParams

    if device == "cuda" and not torch.cuda.is_available():
        raise NeedsHardware("this asks what adapters cost on a GPU, and there is none (CUDA)")
    prompts = [[30 + (11 * row + i) % 1500 for i in range(8)] for row in range(batch)]
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    settings = {"enable_lora": True, "max_loras": 3, "enable_prefix_caching": False, "device": device}
    with ctx.llm(max_num_seqs=batch, **settings) as llm:
        loaded = [llm.load_lora_adapter(name, f"shop-lora-{name}") for name in SHIPPED[:adapters]]
        with_adapters = [loaded[row % adapters] for row in range(batch)]

        def run(loras: list | None) -> None:
            llm.generate(prompts, params, lora_request=loras, use_tqdm=False)

        ratio = paired_ratio(lambda: run(with_adapters), lambda: run(None), seconds=seconds)
    return Overhead(
        ratio=ratio.median,
        lo=ratio.lo,
        hi=ratio.hi,
        penalty=1 - 1 / ratio.median,
        penalty_lo=1 - 1 / ratio.lo,
        penalty_hi=1 - 1 / ratio.hi,
        repeats=ratio.repeats,
        adapters=adapters,
    )
