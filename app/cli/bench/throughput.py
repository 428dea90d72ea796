"""`prep bench throughput`: full batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal
from app.cli.bench.against import (
    Peer,
    comparing,
    parse_lengths,
    resolve_pair,
    show_shares,
)
from app.cli.bench.common import Json, Model, finish, finish_comparison, measuring
from app.cli.engine_options import engine_options
from app.cli.option_groups import option_groups

if TYPE_CHECKING:
    from app.bench.throughput import ThroughputReport


@engine_options
@option_groups
def throughput(
    model: Model = "shop",
    num_prompts: Annotated[int, typer.Option(min=1, help="Requests, all submitted at the start.")] = 128,
    input_len: Annotated[
        str, typer.Option(help="Prompt tokens of each (random ids), a number or a range.")
    ] = "128-256",
    output_len: Annotated[
        str, typer.Option(help="Tokens generated for each, a number or a range.")
    ] = "64-128",
    peer: Peer = Peer(),  # noqa: B008 - frozen
    rounds: Annotated[int, typer.Option(min=1, help="With --against: rounds of each engine.")] = 5,
    json: Json = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Measure tokens per second with full batches, and the time of a step by part.

    \b
    The work runs once unmodified, for the speed, and once with clocks inside the
    step, for the shares. The matrix products are then timed alone: the model's
    own weights, layer after layer, at the batch sizes that occurred. This is
    the lower bound of a step.

    \b
    With --against, both engines get the same requests, settings and threads,
    each in a separate process that is stopped while the other runs. Rounds
    alternate, and the ratio is that of the medians. vLLM runs with its defaults,
    compiled, with its engine core in the same process, so that threads are equal.

    \b
    The model dummy-386m is a shape with random weights: 896 wide, 24 layers,
    vocabulary 32,000.

    \b
    Examples:
      prep bench throughput
      prep bench throughput shop --num-prompts 256 --max-num-seqs 64 --json
      prep bench throughput dummy-386m --num-prompts 32 --output-len 32-64
      prep bench throughput --against vllm --vllm-python ~/vllm/bin/python
      prep bench throughput --against prep --peer-args '{"attention_backend": "sdpa"}'
    """
    work: dict[str, Any] = {
        "num_prompts": num_prompts,
        "input_len": parse_lengths("--input-len", input_len),
        "output_len": parse_lengths("--output-len", output_len),
    }
    if peer.against is not None:
        from app.bench.against import compare_throughput

        num_tokens = work["input_len"].high + work["output_len"].high
        with measuring("5 min") as tell, comparing() as stack:
            pair = resolve_pair(stack, peer, model, engine, num_seqs=num_prompts, num_tokens=num_tokens)
            comparison = compare_throughput(tell, pair, rounds=rounds, **work)
        finish_comparison(
            comparison,
            json=json,
            next_command=f"prep bench latency --against {peer.against}",
            why="one request",
        )
        return
    from app.bench.throughput import measure

    with measuring("1 min") as tell:
        report = measure(tell, model, engine, **work)
    if not json:
        show_throughput(report)
    finish(report, as_json=json, next_command="prep bench latency", why="latency of a single user")


def show_throughput(report: ThroughputReport) -> None:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_row("  output tokens/s", f"[bold]{report.output_tokens_per_s:,.0f}[/]")
    table.add_row("  all tokens/s", f"{report.total_tokens_per_s:,.0f}")
    table.add_row("  requests/s", f"{report.requests_per_s:.2f}")
    table.add_row("  time in steps", f"{report.seconds:.2f} s")
    table.add_row("  steps", f"{report.steps}, of {report.mean_batch:.1f} requests on average")
    shares = {
        "  model and sampling": report.execute_share,
        "    matrix products alone": report.gemm_floor_share,
        "  schedule": report.schedule_share,
        "  update": report.update_share,
    }
    for name, share in shares.items():
        table.add_row(name, f"{share:.1%} of that time" if share else "not measured")
    where = f"{report.device}, {report.dtype}, {report.threads} threads"
    terminal.show(
        f"{report.model} on {where}: {report.finished} of {report.num_prompts} requests, {report.input_len} tokens in, "
        f"{report.output_len} out",
        table,
    )
    if report.step_shares:
        show_shares(report.step_shares)
