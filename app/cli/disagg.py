"""`prep disagg`: prefill in one process, decode in another, KV moved between them."""

from __future__ import annotations

import signal
from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer

from app.cli import terminal
from app.cli.engine_options import engine_options
from app.cli.options import JsonOption, ModelArgument, option
from app.disagg.experiment import Load, Report, measure
from engine.config.model import ModelArgs
from engine.models.hf_config import find_model


@engine_options
def disagg(
    model: ModelArgument = "shop",
    transport: Annotated[
        Literal["shm", "tcp"], option("Transport of the KV: shared memory or a socket.")
    ] = "shm",
    writers: Annotated[int, option("Requests that write long answers.", min=1)] = 4,
    prompts: Annotated[int, option("Long prompts that arrive meanwhile.", min=1)] = 6,
    prompt_len: Annotated[int, option("Tokens of each long prompt.", min=1)] = 1500,
    output_len: Annotated[int, option("Tokens that each writer generates.", min=2)] = 1800,
    interval: Annotated[float, option("Seconds between two long prompts.", min=0.0)] = 0.4,
    json: JsonOption = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Split prefill from decode: two engine processes and a router, against two plain engines.

    \b
    Every prompt goes to the prefill engine with max_tokens=1. Its answer locates
    the KV. The router then sends the prompt to the decode engine, which fetches
    the KV by block hash and continues after it, as after any prefix hit.

    \b
    Checked exactly: the same tokens as from plain engines, and the bytes of the
    formula. Measured: time to first token of the long prompts, and time between
    tokens of the writers while the prompts are computed. The cost is visible too:
    one engine computes all prompts, so if they arrive faster than it computes,
    their first token comes later than with two engines. Exit code 1: a check failed; 4:
    the writers' pauses did not get shorter.

    \b
    Examples:
      prep disagg
      prep disagg shop --transport tcp --json
      prep disagg --max-num-batched-tokens 256  prompts in chunks, on both sides
    """
    signal.signal(signal.SIGTERM, terminal.interrupt)
    load = Load(writers, prompts, prompt_len, output_len, interval)
    settings = {name: value for name, value in engine.items() if name != "kv_transfer_config"}
    settings |= {"model": model, "skip_tokenizer_init": True}
    find_model(ModelArgs(model=model))  # a wrong name is an error here, and not in both engines
    try:
        with terminal.status() as tell:
            report = measure(tell, settings, transport, load)
    except (ValueError, RuntimeError) as error:
        raise terminal.Problem(str(error), "prep disagg --help", code=terminal.ENVIRONMENT) from error
    if json:
        terminal.print_json(as_json(report))
    else:
        show(report)
    if not (report.same_tokens and report.bytes_are_exact):
        raise typer.Exit(terminal.CHECKS_FAILED)
    if not report.removes_interference:
        why = "did not get shorter: the machine is busy, or the load is light"
        if not (report.colocated.pause_ms.count and report.disaggregated.pause_ms.count):
            why = "were not measured: the writers finished before the prompts came; raise --output-len"
        terminal.note(f"[yellow]the writers' pauses {why}[/]")
        raise typer.Exit(terminal.INCONCLUSIVE)
    if not json:
        other = "tcp" if transport == "shm" else "shm"
        terminal.next_command(f"prep disagg {model} --transport {other}", "the same over the other transport")


def as_json(report: Report) -> dict[str, Any]:
    """Return everything but the tokens, which only the check needs."""
    result = asdict(report)
    for side in ("colocated", "disaggregated"):
        del result[side]["tokens"]
    return {**result, **terminal.pick(report, "bytes_are_exact removes_interference")}


def show(report: Report) -> None:
    table = terminal.table("check", "result", "", left=("result",))
    moved = f"{report.bytes_received:,} of {report.bytes_expected:,} bytes"
    formula = f"{report.num_tokens_moved:,} tokens x {report.kv_bytes_per_token:,} bytes"
    table.add_row("the same tokens as co-located", terminal.mark(report.same_tokens), "")
    table.add_row("KV moved", terminal.mark(report.bytes_are_exact), f"{moved}: {formula}")
    terminal.show(f"{report.model}: prefill and decode in two processes, KV by {report.transport}", table)
    times = terminal.table("ms", "p50", "p90", "p99", "max")
    for name, side in (("co-located", report.colocated), ("disaggregated", report.disaggregated)):
        for what, spread in (
            ("first token of a prompt", side.ttft_ms),
            ("between a writer's tokens", side.itl_ms),
            ("a writer's longest pause per prompt", side.pause_ms),
        ):
            figures = map(terminal.figure, (spread.p50, spread.p90, spread.p99, spread.max))
            times.add_row(f"{name}: {what}", *figures)
    terminal.show("while long prompts arrive and the writers decode", times)
