"""Operations and backends as users type them, how each backend runs on this machine, and `prep kernels list`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

from app.cli import terminal
from app.cli.options import JsonOption
from prep_common.names import unknown_name

ALIASES = {
    "attention": "paged_attention",
    "paged_decode": "paged_attention",
    "prefill": "paged_attention",
    "rmsnorm": "rms_norm",
    "rope": "rotary_embedding",
    "silu_mul": "silu_and_mul",
    "kv_write": "reshape_and_cache",
    "kv_copy": "copy_blocks",
    "gemm": "linear",
    "int4": "int4_linear",
    "w4a16": "int4_linear",
    "int8": "int8_linear",
    "fp8": "fp8_linear",
    "moe": "grouped_linear",
    "lora": "lora_shrink",
    "sampling": "sample",
    "penalties": "apply_penalties",
    "logprobs": "gather_logprobs",
    "bitmask": "apply_token_bitmask",
}
"""Common names of operations."""

INTERPRETED = (("TRITON_INTERPRET", "1"),)
"""Environment in which Triton runs kernels without a GPU."""


def operation(name: str) -> str:
    """Return the operation's name in `kernels/ops.py`, from any case, with dashes, or from an alias."""
    from kernels import registry

    plain = name.strip().lower().replace("-", "_")
    op = ALIASES.get(plain, plain)
    if op in registry.OPS:
        return op
    known = [*registry.OPS, *ALIASES]
    raise terminal.Problem(
        unknown_name("unknown operation", name, known), "prep kernels list   shows them all"
    )


def backends(name: str) -> list[str]:
    """Return one backend, or for "all" every one but the reference."""
    from kernels import registry

    plain = name.strip().lower()
    if plain == "all":
        return [backend for backend in registry.BACKENDS if backend != "reference"]
    if plain in registry.BACKENDS:
        return [plain]
    raise terminal.Problem(f"unknown backend {name!r}; there are: {', '.join(registry.BACKENDS)}, all")


def not_written(op: str, backends: Sequence[str]) -> terminal.Problem:
    """Return the error for an operation that has no implementation in these backends."""
    from kernels import registry

    known = ", ".join(implementation.backend for implementation in registry.implementations(op))
    return terminal.Problem(f"{op} is not written in {' or '.join(backends)}; implementations: {known}")


@dataclass(frozen=True)
class How:
    """Way in which the kernels of a backend run on this machine."""

    state: Literal["native", "slow", "not"]
    """slow: on the CPU, thread by thread, for checking only."""
    text: str
    device: str = "cpu"
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that a process needs from its start."""


def how(backend: str) -> How:
    """Return how a backend runs here: natively, slowly for checking, or not at all and why."""
    import torch

    from kernels import registry
    from kernels.compile_report import load_library

    gpu = torch.cuda.is_available()
    problem = registry.unavailable(backend)
    if backend == "reference":
        return How("native", "plain torch, runs everywhere", "cuda" if gpu else "cpu")
    if backend == "cpu" and problem is None:
        built = load_library()
        source = (
            f", compiled in {built.build_seconds:.1f} s" if built.build_seconds else f", from {built.path}"
        )
        return How("native", f"C++{source}")
    if gpu and problem is None:
        return How("native", torch.cuda.get_device_name(), "cuda")
    if backend == "cuda" and problem is None:
        return How("slow", "no GPU here: on a host shim, thread by thread")
    if backend == "triton" and not gpu and find_spec("triton") is not None:
        return How("slow", "no GPU here: in Triton's interpreter", environment=INTERPRETED)
    return How("not", problem or "")


def list_(json: JsonOption = False) -> None:
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
        told = {name: terminal.pick(way, "state text device") for name, way in ways.items()}
        return terminal.print_json({"backends": told, "operations": rows})
    _show(rows, ways)
    terminal.next_command("prep kernels check", "compare them with the reference")


def _row(op: str, ways: dict[str, How]) -> dict[str, Any]:
    from kernels import registry

    if ways["reference"].device == "cuda":
        gpu = registry.preferred(op, "cuda")
    else:  # what would be chosen on a machine that has a GPU, and the packages
        there = {implementation.backend for implementation in registry.implementations(op)}
        gpu = next(backend for backend in registry.PREFERENCE["cuda"] if backend in there)
    return {
        "op": op,
        "implementations": {
            implementation.backend: list(implementation.sources)
            for implementation in registry.implementations(op)
        },
        "cpu": registry.preferred(op, "cpu"),
        "gpu": gpu,
    }


def _show(rows: list[dict[str, Any]], ways: dict[str, How]) -> None:
    signs = {"native": terminal.mark(True), "slow": "[yellow]slow[/]", "not": terminal.mark(False)}
    table = terminal.table("operation", *ways, "on CPU", "on GPU", left=(*ways, "on CPU", "on GPU"))
    table.columns[0].no_wrap = True
    for row in rows:
        cells = [signs[way.state] if name in row["implementations"] else "" for name, way in ways.items()]
        table.add_row(row["op"], *cells, row["cpu"], row["gpu"])
    terminal.out().print(table)
    for name, way in ways.items():
        terminal.say(f"{name:<10} {signs[way.state]}  [dim]{terminal.literal(way.text)}[/]")
    terminal.say(
        f"[dim]{terminal.mark(True)} runs here   [yellow]slow[/] runs here, for checking only   "
        f"{terminal.mark(False)} does not run here   blank: not written in this form[/]"
    )
    also = ", ".join(f"{alias} ({op})" for alias, op in ALIASES.items())
    terminal.say(f"[dim]other names: {also}[/]")
