"""`prep sim kv`: memory by use, and the rest for KV."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import terminal
from app.cli.option_groups import option_groups
from app.cli.sim.options import DeploymentOptions, Json, describe
from common.text import counted, gib

if TYPE_CHECKING:
    from rich.table import Table

    from engine.sim.memory import Deployment, MemoryPlan


@option_groups
def kv(
    options: DeploymentOptions,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Also show the tokens available to each of this many requests.")
    ] = None,
    json: Json = False,
) -> None:
    """Show the KV cache: bytes per token, tokens that fit, concurrent sequences.

    Exit code 2 if the model does not fit: the message states the deficit and the remedies.

    \b
    Examples:
      prep sim kv --model llama-3-70b --gpu h100 --tp 8
      prep sim kv --model llama-2-7b --gpu a100-40 --concurrency 200
      prep sim kv --model llama-3-8b --gpu l4 --dtype fp8 --kv-cache-dtype fp8
    """
    from engine.sim.memory import plan_memory

    deployment = options.deployment(longest=8192)
    block_size = deployment.block_size
    plan = plan_memory(deployment)
    shape = deployment.model
    lengths = [
        length
        for length in (512, 1024, 2048, 4096, 8192, 32_768, 131_072)
        if length <= shape.max_position_embeddings
    ]
    at_once = {
        length: _sequences(plan.num_tokens, shape.kv_tokens_held(length), block_size) for length in lengths
    }
    each = plan.num_tokens // concurrency // block_size * block_size if concurrency else None
    if json:
        terminal.print_json(
            {
                "model": shape.name,
                "gpu": deployment.hardware.name,
                "num_devices": deployment.num_devices,
                "num_params": shape.num_params,
                "attention": shape.attention_kind,
                "kv_bytes_per_token": deployment.kv_bytes_per_token,
                "plan": asdict(plan),
                "sequences_at_once": {str(length): count for length, count in at_once.items()},
                "concurrency": concurrency,
                "tokens_each": each,
            }
        )
        return
    terminal.show(describe(deployment), _memory_table(deployment, plan))
    per_layer = deployment.kv_bytes_per_token / shape.num_layers
    console = terminal.out()
    console.print(
        f"KV of one token: [bold]{deployment.kv_bytes_per_token / 1024:,.1f} KiB[/] "
        f"({shape.attention_kind}: {shape.num_layers} layers x {per_layer:,.0f} bytes); "
        f"the cache holds [bold]{plan.num_tokens:,}[/] tokens",
        soft_wrap=True,
    )
    if each is not None and concurrency is not None:
        console.print(
            f"{counted(concurrency, 'request')} at once: [bold]{each:,}[/] tokens each", soft_wrap=True
        )
    table = terminal.table("tokens per sequence", "KV each", "sequences at once")
    for length, count in at_once.items():
        table.add_row(
            f"{length:,}", gib(shape.kv_tokens_held(length) * deployment.kv_bytes_per_token), f"{count:,}"
        )
    console.print(table)
    terminal.next_command(
        f"prep sim run --model {shape.name} --gpu {deployment.hardware.name} --tp {deployment.tp}",
        "the same under load",
    )


def _memory_table(deployment: Deployment, plan: MemoryPlan) -> Table:
    table = terminal.table("one device", "", "why", left=("why",))
    table.add_row("memory", gib(plan.total), deployment.hardware.source)
    table.add_row(
        "usable", gib(plan.usable), f"x {deployment.gpu_memory_utilization:g} gpu_memory_utilization"
    )
    table.add_row("- weights", gib(plan.weights), _weights(deployment))
    table.add_row("- runtime", gib(plan.runtime), "context, communication buffers, graphs: an estimate")
    table.add_row(
        "- activations",
        gib(plan.activations),
        f"{deployment.max_num_batched_tokens:,} tokens a step: an estimate",
    )
    table.add_row(
        "= KV budget", gib(plan.kv_budget), f"{plan.num_blocks:,} blocks of {deployment.block_size} tokens"
    )
    return table


def _sequences(num_tokens: int, length: int, block_size: int) -> int:
    return num_tokens // (-(-length // block_size) * block_size)


def _weights(deployment: Deployment) -> str:
    share = f" / {deployment.num_devices} devices" if deployment.num_devices > 1 else ""
    return f"{deployment.model.num_params / 1e9:,.2f} B parameters in {deployment.dtype}{share}"
