"""E04: what a container image with a model in it cannot be smaller than."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from quizzes.experiments import Context, experiment
from quizzes.experiments.capacity.quantised_size import quantised_size

Megabytes = Annotated[float, Field(ge=0, le=1_000_000)]


@dataclass(frozen=True)
class Image:
    """Lower bounds: packages as they are downloaded, compressed; the operating system and our own code left out."""

    model_gb: Annotated[float, "GB"]
    packages_gb: Annotated[float, "GB"]
    total_gb: Annotated[float, "GB"]


@experiment("E04")
def image_size(
    ctx: Context,
    *,
    model: str = "llama-3-8b",
    method: Literal["none", "awq", "gptq", "int8", "fp8"] = "awq",
    packages_mb: Annotated[list[Megabytes], Field(max_length=64)] = (
        779.1,
        731.7,
        410.6,
        196.0,
        176.2,
        168.1,
        124.2,
        121.6,
        56.5,
        23.7,
        21.0,
        14.1,
    ),
) -> Image:
    """Quantised weights and compressed packages together.

    packages_mb: wheels, as pip prints them while it downloads; the default is PyTorch 2.3.0 for CUDA 12.1 with its
    libraries (torch, cuDNN, cuBLAS, cuSPARSE, NCCL, Triton, cuSOLVER, cuFFT, cuRAND, NVRTC, nvJitLink, CUPTI).
    """
    weights = quantised_size(ctx, model=model, method=method).total_gb
    packages = sum(packages_mb) / 1000
    return Image(weights, packages, weights + packages)
