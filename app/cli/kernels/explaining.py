"""`prep kernels explain`: an operation's contract, its sources side by side, and what the compilers made of them."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from app.cli import terminal
from app.cli.kernels.names import backends, operation
from app.cli.options import JsonOption, argument, option
from prep_common.text import counted

if TYPE_CHECKING:
    from kernels.compile_report import KernelReport
    from kernels.registry import Implementation

COLUMN_WIDTH = 84
"""Width in columns of one source beside another."""
LANGUAGES = {".py": "python", ".cpp": "cpp", ".cu": "cuda", ".cuh": "cuda"}
GPU_BACKENDS = ("triton", "cuda")


@dataclass(frozen=True)
class Focus:
    """The part of an operation that a name stands for: `paged_decode` is one half of paged attention."""

    without_files: tuple[str, ...] = ()
    kernels: str = ""
    """Text that the names of its kernels contain."""


FOCUS = {
    "paged_decode": Focus(("unified_attention",), "decode"),
    "prefill": Focus(
        ("split_kv_decode", "paged_decode", "paged_problem", "paged_fma", "paged_mma", "mma"), "unified"
    ),
}


def explain(
    op: Annotated[str, argument("An operation, or a common name: rope, w4a16, paged_decode.")],
    source: Annotated[str, option("reference, cpu, triton, cuda, all, or none.")] = "all",
    arch: Annotated[
        list[str] | None,
        option("80 (A100), 90 (H100, H200), all (default), or none, which wins. Repeatable."),
    ] = None,
    kernel: Annotated[str, option("Compile only kernels whose name or case holds this text.")] = "",
    every: Annotated[bool, option("Compile every case: types, head sizes.", "--all")] = False,
    ptx: Annotated[bool, option("Print PTX, and nothing else.", "--ptx")] = False,
    json: JsonOption = False,
) -> None:
    """Read an operation: contract, sources, and registers, shared memory, spills and occupancy of its GPU kernels.

    The kernels are compiled here, without a GPU; Triton keeps what it compiled, so the second time is fast.
    In a wide terminal sources stand side by side; in a pipe they are plain text.

    \b
    Examples:
      prep kernels explain paged_decode
      prep kernels explain rms_norm --source triton --arch 90
      prep kernels explain rms_norm --source none --all
      prep kernels explain paged_decode --ptx --arch 90 --kernel bf16 | less
    """
    with terminal.loading("the kernels"):
        from kernels import ops

        name = operation(op)
        focus = FOCUS.get(op.strip().lower().replace("-", "_"), Focus())
        implementations = _chosen(name, source)
        arches = _arches(arch or ["all"])
    reports = _all_compiled(name, focus, arches, kernel, every)
    if kernel and arches and not reports:
        raise terminal.Problem(
            f"no kernel of {name} has {kernel!r} in its name", f"prep kernels explain {name}"
        )
    if ptx:
        return _print_ptx(name, reports, kernel)
    contract = inspect.getdoc(getattr(ops, name)) or ""
    if json:
        return _print_json(name, contract, implementations, focus, reports)
    console = terminal.out()
    with _pager(console):
        _show_overview(console, name, contract, implementations, focus)
        if arches:
            _show_compiled(console, name, reports)
        _show_sources(console, implementations, focus)
    terminal.next_command(f"prep kernels check {name}", "check it after a change")


def _chosen(op: str, source: str) -> list[Implementation]:
    from kernels import registry

    if source == "none":
        return []
    if source == "all":
        return registry.implementations(op)
    wanted = backends(source)
    implementations = [
        implementation for implementation in registry.implementations(op) if implementation.backend in wanted
    ]
    if not implementations:
        known = ", ".join(implementation.backend for implementation in registry.implementations(op))
        raise terminal.Problem(f"{op} is not written in {source}; implementations: {known}")
    return implementations


def _arches(asked: list[str]) -> tuple[int, ...]:
    """Return the architectures asked for. Every word is checked, those beside "none" as well."""
    from kernels.compile_report import ARCHITECTURES

    choices = {"all": tuple(ARCHITECTURES), "none": ()} | {str(number): (number,) for number in ARCHITECTURES}
    words = [text.lower().removeprefix("sm_") for text in asked]
    for text, word in zip(asked, words, strict=True):
        if word not in choices:
            known = ", ".join(f"{number} ({arch.name})" for number, arch in ARCHITECTURES.items())
            raise terminal.Problem(f"no figures for the architecture {text!r}; there are: {known}, all, none")
    if "none" in words:
        return ()
    return tuple(sorted({arch for word in words for arch in choices[word]}))


# --- sources ---------------------------------------------------------------------------------------------------


def _files(implementation: Implementation, focus: Focus) -> list[Path]:
    from kernels import registry

    folder = Path(registry.__file__).parent
    paths = [folder / source for source in implementation.sources]
    return [path for path in paths if not any(path.stem.startswith(file) for file in focus.without_files)]


def _pager(console: Console) -> AbstractContextManager[object]:
    """Page through $PAGER or less on a terminal, in colour; in a pipe do nothing."""
    if not terminal.is_live(console):
        return nullcontext()
    os.environ.setdefault("LESS", "FRX")  # end if all fits on the screen, keep colours, leave the text there
    return console.pager(styles=True)


def _show_overview(
    console: Console, op: str, contract: str, implementations: Sequence[Implementation], focus: Focus
) -> None:
    console.print(f"[bold]{op}[/]\n", soft_wrap=True)
    # Prose is wrapped anew to the width of the console; an indented paragraph is a table.
    parts = [
        paragraph if paragraph.startswith(" ") else " ".join(paragraph.split())
        for paragraph in contract.split("\n\n")
    ]
    console.print("\n\n".join(parts), markup=False)
    if implementations:
        table = terminal.table("form", "file", "lines", left=("file",))
        for implementation in implementations:
            for path in _files(implementation, focus):
                table.add_row(implementation.backend, _shown(path), f"{len(path.read_text().splitlines()):,}")
        console.print(table)


def _show_sources(console: Console, implementations: Sequence[Implementation], focus: Focus) -> None:
    if not console.is_terminal:
        for implementation in implementations:
            for path in _files(implementation, focus):
                print(f"\n==== {implementation.backend}: {_shown(path)}\n")
                print(path.read_text().rstrip())
        return
    columns = max(1, min(len(implementations), console.width // COLUMN_WIDTH))
    for start in range(0, len(implementations), columns):
        beside = implementations[start : start + columns]
        grid = Table.grid(padding=(0, 2), expand=True)
        for _ in beside:
            grid.add_column(ratio=1)
        grid.add_row(*(_listing(implementation, focus) for implementation in beside))
        console.print(grid)


def _listing(implementation: Implementation, focus: Focus) -> RenderableType:
    parts: list[RenderableType] = []
    for path in _files(implementation, focus):
        parts.append(Text(f"\n{implementation.backend}: {_shown(path)}\n", style="bold cyan"))
        language = LANGUAGES.get(path.suffix, "text")
        source = path.read_text().rstrip()
        look: dict[str, Any] = {"theme": "ansi_dark", "background_color": "default"}
        parts.append(Syntax(source, language, word_wrap=True, line_numbers=True, **look))
    return Group(*parts)


def _shown(path: Path) -> str:
    from kernels import registry

    return path.relative_to(Path(registry.__file__).parent.parent).as_posix()


# --- compiled --------------------------------------------------------------------------------------------------


def compiled(op: str, focus: Focus, arch: int, wanted: str, every: bool) -> Iterator[KernelReport]:
    """The GPU kernels of the operation, each as soon as it is compiled.

    A kernel is compiled for several cases (types, sizes): the first one only, unless `every` or `wanted` ask for
    more. Backends that cannot compile here are skipped.
    """
    from kernels import registry
    from kernels.compile_report import cannot_compile, gpu_kernels

    seen: set[str] = set()
    for implementation in registry.implementations(op):
        if implementation.backend in GPU_BACKENDS and cannot_compile(implementation.backend) is None:
            for name, compile_it in gpu_kernels(implementation, arch):
                function = name.partition("[")[0]
                if focus.kernels in name and wanted in name and (every or wanted or function not in seen):
                    seen.add(function)
                    yield compile_it()


def _missing(op: str) -> list[str]:
    from kernels import registry
    from kernels.compile_report import cannot_compile

    names = [
        implementation.backend
        for implementation in registry.implementations(op)
        if implementation.backend in GPU_BACKENDS
    ]
    return [f"{name} kernels are not compiled: {why}" for name in names if (why := cannot_compile(name))]


def _all_compiled(
    op: str, focus: Focus, arches: Sequence[int], wanted: str, every: bool
) -> list[KernelReport]:
    reports: list[KernelReport] = []
    with terminal.status(f"compiling {op}") as tell, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION")  # Triton 3.9: what 3.10 will do
        for arch in arches:
            for report in compiled(op, focus, arch, wanted, every):
                reports.append(report)
                tell(f"compiling {op}: {counted(len(reports), 'kernel')}")
    return reports


def _show_compiled(console: Console, op: str, reports: Sequence[KernelReport]) -> None:
    for reason in _missing(op):
        console.print(f"{terminal.mark(None)} {terminal.literal(reason)}", soft_wrap=True)
    for file in dict.fromkeys(report.file for report in reports):
        console.print(f"\n[bold]kernels/{terminal.literal(file)}[/]", soft_wrap=True)
        of_file = [report for report in reports if report.file == file]
        for name in dict.fromkeys(report.name for report in of_file):
            console.print(f"  {terminal.literal(name)}", soft_wrap=True)
            for report in of_file:
                if report.name == name:
                    console.print(Padding(used(report), (0, 0, 0, 4), expand=False))
    if reports:
        console.print(
            "\n[dim]registers: per thread; shared memory: per block; spilled: bytes per thread that do not fit into "
            "registers and go to local memory; warps: resident per SM, and the resource that runs out first[/]\n"
        )


def used(report: KernelReport) -> str:
    occupancy = report.occupancy
    spills = report.spill_store_bytes + report.spill_load_bytes
    told = f"[bold red]{spills} B spilled[/]" if spills else "no spills"
    return (
        f"sm_{report.arch}  {report.registers:3} registers, {report.shared_bytes:6,} B shared, {told}, "
        f"{report.threads} threads; {occupancy.warps} warps ({occupancy.ratio:.0%}), limited by {occupancy.limited_by}"
    )


def _print_ptx(op: str, reports: Sequence[KernelReport], wanted: str) -> None:
    """Print the PTX of each file once: it holds all kernels of the file."""
    for ptx in dict.fromkeys(report.ptx for report in reports):
        names = ", ".join(f"{report.name}, sm_{report.arch}" for report in reports if report.ptx == ptx)
        print(f"// {names}\n{ptx}")
    if not reports:
        reasons = "; ".join(_missing(op)) or f"no GPU kernel of {op} has {wanted!r} in its name"
        raise terminal.Problem(f"there is no PTX to print: {reasons}", code=terminal.ENVIRONMENT)


def _print_json(
    op: str,
    contract: str,
    implementations: Sequence[Implementation],
    focus: Focus,
    reports: Sequence[KernelReport],
) -> None:
    sources = {
        implementation.backend: {_shown(path): path.read_text() for path in _files(implementation, focus)}
        for implementation in implementations
    }
    compiled = [{**asdict(report), "occupancy": asdict(report.occupancy)} for report in reports]
    for kernel in compiled:
        del kernel["ptx"]
    parts = {"sources": sources, "compiled": compiled, "not_compiled": _missing(op)}
    terminal.print_json({"op": op, "contract": contract, **parts})
