"""`prep bench speculation`: the speed-up by drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal
from app.cli.bench.common import Json, Model, finish, measuring
from app.cli.engine_options import engine_options

if TYPE_CHECKING:
    from app.bench.speculation import SpeculationReport


@engine_options
def speculation(
    model: Model = "shop",
    method: Annotated[
        str, typer.Option(help="Drafters to compare, comma-separated: ngram, draft_model, eagle.")
    ] = "ngram,draft_model,eagle",
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Drafts per request and step.")] = 4,
    batch_sizes: Annotated[
        str, typer.Option(help="Requests at once, comma-separated numbers.")
    ] = "1,4,16,64,128",
    workload: Annotated[
        str, typer.Option(help="Comma-separated: repetitive, json, free.")
    ] = "repetitive,json,free",
    requests: Annotated[int, typer.Option("--requests", min=1, help="Requests of each workload.")] = 64,
    json: Json = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Measure speed with and without drafts, acceptance, and the batch size from which drafts slow it down.

    \b
    An engine without drafts and one for each method run the same requests in
    turns, in one process. Steps that compute prompts do not count. With
    --speculative-config, its drafter replaces those of --method.

    \b
    Examples:
      prep bench speculation --method ngram --batch-sizes 1
      prep bench speculation --workload json --tokens 6
      prep bench speculation --speculative-config '{"method": "ngram", "num_speculative_tokens": 8}'
    """
    from app.bench.speculation import WORKLOADS, configs, measure
    from engine.config import SpeculativeConfig

    sizes = parse_counts("--batch-sizes", batch_sizes)
    workloads = workload.split(",")
    if unknown := [name for name in workloads if name not in WORKLOADS]:
        raise terminal.Problem(f"no workload {unknown[0]!r}", next_step=f"--workload {','.join(WORKLOADS)}")
    own = SpeculativeConfig.from_args(engine.pop("speculative_config"))
    drafters = configs(method.split(","), tokens) if own is None else {own.method: own}
    with measuring("10 min") as tell:
        report = measure(
            tell, model, engine, drafters, workloads=workloads, batch_sizes=sizes, requests=requests
        )
    if not json:
        show_speculation(report)
    finish(report, as_json=json, next_command="prep bench latency", why="time to the first token")


def parse_counts(flag: str, text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise terminal.Problem(
            f"{flag} must be whole numbers of at least 1, got {text!r}", next_step=f"{flag} 1,8,64"
        )
    return counts


def show_speculation(report: SpeculationReport) -> None:
    table = terminal.table(
        "workload", "drafts", "batch", "tok/s", "gain", "per step", "% kept at 1, 2", "same",
        left=("drafts",),
    )  # fmt: skip
    for result in report.results:
        table.add_row(
            result.workload,
            result.method.removesuffix("_model"),
            str(result.batch_size),
            f"{result.tokens_per_s:,.0f}",
            f"[bold]{result.speedup:.2f}x[/]",
            f"{result.tokens_per_step:.2f}",
            " ".join(f"{share:.0%}".rstrip("%") for share in result.acceptance_per_pos),
            "yes" if result.is_identical else "[red]no[/]",
        )
    terminal.show(f"{report.model}: up to {report.num_speculative_tokens} drafts per request and step", table)
    terminal.out().print(
        "[dim]gain: against no drafts. per step: tokens a request gets in a step. kept: drafts that the model "
        "confirms, by their place. same: tokens equal those without drafts[/]"
    )
    for workload, method in dict.fromkeys((result.workload, result.method) for result in report.results):
        size = report.break_even(workload, method)
        where = "at none of these batch sizes" if size is None else f"from {size} at once on"
        terminal.out().print(f"  {method}, {workload}: a loss {where}")
