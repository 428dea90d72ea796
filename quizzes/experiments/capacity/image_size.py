from typing import Literal

from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.capacity.quantised_size import quantised_size


@experiment("E04")
def image_size(
    ctx: Context,
    model: str = "llama-3-8b",
    method: Literal["none", "awq", "gptq", "int8", "fp8"] = "awq",
    packages_mb: list[float] = arg(
        [779.1, 731.7, 410.6, 196.0, 176.2, 168.1, 124.2, 121.6, 56.5, 23.7, 21.0, 14.1],
        0,
        1_000_000,
        count=(0, 64),
    ),
) -> Result:
    """Add up a lower bound on a container image with a model in it: quantised weights and compressed packages.

    packages_mb: wheel sizes as pip prints them; the default is PyTorch 2.3.0 for CUDA 12.1 with its libraries (torch,
    cuDNN, cuBLAS, cuSPARSE, NCCL, Triton, cuSOLVER, cuFFT, cuRAND, NVRTC, nvJitLink, CUPTI).

    Returns:
        Lower bounds: compressed packages as downloaded, without the operating system and your own code.
        model_gb, packages_gb, total_gb [GB]
    """
    weights = quantised_size(ctx, model=model, method=method).total_gb
    packages = sum(packages_mb) / 1000
    return Result(model_gb=weights, packages_gb=packages, total_gb=weights + packages)
