"""`prep bench peers`: our engine beside llama.cpp, vLLM and transformers."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from app.bench.timing import Tell
from app.cli import terminal
from app.cli.bench.common import run
from app.cli.options import JsonOption, option

if TYPE_CHECKING:
    from app.bench.peers import PeersReport


def peers(
    workloads: Annotated[
        str | None, option("Comma-separated: shop-128, shop-128-busy, 386m-32, 386m-1; all by default.")
    ] = None,
    precisions: Annotated[
        str | None, option("Comma-separated: fp32, bf16, int8, int4; all by default.")
    ] = None,
    engines: Annotated[
        str | None,
        option("Comma-separated: prep, llama.cpp, vllm, vllm-processes, transformers; all by default."),
    ] = None,
    rounds: Annotated[
        int | None, option("Rounds of each engine, three times as many for 386m-1; 3 by default.", min=1)
    ] = None,
    quick: Annotated[bool, option("One round of shop-128 and three of 386m-1, in bf16.", "--quick")] = False,
    resume: Annotated[
        bool,
        option(
            "Continue with the rounds in runs/peers.json, or runs/peers-quick.json: every run saves them.",
            "--resume",
        ),
    ] = False,
    write: Annotated[bool, option("Write the report to tests/peers/RESULTS.md.", "--write")] = False,
    json: JsonOption = False,
) -> None:
    """Compare this engine with llama.cpp, vLLM and transformers, in one run.

    \b
    Engines get the same requests and threads, each in a separate process that is
    stopped while another runs; rounds alternate. An engine that is not installed
    is left out, and the report says how to install it. vllm has its engine core
    in one process, so that threads are equal; vllm-processes is vLLM as it comes.
    llama.cpp gets a GGUF file made of the same checkpoint: f32, bf16, q8_0, q4_0.

    \b
    Examples:
      prep bench peers --quick
      prep bench peers --workloads 386m-1 --engines prep,llama.cpp --rounds 5
      prep bench peers --write
      prep bench peers --resume --write      after an interruption
    """
    from app.bench import peers as bench
    from app.bench import peers_results as results

    num_rounds = rounds or (1 if quick else bench.ROUNDS)
    if write and (quick or workloads or precisions or engines or num_rounds < bench.ROUNDS):
        what = f"RESULTS.md holds whole runs only, of at least {bench.ROUNDS} rounds"
        raise terminal.Problem(what, "prep bench peers --write")
    names = _chosen("--workloads", workloads, bench.WORKLOADS, bench.QUICK_WORKLOADS if quick else ())
    bits = _chosen("--precisions", precisions, bench.PRECISIONS, ("bf16",) if quick else ())
    others = _chosen("--engines", engines, bench.ENGINES)

    def run_all(tell: Tell) -> PeersReport:
        try:
            return bench.measure(
                tell,
                workloads=[bench.WORKLOADS[name] for name in names],
                precisions=bits,
                engines=others,
                rounds=num_rounds,
                saved=bench.SAVED_QUICK if quick else bench.SAVED,
                resume=resume,
            )
        except bench.CannotStart as error:
            raise terminal.Problem(str(error), error.next_step) from None

    given = {"workloads": workloads, "precisions": precisions, "engines": engines, "rounds": rounds}
    again = _command(**given, quick=quick, write=write, resume=True)
    report = run(
        run_all,
        show_peers,
        json=json,
        then=("prep bench throughput", "where the time of our steps goes"),
        takes="5 min" if quick else "27 min",
        as_json=results.as_dict,
        resume=lambda report: again if report.has_rounds else "",
    )
    if write:
        results.write(report)
        terminal.note(f"[dim]written to {terminal.shown(results.RESULTS)}[/]")


def _command(**options: Any) -> str:
    """Return this command with the options that are set."""
    words = ["prep", "bench", "peers"]
    for name, value in options.items():
        if value:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return shlex.join(words)


def _chosen(flag: str, given: str | None, known: Collection[str], default: Sequence[str] = ()) -> list[str]:
    """Return the names of a comma-separated list; without one `default`, or all. Raises Problem for an unknown one."""
    names = list(default or known) if given is None else [name.strip() for name in given.split(",")]
    for name in names:
        if name not in known:
            raise terminal.Problem(
                f"{flag}: {name!r} is not one of {', '.join(known)}", f"{flag} {next(iter(known))}"
            )
    return names


def show_peers(report: PeersReport) -> None:
    from app.bench import peers_results as results

    headings, rows = results.table(report)
    if rows:
        table = terminal.table(*headings, rows=rows)
        terminal.show("output tokens/s, and how many times as fast ours is", table)
        terminal.say(f"  {terminal.literal(results.versions_line(report))}")
    terminal.say(f"  limits: {results.limits_line(report)}")
    for aim in results.aims(report):
        terminal.say(f"{terminal.mark(aim.met)} {aim.what}: {aim.measured:.2f}, aim {aim.least:.2f}")
    for note in results.problems(report):
        terminal.note(f"[yellow]not measured: {terminal.literal(note)}[/]")
