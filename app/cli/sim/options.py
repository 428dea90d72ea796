"""Options that the simulator's commands share, and what they make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli.terminal import Problem
from engine.sim.hardware import GIB, get_hardware
from engine.sim.memory import Deployment
from engine.sim.models import get_model
from engine.sim.workload import Lengths, SimRequest, read_trace

Model = Annotated[str, typer.Option("--model", help="A name from prep sim list, or its Hugging Face id.")]
Gpu = Annotated[str, typer.Option("--gpu", help="A name from prep sim list; cpu is this machine.")]
Tp = Annotated[int, typer.Option("--tp", min=1, help="GPUs that share each layer.")]
Pp = Annotated[int, typer.Option("--pp", min=1, help="Groups of layers, each on its own GPUs.")]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="Of the weights: bfloat16, float16, float32, fp8, int8, int4; by default what the device is for."
    ),
]
KvCacheDtype = Annotated[
    str, typer.Option(help="auto (as the activations), bfloat16, fp8, int8_per_token_head, ...")
]
MaxModelLen = Annotated[
    int | None, typer.Option(min=2, help="Longest prompt plus output; by default enough for the workload.")
]
MaxNumSeqs = Annotated[
    int | None, typer.Option(min=1, help="Most requests that run at once; vLLM's default for the card.")
]
MaxNumBatchedTokens = Annotated[
    int | None, typer.Option(min=1, help="Token budget of one step; vLLM's default for the card.")
]
Utilization = Annotated[
    float, typer.Option("--gpu-memory-utilization", help="Share of the memory that the engine may use.")
]
BlockSize = Annotated[int, typer.Option(min=1, help="Tokens per KV block.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same run.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]

_LARGE_CARD = 70 * GIB
"""From here on vLLM (arg_utils.py, get_batch_defaults) and engine/resolve.py take the larger defaults."""


def read_work(
    prompt: str, output: str, requests: Path | None
) -> tuple[Lengths, Lengths, list[SimRequest] | None, int]:
    """--prompt, --output and --requests: two distributions, the requests of the file if there is one, and the tokens of
    the longest request."""
    prompts, outputs = Lengths.parse(prompt), Lengths.parse(output)
    if requests is None:
        return prompts, outputs, None, prompts.longest + outputs.longest
    listed = read_trace(requests)
    return prompts, outputs, listed, max(r.prompt_len + r.output_len for r in listed)


def make_deployment(
    *,
    model: str,
    gpu: str,
    tp: int = 1,
    pp: int = 1,
    dtype: str | None = None,
    kv_cache_dtype: str = "auto",
    gpu_memory_utilization: float = 0.92,
    block_size: int = 16,
    max_model_len: int | None = None,
    longest: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
) -> Deployment:
    """Names looked up, defaults filled in. `longest`: what the workload needs; None: as long as the model goes."""
    shape, hardware = get_model(model), get_hardware(gpu)
    most = shape.max_position_embeddings
    if max_model_len is None:
        max_model_len = most if longest is None else min(most, -(-longest // 1024) * 1024)
    if max_model_len > most:
        raise Problem(
            f"--max-model-len {max_model_len} is more than the {most} positions of {shape.name}",
            next_step=f"--max-model-len {most}",
        )
    seqs, tokens = (1024, 16384) if hardware.memory_bytes >= _LARGE_CARD else (256, 8192)
    if hardware.is_cpu:
        seqs, tokens = 256, 4096
    tokens = max_num_batched_tokens or max(tokens, max_num_seqs or 0)
    return Deployment(
        shape,
        hardware,
        tp,
        pp,
        dtype or ("float32" if hardware.is_cpu else "bfloat16"),
        kv_cache_dtype,
        gpu_memory_utilization,
        block_size,
        tokens,
        min(max_num_seqs or seqs, tokens),
        max_model_len,
    )


def describe(deployment: Deployment) -> str:
    count = f"{deployment.num_devices} x " if deployment.num_devices > 1 else ""
    split = ", ".join(
        f"{name}={size}" for name, size in (("tp", deployment.tp), ("pp", deployment.pp)) if size > 1
    )
    return f"{deployment.model.name} in {deployment.dtype} on {count}{deployment.hardware.name}" + (
        f" ({split})" if split else ""
    )


def seconds(value: float) -> str:
    """A duration for people."""
    if value >= 100:
        return f"{value:,.0f} s"
    return (
        f"{value:.2f} s"
        if value >= 1
        else f"{1000 * value:.1f} ms"
        if value >= 0.001
        else f"{1e6 * value:.0f} µs"
    )


def gib(num_bytes: float) -> str:
    return f"{num_bytes / GIB:,.1f} GiB"
