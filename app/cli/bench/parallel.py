"""`prep bench parallel`: one process against several ranks."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.cli import terminal
from app.cli.bench.common import Json, Model, finish, measuring
from app.cli.engine_options import engine_options
from common.text import counted


@engine_options
def parallel(
    model: Model = "shop",
    requests: Annotated[int, typer.Option(min=1, help="Requests that run at once.")] = 8,
    output_len: Annotated[int, typer.Option(min=2, help="Tokens generated for each.")] = 32,
    json: Json = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Compare one process with several ranks: tokens, collectives, bytes, bubble, time on real links.

    Without a split, --tensor-parallel-size 2 is used.

    \b
    Examples:
      prep bench parallel shop --tensor-parallel-size 2
      prep bench parallel shop --pipeline-parallel-size 2 --requests 1
    """
    from app.bench.parallel import measure

    if engine["tensor_parallel_size"] * engine["pipeline_parallel_size"] == 1:
        terminal.err().print("[dim]no split given: --tensor-parallel-size 2 is used[/]")
        engine["tensor_parallel_size"] = 2
    with measuring() as tell:
        report = measure(tell, model, engine, num_requests=requests, output_len=output_len)
    if not json:
        table = terminal.table("what", "figure")
        table.add_row("same tokens", "yes" if report.same_tokens else "NO")
        table.add_row("steps", str(report.num_steps))
        table.add_row("collectives per step (answering rank)", f"{report.collectives_per_step:.1f}")
        table.add_row("bytes per token (answering rank)", f"{report.bytes_per_token:,.0f}")
        table.add_row("bubble", f"{report.bubble:.0%}")
        table.add_row(
            "time, one process / split", f"{report.seconds_alone:.2f} / {report.seconds_split:.2f} s"
        )
        for name, ms in report.decode_step_ms_by_link.items():
            table.add_row(f"a decode step's messages over {name}", f"{ms:.3f} ms")
        terminal.show(f"{model}: {counted(requests, 'request')}", table)
    finish(report, as_json=json, next_command="prep sim run --help", why="the same on GPUs you do not have")
    if not report.same_tokens:
        raise typer.Exit(1)
