"""`prep sim size`: the number of GPUs, by arithmetic."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import terminal
from app.cli.option_groups import option_groups
from app.cli.sim.options import DeploymentOptions, Json, describe
from common.text import counted, duration, gib

if TYPE_CHECKING:
    from rich.table import Table

    from engine.sim.sizing import Sizing, SwapOrRecompute


@option_groups
def size(
    options: DeploymentOptions,
    rate: Annotated[float, typer.Option(help="Requests per second of the whole service.")] = 10.0,
    prompt: Annotated[int, typer.Option(min=1, help="Prompt tokens.")] = 1000,
    output: Annotated[int, typer.Option(min=1, help="Generated tokens.")] = 200,
    tpot: Annotated[float | None, typer.Option(help="Maximum milliseconds per output token.")] = None,
    utilisation: Annotated[float, typer.Option(help="Usable share of a replica's capacity.")] = 0.7,
    slo: Annotated[
        float | None, typer.Option(help="End-to-end limit in milliseconds; prints how many tokens fit.")
    ] = None,
    hops: Annotated[float, typer.Option(help="Milliseconds outside of the engine, for --slo.")] = 0.0,
    json: Json = False,
) -> None:
    """Calculate the GPUs for a rate of requests (prefill, decode, KV), and the tokens within an SLO.

    No queueing: check the answer with prep sim fleet.

    \b
    Examples:
      prep sim size --model llama-3-70b --gpu h100 --tp 4 --rate 10000 --prompt 1000 --output 200
      prep sim size --rate 100 --tpot 15 --slo 500 --hops 24
    """
    from engine.sim.calibration import calibrated_rates
    from engine.sim.sizing import size as calculate
    from engine.sim.sizing import slo_budget, swap_or_recompute

    deployment = options.deployment(prompt + output)
    limit = tpot / 1000 if tpot is not None else None
    rates = calibrated_rates(deployment)
    found = calculate(
        deployment,
        rate=rate,
        prompt=prompt,
        output=output,
        tpot_limit=limit,
        utilisation=utilisation,
        rates=rates,
    )
    swap = swap_or_recompute(deployment, prompt + output // 2, rates=rates)
    budget = (
        slo_budget(ttft=found.prefill_seconds, tpot=found.tpot, limit=slo / 1000, hops=hops / 1000)
        if slo is not None
        else None
    )
    if json:
        terminal.print_json(
            {
                "sizing": asdict(found),
                "slo": asdict(budget) if budget else None,
                "swap_or_recompute": {**asdict(swap), "cheaper": swap.cheaper},
            }
        )
        return
    table = _table(found, swap, prompt, utilisation)
    if budget is not None:
        formula = "hops + TTFT + (n - 1) x TPOT, without queueing"
        table.add_row(f"tokens within {slo:g} ms", f"{budget.tokens:,}", formula)
    terminal.show(
        f"{rate:,g} requests/s, {counted(prompt, 'token')} in, {output:,} out: {describe(deployment)}", table
    )
    terminal.next_command(
        f"prep sim fleet --model {deployment.model.name} --gpu {deployment.hardware.name} --tp {deployment.tp}",
        "with queues",
    )


def _table(found: Sizing, swap: SwapOrRecompute, prompt: int, utilisation: float) -> Table:
    table = terminal.table("", "", "why", left=("why",))
    table.show_header = False
    table.add_row("prefill of one prompt", duration(found.prefill_seconds), counted(prompt, "token"))
    table.add_row(
        "replicas for prefill", f"{found.prefill_replicas:,.1f}", f"rate x that / {utilisation:.0%}"
    )
    table.add_row("decode batch", f"{found.batch:,}", "what memory and --tpot allow")
    table.add_row("time per output token", duration(found.tpot), "a step of that batch")
    table.add_row(
        "decodes at once", f"{found.concurrent_decodes:,.0f}", "Little's law: rate x tokens x time per token"
    )
    table.add_row(
        "replicas for decode", f"{found.decode_replicas:,.1f}", f"decodes / batch / {utilisation:.0%}"
    )
    table.add_row("[bold]GPUs[/]", f"[bold]{found.gpus:,}[/]", f"{found.gpus_per_replica} per replica")
    table.add_row("KV held", gib(found.kv_bytes_at_once), "by all concurrent decodes")
    table.add_row(
        "KV produced", f"{found.kv_bytes_per_s / 1e9:,.1f} GB/s", "to send with separate prefill and decode"
    )
    table.add_row(
        "preempted halfway",
        swap.cheaper,
        f"swap {duration(swap.swap_seconds)}, recompute {duration(swap.recompute_seconds)}; "
        + (f"swap wins from {swap.break_even:,} tokens on" if swap.break_even else "swap never wins"),
    )
    return table
