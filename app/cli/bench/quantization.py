"""`prep bench quantization`: decode steps with fewer bits in the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal
from app.cli.bench.common import Json, Model, finish, measuring
from app.cli.engine_options import engine_options
from common.text import counted

if TYPE_CHECKING:
    from app.bench.quantization import QuantizationReport


@engine_options
def quantization(
    model: Model = "dummy-386m",
    schemes: Annotated[
        str, typer.Option(help="Comma-separated; the others are compared with the first.")
    ] = "float,int8,rtn,rtn+head",
    batch_size: Annotated[int, typer.Option(min=1, help="Requests that decode together.")] = 1,
    output_len: Annotated[int, typer.Option(min=2, help="Tokens of each request in a round.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each scheme, in turn.")] = 5,
    json: Json = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Measure decode steps with fewer bits in the weights, all schemes in turn in one process.

    \b
    float      as loaded
    int8       8-bit weights and activations (W8A8)
    rtn        4-bit weights, groups of 128
    rtn+head   the output head too
    fp8 and llm_int8 also run; on a CPU they save memory, not time. mxfp4 and
    nvfp4 are emulated and save neither; prep zoo formats shows their errors

    \b
    Examples:
      prep bench quantization
      prep bench quantization shop --batch-size 8 --json
    """
    from app.bench.quantization import measure
    from engine.config.model import ONLINE_SCHEMES

    names = tuple(name.strip() for name in schemes.split(",") if name.strip())
    unknown = [name for name in names if name.removesuffix("+head") not in (*ONLINE_SCHEMES, "float")]
    if unknown or not names or "float+head" in names or len(set(names)) < len(names):
        raise terminal.Problem(
            f"--schemes {schemes}: each once, from float, {', '.join(ONLINE_SCHEMES)}, with +head for the head too",
            next_step="--schemes float,int8,rtn+head",
        )
    with measuring("1 min") as tell:
        report = measure(
            tell, model, engine, schemes=names, batch_size=batch_size, output_len=output_len, rounds=rounds
        )
    if not json:
        show_quantization(report)
    finish(report, as_json=json, next_command="prep zoo quantize shop", why="a checkpoint with fewer bits")


def show_quantization(report: QuantizationReport) -> None:
    table = terminal.table("weights", "step p50", "p90", "faster", "MB", "bits/weight", "replayed")
    for row in report.schemes:
        times = (f"{row.decode_step.p50:.2f}", f"{row.decode_step.p90:.2f}")
        size = (f"{row.weight_megabytes:,.0f}", f"{row.bits_per_weight:.2f}")
        table.add_row(row.scheme, *times, f"{row.speedup:.2f} x", *size, "yes" if row.replays else "no")
    terminal.show(
        f"{report.model}: decode step of {counted(report.batch_size, 'request')}, "
        f"{counted(report.rounds, 'round')} (ms)",
        table,
    )
