"""`prep bench startup`: time of a fresh process up to its first tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import terminal
from app.cli.bench.against import Peer, comparing, resolve_pair
from app.cli.bench.common import Json, Model, finish, finish_comparison, measuring
from app.cli.option_groups import option_groups

if TYPE_CHECKING:
    from app.bench.startup import StartupReport


@option_groups
def startup(
    model: Model = "shop",
    runs: Annotated[int, typer.Option(min=1, help="Processes to time, after one uncounted.")] = 3,
    peer: Peer = Peer(),  # noqa: B008 - frozen
    json: Json = False,
) -> None:
    """Measure the start of a process up to its first tokens, phase by phase.

    \b
    With --against: to the first token of a text prompt, in both engines in turn.

    \b
    Examples:
      prep bench startup --runs 5
      prep bench startup --against vllm --vllm-python ~/vllm/bin/python
    """
    if peer.against is not None:
        from app.bench.against import compare_startup

        with measuring("5 min") as tell, comparing() as stack:
            pair = resolve_pair(stack, peer, model, {}, num_seqs=1, num_tokens=1, with_tokenizer=True)
            comparison = compare_startup(tell, pair, runs=runs)
        finish_comparison(
            comparison, json=json, next_command="prep bench throughput", why="what it does once it runs"
        )
        return
    from app.bench.startup import measure

    with measuring() as tell:
        report = measure(tell, model, runs=runs)
    if not json:
        show_startup(report)
    finish(report, as_json=json, next_command="prep bench throughput", why="what it does once it runs")


def show_startup(report: StartupReport) -> None:
    table = terminal.table("phase", "seconds")
    for name, seconds in report.phases.items():
        table.add_row(name, f"{seconds:.2f}")
    table.add_row("[bold]whole process[/]", f"[bold]{report.total:.2f}[/]")
    terminal.show(f"{report.model}: median of {len(report.runs)} fresh processes", table)
