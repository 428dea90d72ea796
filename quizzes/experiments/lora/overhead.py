from typing import Any, Literal

from quizzes.experiments import Context, NeedsHardware, Result, arg, experiment, greedy, paired_ratio

SHIPPED = ("recommend", "support", "ja")


@experiment("E44", seconds=60, megabytes=2500, determinism="statistical")
def overhead(
    ctx: Context,
    adapters: int = arg(3, 1, 3),
    batch: int = arg(8, 1, 32),
    tokens: int = arg(24, 4, 64),
    seconds: float = arg(6.0, 1, 20),
    device: Literal["auto", "cuda"] = "auto",
) -> Result:
    """Time decoding with LoRA adapters against the base alone, in interleaved pairs.

    device: cuda requires a GPU, auto takes the best available.

    Returns:
        Time of a decoded batch with adapters over the time without; 1.1 is 10 % more.
        ratio, lo [x]
        hi [x]: Bootstrap 95 % interval of the median.
        penalty [share]: Loss of throughput: 1 - 1 / ratio.
        penalty_lo, penalty_hi [share]
        repeats [pairs]
        adapters [adapters]
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise NeedsHardware("this asks what adapters cost on a GPU, and there is none (CUDA)")
    prompts = [[30 + (11 * row + i) % 1500 for i in range(8)] for row in range(batch)]
    params = greedy(tokens)
    settings: dict[str, Any] = {
        "enable_lora": True,
        "max_loras": 3,
        "enable_prefix_caching": False,
        "device": device,
    }
    with ctx.llm(max_num_seqs=batch, **settings) as llm:
        loaded = [llm.load_lora_adapter(name, f"shop-lora-{name}") for name in SHIPPED[:adapters]]
        with_adapters = [loaded[row % adapters] for row in range(batch)]

        def run(loras: list[Any] | None) -> None:
            llm.generate(prompts, params, lora_request=loras, use_tqdm=False)

        ratio = paired_ratio(lambda: run(with_adapters), lambda: run(None), seconds=seconds)
    return Result(
        ratio=ratio.median,
        lo=ratio.lo,
        hi=ratio.hi,
        penalty=1 - 1 / ratio.median,
        penalty_lo=1 - 1 / ratio.lo,
        penalty_hi=1 - 1 / ratio.hi,
        repeats=ratio.repeats,
        adapters=adapters,
    )
