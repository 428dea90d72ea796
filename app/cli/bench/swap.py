"""`prep bench swap`: swap against recompute, and the cost of a prefix on each tier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal
from app.cli.bench.common import Json, Model, finish, measuring
from app.cli.engine_options import engine_options
from common.text import counted

if TYPE_CHECKING:
    from app.bench.tiers import TierReport


@engine_options
def swap(
    model: Model = "shop",
    lengths: Annotated[
        str, typer.Option(help="Prompt lengths in tokens, comma-separated.")
    ] = "64,128,256,512,1000",
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions of each length.")] = 5,
    json: Json = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Measure swap against recompute, and a cached prefix on the device, the host and a disk.

    \b
    Examples:
      prep bench swap shop
      prep bench swap shop --lengths 128,512,1000 --rounds 9 --json
    """
    from app.bench.tiers import measure

    with measuring() as tell:
        report = measure(tell, model, engine, lengths=_prompt_lengths(lengths), rounds=rounds)
    if not json:
        show_tiers(report)
    finish(
        report,
        as_json=json,
        next_command="prep generate shop --chat -p 'What do you recommend?' --preemption-mode swap",
        why="use it",
    )


def _prompt_lengths(text: str) -> list[int]:
    try:
        return [int(length) for length in text.split(",")]
    except ValueError:
        raise terminal.Problem(
            f"--lengths: {text!r} is not a list of numbers", next_step="--lengths 128,512"
        ) from None


def show_tiers(report: TierReport) -> None:
    table = terminal.table("prompt", "computed", "device", "host", "disk", "swap out", "swap in", "recompute")
    for row in report.rows:
        times = (*row.first_token.values(), row.copy_out, row.copy_in, row.recompute)
        table.add_row(str(row.prompt_len), *(f"{ms:.2f}" for ms in times))
    terminal.show(f"{report.model}: first token by where the prompt's KV was, and one preemption (ms)", table)
    verdict = (
        "never on this machine"
        if report.break_even is None
        else f"from {report.break_even} tokens on (measured)"
    )
    terminal.out().print(
        f"Per 1,000 tokens: swap {report.swap_ms_per_1k:.2f} ms, recompute {report.recompute_ms_per_1k:.2f} ms. "
        f"Swap is cheaper {verdict}."
    )
    if report.misses:
        terminal.err().print(
            f"[yellow]{counted(report.misses, 'run')} found the prefix in another tier and did not count[/]"
        )
