"""`prep upgrade`: compare two versions of a server on a golden trace before the new one gets traffic."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal
from app.cli.options import JsonOption, option, option_groups, parse_settings
from app.cli.serve import KEY_VARIABLE
from prep_common.text import counted, rough_duration

if TYPE_CHECKING:
    from app.bench.upgrade import UpgradeReport

SIDE = "URL, 'command: ...', a checkout's folder, or a git ref of this repository"
EXIT_CODES = {"pass": 0, "fail": terminal.CHECKS_FAILED, "inconclusive": terminal.INCONCLUSIVE}


@dataclass(frozen=True)
class Trace:
    """Requests of a golden trace, drawn from a seed."""

    requests: Annotated[int, option("Requests of a drawn trace.", min=1, max=10_000)] = 24
    seed: Annotated[int, option("Seed of a drawn trace.")] = 0
    rate: Annotated[float, option("Requests per second in timed rounds.", min=0.01)] = 16.0
    vocabulary: Annotated[int, option("Prompts consist of token ids below this one.", min=200)] = 1000


@dataclass(frozen=True)
class Tolerance:
    """Tolerated deterioration of the new version."""

    near_tie: Annotated[
        float, option("A token may differ where the two most likely ones are this close, in nats.", min=0)
    ] = 0.01
    drift: Annotated[float, option("Mean difference of the logprobs of equal tokens, in nats.", min=0)] = 0.01
    slower: Annotated[float, option("Growth of the median TTFT and ITL, in percent.", min=0)] = 10.0
    hit_drop: Annotated[float, option("Fall of the prefix hit rate, in percentage points.", min=0)] = 1.0
    more_memory: Annotated[float, option("Growth of the peak memory, in percent.", min=0)] = 5.0
    more_preemptions: Annotated[int, option("Additional preemptions in all rounds.", min=0)] = 0


@option_groups
def check(
    new: Annotated[str, option(f"The new version: {SIDE}.", "--new", "-B", show_default=False)],
    base: Annotated[
        str | None, option(f"The version in use: {SIDE}. Without it: --golden's answers.", "--base", "-A")
    ] = None,
    golden: Annotated[
        Path | None, option("Trace of prep upgrade record; else one is drawn.", metavar="FILE")
    ] = None,
    model: Annotated[str, option("Model of the sides that are started here.")] = "shop",
    set_: Annotated[
        list[str] | None, option("A setting of the new side; repeat for more.", "--set", metavar="K=V")
    ] = None,
    base_set: Annotated[
        list[str] | None, option("A setting of the base; repeat for more.", "--base-set", metavar="K=V")
    ] = None,
    rounds: Annotated[int, option("Timed rounds; an interval needs 6.", min=0, max=100)] = 6,
    trace: Trace = Trace(),  # noqa: B008 - frozen
    tolerance: Tolerance = Tolerance(),  # noqa: B008 - frozen
    api_key: Annotated[str | None, option(f"Key of both servers. Also: {KEY_VARIABLE}.")] = None,
    json: JsonOption = False,
) -> None:
    """Compare two versions: greedy tokens, logprobs, prefix hits, TTFT, ITL, memory, preemptions.

    Both run side by side and get the same requests in turn. Exit code 0: pass, 1: fail, 4: inconclusive.

    \b
    Examples:
      prep upgrade check --base HEAD~1 --new .
      prep upgrade check --base . --new . --set attention_backend=reference
      prep upgrade check --base http://127.0.0.1:8000 --new http://127.0.0.1:8001 --rounds 10
      prep upgrade check --golden golden.jsonl --new 'command: vllm serve my-model'
    """
    _need_libraries()
    from app.bench.golden import GoldenAnswer, draw_golden, read_golden
    from app.bench.upgrade import check as measure
    from app.bench.upgrade_verdict import Limits

    if base is None and golden is None:
        raise terminal.Problem("give --base, or --golden with recorded answers", "prep upgrade check --help")
    answers: list[GoldenAnswer] = []
    if golden is None:
        requests = draw_golden(trace.requests, trace.seed, trace.vocabulary, trace.rate)
    else:
        requests, answers = read_golden(golden)
    limits = Limits(
        near_tie=tolerance.near_tie,
        drift=tolerance.drift,
        slower=tolerance.slower / 100,
        hit_drop=tolerance.hit_drop / 100,
        more_memory=tolerance.more_memory / 100,
        more_preemptions=tolerance.more_preemptions,
    )
    before, after = None if base is None else _target(base, base_set), _target(new, set_)
    if base is not None:
        seconds = 20 + 2 * (rounds + 2) * requests[-1].at
        terminal.note(f"[dim]takes about {rough_duration(seconds)}[/]")
    report = _with_servers(
        lambda tell: measure(
            tell,
            before,
            after,
            model,
            requests,
            recorded=answers,
            rounds=rounds,
            limits=limits,
            key=_key(api_key),
        )
    )
    if json:
        terminal.print_json(report)
    else:
        show(report)
        terminal.next_command("prep gateway run FILE", "gives a version that passed its first users (canary)")
    if report.interrupted:
        raise typer.Exit(terminal.INTERRUPTED)
    if code := EXIT_CODES[report.verdict]:
        raise typer.Exit(code)


@option_groups
def record(
    output: Annotated[Path, option("File to write.", "--output", "-o", metavar="FILE", show_default=False)],
    server: Annotated[str, option(f"The version to record: {SIDE}.")] = ".",
    model: Annotated[str, option("Model of a server that is started here.")] = "shop",
    set_: Annotated[list[str] | None, option("A setting; repeat for more.", "--set", metavar="K=V")] = None,
    trace: Trace = Trace(),  # noqa: B008 - frozen
    api_key: Annotated[str | None, option(f"Key of the server. Also: {KEY_VARIABLE}.")] = None,
) -> None:
    """Record a golden trace: seeded requests with a server's greedy tokens and their margins.

    \b
    Examples:
      prep upgrade record --output golden.jsonl
      prep upgrade record --server http://127.0.0.1:8000 --requests 100 -o golden.jsonl
    """
    _need_libraries()
    from app.bench.golden import draw_golden, write_golden
    from app.bench.upgrade import record as measure

    if output.is_dir() or not output.parent.is_dir():  # told before the server works for it
        reason = "it is a folder" if output.is_dir() else f"there is no folder {output.parent}"
        raise terminal.Problem(
            f"cannot write {output}: {reason}", "prep upgrade record --output golden.jsonl"
        )
    requests = draw_golden(trace.requests, trace.seed, trace.vocabulary, trace.rate)
    target = _target(server, set_)
    answers = _with_servers(lambda tell: measure(tell, target, model, requests, _key(api_key)))
    header = {
        "seed": trace.seed,
        "vocabulary": trace.vocabulary,
        "recorded_with": str(target),
        "model": model,
    }
    write_golden(output, requests, answers, header)
    terminal.note(f"{terminal.shown(output)}: {counted(len(requests), 'request')} with their answers")
    terminal.next_command(f"prep upgrade check --golden {output} --new .")


def show(report: UpgradeReport) -> None:
    """Print a row for each property, and the verdict."""
    colours = {"pass": "green", "fail": "bold red", "inconclusive": "yellow", "not measured": "dim"}
    rows = [
        (check.name, f"[{colours[check.verdict]}]{check.verdict}[/]", terminal.literal(check.why))
        for check in report.checks
    ]
    table = terminal.table("property", "verdict", "figures", left=("verdict", "figures"), rows=rows)
    terminal.show(f"{terminal.literal(report.base)} -> {terminal.literal(report.new)}", table)
    terminal.say(f"[{colours[report.verdict]}]{report.verdict}[/]")


def _with_servers(measure: Any) -> Any:
    """Run a measurement; servers end with it, also at SIGTERM and SIGHUP. Raises a Problem for a server that fails."""
    import httpx

    from prep_common.child_process import ProcessEnded

    try:
        with terminal.signals_interrupt(), terminal.status(lines_in_pipe=True) as tell:
            return measure(tell)
    except ProcessEnded as error:
        raise terminal.Problem(str(error), code=terminal.ENVIRONMENT) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise terminal.Problem(
            f"a server does not answer: {error or type(error).__name__}",
            "prep serve shop   starts one",
            code=terminal.ENVIRONMENT,
        ) from None


def _target(text: str, pairs: list[str] | None) -> Any:
    from app.bench.upgrade_sides import Target, check_target

    target = Target(text, parse_settings(pairs))
    check_target(target)  # before the other side starts
    return target


def _key(given: str | None) -> str:
    return given or os.environ.get(KEY_VARIABLE, "")


def _need_libraries() -> None:
    names = ["fastapi", "uvicorn", "httpx", "uvloop", "prometheus_client"]
    terminal.need_libraries("upgrade needs", names, "upgrade", "serve")


HELP = """Compare two versions of a server on a golden trace: pass, fail or inconclusive.

\b
Examples:
  prep upgrade check --base HEAD~1 --new .  two versions of this repository
  prep upgrade check --base . --new . --set kv_cache_dtype=fp8
  prep upgrade record --server http://127.0.0.1:8000 -o golden.jsonl
  prep upgrade check --golden golden.jsonl --new .  against recorded answers
"""

upgrade = terminal.command_app(check, record, help=HELP)
