"""`prep capacity`: a service from a plan: formulas, simulated fleet, cost, regions, commands."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal
from app.cli.options import JsonOption, argument, make_folder_of, option
from prep_common.names import unknown_name
from prep_common.paths import write_atomically
from prep_common.text import counted

if TYPE_CHECKING:
    from app.debugger.capacity.check import Gap
    from app.debugger.capacity.figure import Capacity, Figure
    from engine.sim.fleet import FleetReport
    from engine.sim.plan.money import Bill
    from engine.sim.plan.plan_file import Plan

EXAMPLES = Path(__file__).resolve().parents[2] / "engine/sim/plan/examples"
SHEET = (
    "peak", "resident", "batch_limit", "most", "replicas", "ttft", "tpot", "tokens_in_limit", "total", "normal_use",
    "ttft_failed", "overload", "cold_start", "wake", "hourly", "monthly", "scaled", "managed", "per_mtok_all",
    "break_even",
)  # fmt: skip
"""Figures of the short sheet, in this order; `--formulas` shows all."""
CHART_WIDTH = 40


def capacity(
    plan: Annotated[str, argument("A file, or one of the examples.", metavar="PLAN")],
    formulas: Annotated[bool, option("Show every figure with its formula.", "--formulas")] = False,
    why: Annotated[str | None, option("Explain one figure and those in its formula.", metavar="NAME")] = None,
    serve_command: Annotated[
        bool, option("Print checked vllm serve and prep serve commands.", "--serve-command")
    ] = False,
    simulate: Annotated[bool, option("Check by simulation.", "--simulate/--no-simulate")] = True,
    seed: Annotated[int, option("Seed of the simulation.")] = 0,
    svg: Annotated[Path | None, option("Write the break-even chart to this file.", metavar="FILE")] = None,
    json: JsonOption = False,
) -> None:
    """Size a service from a plan: GPUs, latency, cost, break-even, failures; then simulate it.

    Formulas first, then a slice of up to 8 replicas through the real scheduler, then the differences and their
    reasons. Exit code 1 if the plan misses a limit. Examples: ten_thousand_rps, chat_startup, rag, code_completion,
    two_regions; each is a file to copy.

    \b
    Examples:
      prep capacity ten_thousand_rps
      prep capacity two_regions --why overload
      prep capacity rag --serve-command
    """
    from app.debugger.capacity.plan_figures import work_out_plan

    make_folder_of(svg)
    checked = read_plan(plan)
    sheet, bill = work_out_plan(checked)
    if sheet.problem:
        raise terminal.Problem(sheet.problem, f"change hardware in {plan}")
    if serve_command:
        return show_commands(sheet)
    if why is not None:
        return explain(sheet, why, json)
    if formulas:
        return show_all(sheet, json)
    report = _simulated(sheet, checked, seed) if simulate else None
    from app.debugger.capacity.plan_fleet import gaps

    rows = gaps(sheet, report, checked.router) if report else []
    if svg is not None and bill is not None:
        write_svg(svg, bill, sheet)
    if json:
        terminal.print_json(_as_json(sheet, bill, rows))
    else:
        show_sheet(checked, sheet)
        if report is not None:
            show_gaps(rows, len(report.replicas), checked.router)
        if bill is not None:
            show_bill(bill, sheet)
        for verdict in sheet.verdicts:
            terminal.say(f"- {verdict}")
        terminal.next_command(f"prep capacity {plan} --why total", "the formula of a figure, and those in it")
    if misses(sheet):
        raise typer.Exit(terminal.CHECKS_FAILED)


def read_plan(name: str) -> Plan:
    """Read a plan file or an example. Raises Problem with the line of each fault."""
    from engine.config.settings_file import read_yaml
    from engine.sim.plan.plan_file import Plan

    examples = {path.stem: path for path in sorted(EXAMPLES.glob("*.yaml"))}
    path = Path(name)
    if not path.exists():
        if name not in examples:
            known = f"examples: {', '.join(examples)}"
            raise terminal.Problem(unknown_name("no file and no example is called", name, examples, known))
        path = examples[name]
    expected = "expected a plan with model, hardware and traffic; copy one of engine/sim/plan/examples"
    return read_yaml(path, Plan, expected, environment=False)  # $0.60/Mtok is a price


def misses(sheet: Capacity) -> bool:
    """Whether a limit is missed; the verdicts say which."""
    scenario, state = sheet.scenario, sheet.state
    assert state is not None
    tokens = sheet.figures.get("tokens_in_limit")
    return (
        1000 * state.ttft > scenario.ttft_ms
        or 1000 * state.step > scenario.tpot_ms
        or (tokens is not None and tokens.value < scenario.output)
    )


def _simulated(sheet: Capacity, plan: Plan, seed: int) -> FleetReport:
    from app.debugger.capacity.check import sensible_count
    from app.debugger.capacity.plan_fleet import MOST_REQUESTS, simulate_slice, size_of_slice

    total = min(MOST_REQUESTS, sensible_count(sheet) * size_of_slice(sheet))
    with terminal.progress(total, "requests") as advance:
        return simulate_slice(sheet, plan.router, seed, lambda done, _: advance(done=done))


def show_sheet(plan: Plan, sheet: Capacity) -> None:
    """Print the main figures with their substituted formulas."""
    regional = [name for name in sheet.figures if name.startswith("ttft_") and name != "ttft_failed"]
    names = [*SHEET, *regional]
    rows = [
        (figure.name, figure.shown(), f"{figure.title} = {figure.filled}")
        for name in names
        if (figure := sheet.figures.get(name)) is not None
    ]
    scenario = sheet.scenario
    tp = f" x {scenario.tp}" if scenario.tp > 1 else ""
    title = f"{plan.name}: {scenario.model} in {scenario.dtype} on {scenario.gpu}{tp}"
    terminal.show(title, terminal.table("figure", "", "why", left=("why",), rows=rows))


def show_gaps(rows: list[Gap], replicas: int, router: str) -> None:
    """Print formula, simulation and the reason for each difference."""
    from app.debugger.capacity.figure import show

    table = terminal.table("formula against simulation", "formula", "simulated", "why", left=("why",))
    for row in rows:
        table.add_row(row.title, show(row.formula, row.unit), show(row.run, row.unit), row.why)
    terminal.show(f"{counted(replicas, 'replica')} of the fleet at the peak, {router}", table)


def volumes(bill: Bill, sheet: Capacity, count: int) -> list[float]:
    """Return requests per month for a chart that shows the plan and the break-even."""
    planned = sheet.value("managed") / bill.managed_per_request
    most = 1.25 * max(planned, bill.break_even() or 0.0)
    return [most * number / (count - 1) for number in range(count)]


def show_bill(bill: Bill, sheet: Capacity) -> None:
    """Print the costs by volume as bars."""
    from app.debugger.capacity.figure import money

    points = volumes(bill, sheet, 9)
    top = max(max(bill.own(point), bill.managed(point)) for point in points)
    currency = sheet.scenario.currency
    terminal.say("[bold]cost per month by volume[/]   o own GPUs   m managed   * both")
    for point in points:
        own, managed = (round(CHART_WIDTH * cost / top) for cost in (bill.own(point), bill.managed(point)))
        line = [" "] * (CHART_WIDTH + 1)
        line[own], line[managed] = "o", "m"
        if own == managed:
            line[own] = "*"
        cheaper = "own" if bill.own(point) <= bill.managed(point) else "managed"
        terminal.say(f"{point / 1e6:>10,.2f} M req |{''.join(line)}| {cheaper} is cheaper")
    terminal.say(f"{'':>17}0{money(top, currency):>{CHART_WIDTH}}")


def write_svg(path: Path, bill: Bill, sheet: Capacity) -> None:
    """Draw own and managed costs over the volume, with the break-even."""
    from prep_common.line_chart import Line, draw

    points = volumes(bill, sheet, 200)
    lines = [
        Line("own GPUs", [(point / 1e6, bill.own(point)) for point in points]),
        Line("managed", [(point / 1e6, bill.managed(point)) for point in points]),
    ]
    even = bill.break_even()
    marks = [] if even is None else [(even / 1e6, "break-even")]
    text = draw(lines, "million requests per month", f"{sheet.scenario.currency} per month", marks)
    write_atomically(path, text)


def show_commands(sheet: Capacity) -> None:
    """Print both commands; ours goes through its own option parser, vLLM's through the list of its options."""
    from app.cli.serve import serve
    from engine.sim.plan.serve_command import arguments_of, note_of, vllm_options

    words = arguments_of(sheet.scenario.deployment)
    command = typer.main.get_command(terminal.command_app(serve))
    with command.make_context("prep serve", list(words), resilient_parsing=False):
        pass  # raises a usage error for an unknown option or a bad value
    terminal.say(terminal.literal(shlex.join(["vllm", "serve", *words])), whole=True)
    terminal.say(terminal.literal(shlex.join(["prep", "serve", *words])), whole=True)
    checked = f"options checked against vLLM {vllm_options()[0]} and prep serve"
    terminal.note(
        f"[dim]{checked}; {sheet.value('total'):,.0f} of them behind a router: prep gateway --help[/]"
    )
    if note := note_of(sheet.scenario.deployment):
        terminal.note(f"[yellow]{note}[/]")


def explain(sheet: Capacity, name: str, json: bool) -> None:
    """Print a figure and, indented, those in its formula."""
    if name not in sheet.figures:
        raise terminal.Problem(
            unknown_name("there is no figure", name, sheet.figures), "--formulas   lists them"
        )
    if json:
        return terminal.print_json(
            {ancestor: asdict(sheet.figures[ancestor]) for ancestor in _ancestry(sheet, name)}
        )
    shown: set[str] = set()

    def tell(key: str, depth: int) -> None:
        figure, indent = sheet.figures[key], "  " * depth
        terminal.say(f"{indent}[bold]{terminal.literal(figure.title)}[/] ({key}): [bold]{figure.shown()}[/]")
        if key in shown:
            return terminal.say(f"{indent}  as above")
        shown.add(key)
        for line in _lines(figure):
            terminal.say(f"{indent}  {terminal.literal(line)}")
        for parent in figure.parents:
            tell(parent, depth + 1)

    tell(name, 0)


def _ancestry(sheet: Capacity, name: str) -> list[str]:
    order = [name]
    for ancestor in order:
        order += [parent for parent in sheet.figures[ancestor].parents if parent not in order]
    return order


def _lines(figure: Figure) -> list[str]:
    parts = {
        "formula": figure.formula,
        "here": figure.filled,
        "leaves out": figure.leaves_out,
        "source": figure.source,
    }
    return [f"{name:<10} {text}" for name, text in parts.items() if text]


def show_all(sheet: Capacity, json: bool) -> None:
    if json:
        return terminal.print_json({name: asdict(figure) for name, figure in sheet.figures.items()})
    for figure in sheet.figures.values():
        terminal.say(
            f"[bold]{terminal.literal(figure.title)}[/] ({figure.name}): [bold]{figure.shown()}[/]\n"
            + "\n".join(f"  {terminal.literal(line)}" for line in _lines(figure))
        )


def _as_json(sheet: Capacity, bill: Bill | None, rows: list[Gap]) -> dict[str, Any]:
    chart = [] if bill is None else volumes(bill, sheet, 50)
    return {
        "figures": {name: terminal.pick(f, "value unit formula filled") for name, f in sheet.figures.items()},
        "verdicts": sheet.verdicts,
        "meets_limits": not misses(sheet),
        "gaps": [asdict(row) for row in rows],
        "break_even_chart": [
            {"requests_per_month": volume, "own": bill.own(volume), "managed": bill.managed(volume)}
            for volume in chart
            if bill
        ],
    }
