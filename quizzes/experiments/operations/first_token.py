"""E59 on this machine: the engine's own start, with weights that come from a slow disk."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Start:
    """Wall clock of one start; the first request of a process against the second."""

    read: Annotated[float, "s"]
    """Reading the weight file at the given rate."""
    load: Annotated[float, "s"]
    """Building the model and the KV pool, weights into place, kernels made ready."""
    first_request: Annotated[float, "s"]
    second_request: Annotated[float, "s"]
    """The same request again, from a fresh cache: what warming up is worth."""
    read_share: Annotated[float, "share"]
    cold_over_warm: Annotated[float, "x"]


@experiment("E59", determinism="statistical", seconds=40)
def first_token(
    ctx: Context,
    *,
    disk_mb_per_s: Annotated[float, Field(ge=1, le=10_000)] = 20.0,
    tokens: Annotated[int, Field(ge=1, le=64)] = 16,
) -> Start:
    """Start the shipped model with a throttled disk and time its first two requests.

    The weight file is read in pieces at disk_mb_per_s before the engine loads it; everything after that is as fast as
    this machine is. A slow disk makes reading the largest part, a fast one leaves loading and the first request.
    """
    from engine import SamplingParams
    from engine.zoo.registry import resolve

    began = time.perf_counter()
    size = 0
    for path in sorted(resolve("shop").glob("*.safetensors")):
        with path.open("rb") as file:
            while piece := file.read(1 << 18):
                size += len(piece)
                ahead = size / (disk_mb_per_s * 1e6) - (time.perf_counter() - began)
                if ahead > 0:
                    time.sleep(ahead)
    read = time.perf_counter()
    with ctx.llm(enable_prefix_caching=False) as llm:
        loaded = time.perf_counter()
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        llm.generate(["A first request"], params)
        first = time.perf_counter()
        llm.generate(["A first request"], params)
        second = time.perf_counter()
    parts = (read - began, loaded - read, first - loaded)
    return Start(
        read=parts[0],
        load=parts[1],
        first_request=parts[2],
        second_request=second - first,
        read_share=parts[0] / sum(parts),
        cold_over_warm=parts[2] / (second - first),
    )
