"""`prep bench grammar`: the cost of structured outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import terminal
from app.cli.bench.common import Json, Model, finish, measuring

if TYPE_CHECKING:
    from app.bench.grammar import GrammarReport


def grammar(
    model: Model = "shop",
    vocab_size: Annotated[
        int | None, typer.Option(min=1, help="Enlarge the vocabulary to this many tokens; costs only.")
    ] = None,
    outputs: Annotated[int, typer.Option(min=0, help="Outputs to check per variant; 0: costs only.")] = 40,
    temperature: Annotated[float, typer.Option(min=0, help="Temperature of the checked outputs.")] = 1.0,
    json: Json = False,
) -> None:
    """Measure structured outputs: compile time, time per mask, and the share of valid outputs.

    \b
    Examples:
      prep bench grammar
      prep bench grammar --temperature 1.5 --outputs 100
      prep bench grammar --vocab-size 128000 --json
    """
    from app.bench.grammar import measure

    with measuring() as tell:
        report = measure(tell, model, vocab_size=vocab_size, outputs=outputs, temperature=temperature)
    if not json:
        show_grammar(report)
    finish(
        report,
        as_json=json,
        next_command="prep generate --help",
        why="try one",
    )


def show_grammar(report: GrammarReport) -> None:
    table = terminal.table(
        "grammar", "backend", "compile ms", "us/mask new", "known", "masks", left=("backend",)
    )
    for cost in report.costs:
        times = (f"{cost.compile_ms:.1f}", f"{cost.new_mask_us:,.1f}", f"{cost.known_mask_us:,.1f}")
        table.add_row(cost.grammar, cost.backend, *times, str(cost.num_masks))
    terminal.show(f"{report.model}, {report.vocab_size:,} tokens: cost of a grammar", table)
    if report.validity:
        table = terminal.table(f"temperature {report.temperature:g}", "valid", "cut off")
        for row in report.validity:
            table.add_row(row.name, f"{row.valid:.0%}", f"{row.cut_off:.0%}")
        terminal.show("valid outputs, and questions answered with a tool call", table)
