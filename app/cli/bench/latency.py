"""`prep bench latency`: time to first token and between tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal
from app.cli.bench.against import Peer, comparing, resolve_pair
from app.cli.bench.common import Json, Model, finish, finish_comparison, measuring
from app.cli.engine_options import engine_options
from app.cli.option_groups import option_groups
from common.text import counted

if TYPE_CHECKING:
    from app.bench.latency import LatencyReport


@engine_options
@option_groups
def latency(
    model: Model = "shop",
    batch_sizes: Annotated[
        str | None,
        typer.Option(help="Numbers of concurrent requests, comma-separated; 1,4,16,32 by default."),
    ] = None,
    input_len: Annotated[
        int | None, typer.Option(min=1, help="Prompt tokens of each: 128, or 64 with --against.")
    ] = None,
    output_len: Annotated[
        int | None, typer.Option(min=2, help="Tokens generated for each; 32, or 128 with --against.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Repetitions of each batch size: 3, or 9 with --against.")
    ] = None,
    peer: Peer = Peer(),  # noqa: B008 - frozen
    json: Json = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Measure the time to the first token (TTFT) and between tokens (ITL), for requests that start together.

    \b
    With --against: tokens per second of a single request, in both engines
    in turn.

    \b
    Examples:
      prep bench latency shop --batch-sizes 1,8,64
      prep bench latency --against vllm --vllm-python ~/vllm/bin/python
    """
    if peer.against is not None:
        if batch_sizes not in (None, "1"):
            raise terminal.Problem("--against measures a single request: leave --batch-sizes out")
        from app.bench.against import compare_single

        input_len, output_len = input_len or 64, output_len or 128
        with measuring("5 min") as tell, comparing() as stack:
            pair = resolve_pair(stack, peer, model, engine, num_seqs=1, num_tokens=input_len + output_len)
            comparison = compare_single(
                tell, pair, input_len=input_len, output_len=output_len, rounds=rounds or 9
            )
        finish_comparison(
            comparison,
            json=json,
            next_command=f"prep bench startup --against {peer.against}",
            why="to the first token",
        )
        return
    from app.bench.latency import measure

    try:
        sizes = tuple(int(part) for part in (batch_sizes or "1,4,16,32").split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise terminal.Problem(
            f"--batch-sizes must be whole numbers of at least 1, got {batch_sizes!r}",
            next_step="--batch-sizes 1,8,64",
        )
    with measuring() as tell:
        report = measure(
            tell,
            model,
            engine,
            batch_sizes=sizes,
            input_len=input_len or 128,
            output_len=output_len or 32,
            rounds=rounds or 3,
        )
    if not json:
        show_latency(report)
    finish(report, as_json=json, next_command="prep bench scheduler", why="time of a step without a model")


def show_latency(report: LatencyReport) -> None:
    table = terminal.table("at once", "TTFT p50", "p90", "p99", "ITL p50", "p90", "p99", "tokens/s")
    for row in report.batches:
        times = (row.ttft.p50, row.ttft.p90, row.ttft.p99, row.itl.p50, row.itl.p90, row.itl.p99)
        table.add_row(str(row.batch_size), *(f"{ms:.1f}" for ms in times), f"{row.output_tokens_per_s:,.0f}")
    terminal.show(
        f"{report.model}: {report.input_len} tokens in, {report.output_len} out, "
        f"{counted(report.rounds, 'round')} (ms)",
        table,
    )
