"""Shared options of the simulator's commands."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from engine.sim.memory import Deployment
    from engine.sim.workload import SimRequest, Workload

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@dataclass(frozen=True)
class ModelOptions:
    """A model on devices: options that determine the time of a step."""

    model: Annotated[str, typer.Option(help="A name from prep sim list, or its Hugging Face id.")] = (
        "llama-3-8b"
    )
    gpu: Annotated[str, typer.Option(help="A name from prep sim list; cpu is this machine.")] = "h100"
    tp: Annotated[int, typer.Option(min=1, help="GPUs that share each layer.")] = 1
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Type of the weights: bfloat16, float16, float32, fp8, int8, int4; default: the device's own."
        ),
    ] = None

    def deployment(self, longest: int | None = None) -> Deployment:
        """Look up the names. longest: tokens of the workload's longest request. Raises ConfigError."""
        from engine.sim.memory import make_deployment

        return make_deployment(**vars(self), longest=longest)


@dataclass(frozen=True)
class DeploymentOptions(ModelOptions):
    """A model on devices, plus the engine's limits."""

    pp: Annotated[int, typer.Option(min=1, help="Groups of layers, each on its own GPUs.")] = 1
    kv_cache_dtype: Annotated[
        str, typer.Option(help="auto (that of the activations), bfloat16, fp8, int8_per_token_head, ...")
    ] = "auto"
    gpu_memory_utilization: Annotated[float, typer.Option(help="Share of the memory for the engine.")] = 0.92
    block_size: Annotated[int, typer.Option(min=1, help="Tokens per KV block.")] = 16
    max_model_len: Annotated[
        int | None,
        typer.Option(min=2, help="Longest prompt plus output; by default enough for the workload."),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum requests that run at once; vLLM's default for the card."),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(min=1, help="Token budget of one step; vLLM's default for the card.")
    ] = None


@dataclass(frozen=True)
class WorkOptions:
    """Requests, drawn or listed in a file."""

    rate: Annotated[float, typer.Option(help="Requests per second; inf: all at once.")] = 4.0
    num_requests: Annotated[int, typer.Option(min=1, help="Requests to simulate.")] = 1000
    prompt: Annotated[str, typer.Option(help="Prompt tokens: 1000, 500-1500 or lognormal:MEAN:SIGMA.")] = (
        "1000"
    )
    output: Annotated[str, typer.Option(help="Generated tokens, in the same forms.")] = "200"
    arrivals: Annotated[str, typer.Option(help="poisson, gamma (bursty, see --cv) or constant.")] = "poisson"
    cv: Annotated[float, typer.Option(help="Gamma: standard deviation over mean of the gaps.")] = 2.0
    num_prefixes: Annotated[int, typer.Option(min=0, help="Number of shared prompt prefixes; 0: none.")] = 0
    prefix_len: Annotated[int, typer.Option(min=0, help="Tokens of a shared prefix.")] = 0
    requests: Annotated[
        Path | None,
        typer.Option(
            help='File of requests instead of random ones; lines {"arrival": 0.5, "prompt": 800, "output": 100}.'
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="The same seed gives the same run.")] = 0

    @cached_property
    def listed(self) -> list[SimRequest] | None:
        """Requests of the file, if given."""
        from engine.sim.workload import read_trace

        return read_trace(self.requests) if self.requests else None

    @property
    def total(self) -> int:
        return len(self.listed) if self.listed else self.num_requests

    @cached_property
    def _drawn(self) -> Workload:
        from engine.sim.workload import Lengths, Workload

        return Workload(
            self.num_requests,
            self.rate,
            Lengths.parse(self.prompt),
            Lengths.parse(self.output),
            self.arrivals,  # type: ignore[arg-type]
            self.cv,
            self.num_prefixes,
            self.prefix_len,
            seed=self.seed,
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        if self.listed:
            return max(request.prompt_len + request.output_len for request in self.listed)
        return self._drawn.prompt.longest + self._drawn.output.longest

    def work(self, max_model_len: int, phases: str | None = None) -> list[SimRequest] | Workload:
        """Return the requests of the file, or the distributions to draw them from. phases: see prep sim fleet."""
        from dataclasses import replace

        from engine.sim.workload import parse_phases

        phased = parse_phases(phases) if phases else ()
        return self.listed or replace(self._drawn, max_model_len=max_model_len, phases=phased)


def describe(deployment: Deployment) -> str:
    """Return a title: model, type, devices."""
    count = f"{deployment.num_devices} x " if deployment.num_devices > 1 else ""
    split = ", ".join(
        f"{name}={size}" for name, size in (("tp", deployment.tp), ("pp", deployment.pp)) if size > 1
    )
    return f"{deployment.model.name} in {deployment.dtype} on {count}{deployment.hardware.name}" + (
        f" ({split})" if split else ""
    )
