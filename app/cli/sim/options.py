"""Shared options of the simulator's commands."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

from app.cli import terminal
from app.cli.options import option
from app.cli.traffic_options import DrawnRequests
from engine.sim.calibration import rates_on_cpu
from engine.sim.cost import Rates
from engine.sim.memory import Deployment, make_deployment
from engine.sim.workload import SimRequest, Workload, parse_phases, read_trace
from prep_common.text import counted
from prep_common.text_file import UnreadableFile


@dataclass(frozen=True)
class ModelOptions:
    """A model on devices: options that determine the time of a step."""

    model: Annotated[str, option("A name from prep sim list, or its Hugging Face id.")] = "llama-3-8b"
    gpu: Annotated[str, option("A name from prep sim list; cpu is this machine.")] = "h100"
    tp: Annotated[int, option("GPUs that share each layer.", min=1)] = 1
    dtype: Annotated[
        str | None,
        option(
            "Type of the weights: bfloat16, float16, float32, fp8, int8, int4; default: the device's own."
        ),
    ] = None

    def deployment(self, longest: int | None = None) -> Deployment:
        """Look up the names. longest: tokens of the workload's longest request. Raises ConfigError."""
        return make_deployment(**vars(self), longest=longest)

    @property
    def flags(self) -> str:
        """The model and what differs from the defaults, as options for a hint."""
        words = ["--model", self.model]
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default:
                words += [f"--{field.name.replace('_', '-')}", str(value)]
        return shlex.join(words)


@dataclass(frozen=True)
class DeploymentOptions(ModelOptions):
    """A model on devices, plus the engine's limits."""

    pp: Annotated[int, option("Groups of layers, each on its own GPUs.", min=1)] = 1
    kv_cache_dtype: Annotated[
        str, option("auto (that of the activations), bfloat16, fp8, int8_per_token_head, ...")
    ] = "auto"
    gpu_memory_utilization: Annotated[float, option("Share of the memory for the engine.")] = 0.92
    block_size: Annotated[int, option("Tokens per KV block.", min=1)] = 16
    max_model_len: Annotated[
        int | None, option("Longest prompt plus output; by default enough for the workload.", min=2)
    ] = None
    max_num_seqs: Annotated[
        int | None, option("Maximum requests that run at once; vLLM's default for the card.", min=1)
    ] = None
    max_num_batched_tokens: Annotated[
        int | None, option("Token budget of one step; vLLM's default for the card.", min=1)
    ] = None


@dataclass(frozen=True)
class WorkOptions(DrawnRequests):
    """Requests, drawn or listed in a file."""

    rate: Annotated[float, option("Requests per second; inf: all at once.")] = 4.0
    num_requests: Annotated[int, option("Requests to simulate.", min=1)] = 1000
    requests: Annotated[
        Path | None,
        option(
            'File of requests instead of random ones; lines {"arrival": 0.5, "prompt": 800, "output": 100}.'
        ),
    ] = None

    @cached_property
    def listed(self) -> list[SimRequest] | None:
        """Requests of the file, if given."""
        try:
            return read_trace(self.requests) if self.requests else None
        except UnreadableFile as error:
            is_number = str(self.requests).lstrip("-").isdigit()
            raise terminal.Problem(
                str(error), "--requests is a file; --num-requests is their number" if is_number else ""
            ) from None

    @property
    def total(self) -> int:
        return len(self.listed) if self.listed else self.num_requests

    @cached_property
    def _drawn(self) -> Workload:
        return self.draw(self.num_requests)

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        if self.listed:
            return max(request.prompt_len + request.output_len for request in self.listed)
        return self._drawn.prompt.longest + self._drawn.output.longest

    def work(self, deployment: Deployment, phases: str | None = None) -> list[SimRequest] | Workload:
        """Return the requests of the file, or the distributions to draw them from. phases: see prep sim fleet.

        Refuses requests that are all too long for the model; a note says how many of different lengths are.
        """
        phased, most = parse_phases(phases) if phases else (), deployment.max_model_len
        if not self.listed:
            check_context(deployment, self._drawn.prompt.low, self._drawn.output.low)
        cut = sum(request.prompt_len + request.output_len > most for request in self.listed or self._drawn)
        if cut:
            told = f"{cut:,} of {counted(self.total, 'request')} exceed the context of {most:,} positions"
            terminal.note(f"[yellow]{told}:[/] outputs end there, and prompts are cut or rejected")
        return self.listed or replace(self._drawn, max_model_len=most, phases=phased)


def rates_of(deployment: Deployment) -> Rates | None:
    """Return the rates measured on this CPU, None for datasheet figures. A note says if a CPU's are estimates."""
    if not deployment.hardware.is_cpu:
        return None
    measured, model, dtype = (
        rates_on_cpu(deployment.model, deployment.dtype),
        deployment.model.name,
        deployment.dtype,
    )
    if measured is None:
        terminal.note(
            f"[yellow]no step in {dtype} was measured on this CPU:[/] times are estimates from its number of cores; "
            "prep sim calibrate measures"
        )
        return None
    if measured.model != model:
        terminal.note(
            f"[dim]rates of this CPU: those of {measured.model}, the measured model nearest to {model}[/]"
        )
    return measured.rates


def check_context(deployment: Deployment, prompt: int, output: int) -> None:
    """Raise Problem if prompt and output together have no room in the model's context."""
    if prompt + output > deployment.max_model_len:
        raise terminal.Problem(
            f"prompt + output = {prompt:,} + {output:,} tokens exceed the context of {deployment.model.name} here: "
            f"{deployment.max_model_len:,} positions",
            "lower --prompt or --output, or choose a model with a longer context: prep sim list --json",
        )


def describe(deployment: Deployment) -> str:
    """Return a title: model, type, devices."""
    count = f"{deployment.num_devices} x " if deployment.num_devices > 1 else ""
    split = [f"{name}={size}" for name, size in terminal.pick(deployment, "tp pp").items() if size > 1]
    parallel = f" ({', '.join(split)})" if split else ""
    return f"{deployment.model.name} in {deployment.dtype} on {count}{deployment.hardware.name}{parallel}"
