"""`prep kernels list`: operations x backends."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.cli import terminal
from app.cli.kernels.names import How, how


def list_(json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False) -> None:
    """Operations x backends: what exists, what runs here, and which one is chosen.

    The choice goes by the device of the tensors. An implementation that does not take a dtype or a shape
    leaves it to the next one. PREP_KERNELS overrides it by name.

    \b
    Examples:
      prep kernels list
      PREP_KERNELS=paged_attention=reference prep kernels list
    """
    with terminal.loading("the kernels"):
        from kernels import registry

        ways = {backend: how(backend) for backend in registry.BACKENDS}
        rows = [_row(op, ways) for op in registry.OPS]
    if json:
        told = {
            name: {"state": way.state, "text": way.text, "device": way.device} for name, way in ways.items()
        }
        terminal.print_json({"backends": told, "operations": rows})
        return
    _show(rows, ways)
    terminal.next_command("prep kernels check", "compare them with the reference")


def _row(op: str, ways: dict[str, How]) -> dict[str, Any]:
    from kernels import registry

    return {
        "op": op,
        "implementations": {each.backend: list(each.sources) for each in registry.implementations(op)},
        "cpu": registry.preferred(op, "cpu"),
        "gpu": _chosen_on_gpu(op, ways),
    }


def _chosen_on_gpu(op: str, ways: dict[str, How]) -> str:
    """Without a GPU: what would be chosen on a machine that has one, and the packages."""
    from kernels import registry

    if ways["reference"].device == "cuda":
        return registry.preferred(op, "cuda")
    there = {each.backend for each in registry.implementations(op)}
    return next(backend for backend in registry.PREFERENCE["cuda"] if backend in there)


def _show(rows: list[dict[str, Any]], ways: dict[str, How]) -> None:
    signs = {"native": terminal.mark(True), "slow": "[yellow]slow[/]", "not": terminal.mark(False)}
    table = terminal.table("operation", *ways, "on CPU", "on GPU", left=(*ways, "on CPU", "on GPU"))
    table.columns[0].no_wrap = True
    for row in rows:
        cells = [signs[way.state] if name in row["implementations"] else "" for name, way in ways.items()]
        table.add_row(row["op"], *cells, row["cpu"], row["gpu"])
    console = terminal.out()
    console.print(table)
    for name, way in ways.items():
        console.print(f"{name:<10} {signs[way.state]}  [dim]{terminal.literal(way.text)}[/]", soft_wrap=True)
    console.print(
        f"[dim]{terminal.mark(True)} runs here   [yellow]slow[/] runs here, for checking only   "
        f"{terminal.mark(False)} does not run here   blank: not written in this form[/]",
        soft_wrap=True,
    )
