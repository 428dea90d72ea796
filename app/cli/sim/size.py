"""`prep sim size`: how many GPUs, by arithmetic."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from app.cli import terminal
from app.cli.sim.options import (
    Dtype,
    Gpu,
    Json,
    KvCacheDtype,
    MaxNumSeqs,
    Model,
    Pp,
    Tp,
    describe,
    gib,
    make_deployment,
    seconds,
)
from app.cli.sim.run import calibrated_rates


def size(
    model: Model = "llama-3-8b",
    gpu: Gpu = "h100",
    tp: Tp = 1,
    pp: Pp = 1,
    dtype: Dtype = None,
    kv_cache_dtype: KvCacheDtype = "auto",
    rate: Annotated[float, typer.Option(help="Requests per second of the whole service.")] = 10_000.0,
    prompt: Annotated[int, typer.Option(min=1, help="Prompt tokens.")] = 1000,
    output: Annotated[int, typer.Option(min=1, help="Generated tokens.")] = 200,
    tpot: Annotated[float | None, typer.Option(help="Most milliseconds per output token.")] = None,
    utilisation: Annotated[float, typer.Option(help="Share of a replica's capacity that may be used.")] = 0.7,
    slo: Annotated[
        float | None, typer.Option(help="End-to-end limit in milliseconds: how many tokens fit into it.")
    ] = None,
    hops: Annotated[float, typer.Option(help="Milliseconds outside of the engine, for --slo.")] = 0.0,
    max_num_seqs: MaxNumSeqs = None,
    json: Json = False,
) -> None:
    """GPUs for a rate of requests, by arithmetic: prefill, decode, KV; and what an SLO leaves room for.

    No queueing: check the answer with prep sim fleet.

    \b
    Examples:
      prep sim size --model llama-3-70b --gpu h100 --tp 4 --rate 10000 --prompt 1000 --output 200
      prep sim size --rate 100 --tpot 15 --slo 500 --hops 24
    """
    from engine.sim.sizing import size as calculate
    from engine.sim.sizing import slo_budget, swap_or_recompute

    deployment = make_deployment(
        model=model,
        gpu=gpu,
        tp=tp,
        pp=pp,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        longest=prompt + output,
        max_num_seqs=max_num_seqs,
    )
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
    table = terminal.table("", "", "why", left=("why",))
    table.show_header = False
    table.add_row("prefill of one prompt", seconds(found.prefill_seconds), f"{prompt:,} tokens")
    table.add_row(
        "replicas for prefill", f"{found.prefill_replicas:,.1f}", f"rate x that / {utilisation:.0%}"
    )
    table.add_row("decode batch", f"{found.batch:,}", "what memory and --tpot allow")
    table.add_row("time per output token", seconds(found.tpot), "a step of that batch")
    table.add_row(
        "decodes at once", f"{found.concurrent_decodes:,.0f}", "Little: rate x tokens x time per token"
    )
    table.add_row(
        "replicas for decode", f"{found.decode_replicas:,.1f}", f"decodes / batch / {utilisation:.0%}"
    )
    table.add_row("[bold]GPUs[/]", f"[bold]{found.gpus:,}[/]", f"{found.gpus_per_replica} per replica")
    table.add_row("KV at once", gib(found.kv_bytes_at_once), "of all decodes")
    table.add_row(
        "KV made", f"{found.kv_bytes_per_s / 1e9:,.1f} GB/s", "to send if prefill and decode are apart"
    )
    table.add_row(
        "preempted at half",
        swap.cheaper,
        f"swap {seconds(swap.swap_seconds)}, recompute {seconds(swap.recompute_seconds)}; "
        + (f"swap wins from {swap.break_even:,} tokens on" if swap.break_even else "swap never wins"),
    )
    if budget is not None and slo is not None:
        table.add_row(
            f"tokens within {slo:g} ms", f"{budget.tokens:,}", "hops + TTFT + (n - 1) x TPOT, nobody queueing"
        )
    terminal.show(
        f"{rate:,g} requests/s, {prompt:,} tokens in, {output:,} out: {describe(deployment)}", table
    )
    terminal.next_command(
        f"prep sim fleet --model {deployment.model.name} --gpu {deployment.hardware.name} --tp {tp}",
        "with queues",
    )
