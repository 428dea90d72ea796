"""`prep bench lora`: the cost of adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal
from app.cli.bench.common import Json, Model, finish, measuring
from app.cli.engine_options import engine_options
from common.text import counted

if TYPE_CHECKING:
    from app.bench.lora import LoRAReport


@engine_options
def lora(
    model: Model = "shop",
    adapters: Annotated[
        int, typer.Option("--adapters", min=2, help="Maximum number of adapters in one batch.")
    ] = 4,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests that decode together.")] = 8,
    output_len: Annotated[int, typer.Option(min=2, help="Tokens of each request in a round.")] = 48,
    rank: Annotated[int, typer.Option(min=1, help="Rank of the adapters and of their slots.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each variant, in turn.")] = 7,
    json: Json = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Measure decoding with no, one and several adapters in a batch, in turn in one engine.

    \b
    Examples:
      prep bench lora
      prep bench lora dummy-386m --batch-size 1 --rank 8
      prep bench lora --lora-dtype bfloat16   half the bytes for each adapter
    """
    from app.bench.lora import measure

    with measuring() as tell:
        report = measure(
            tell,
            model,
            engine,
            counts=[0, 1, adapters],
            batch_size=batch_size,
            output_len=output_len,
            rank=rank,
            rounds=rounds,
        )
    if not json:
        show_lora(report)
    finish(
        report,
        as_json=json,
        next_command="prep zoo eval shop-lora-support",
        why="measure what an adapter adds",
    )


def show_lora(report: LoRAReport) -> None:
    table = terminal.table("adapters", "tok/s", "of none")
    for row in report.variants:
        table.add_row(str(row.num_adapters), f"{row.tokens_per_s:,.0f}", f"{row.relative:.0%}")
    terminal.show(
        f"{report.model}: batch of {counted(report.batch_size, 'request')}, adapters of rank {report.rank} "
        f"({report.adapter_bytes / 1e6:.1f} MB each, loaded in {report.load_ms:.0f} ms)",
        table,
    )
