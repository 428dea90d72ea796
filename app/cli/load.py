"""`prep load`: open-loop load on a running server, with percentiles and goodput."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from app.cli import terminal
from app.cli.options import JsonOption, argument, option, option_groups
from app.cli.serve import KEY_VARIABLE
from app.cli.traffic_options import DrawnRequests
from engine.sim.workload import SimRequest, read_trace
from prep_common.text import counted, duration

if TYPE_CHECKING:
    from engine.server.load_client import Load, LoadReport

TIMES = {
    "ttft": "TTFT  time to first token",
    "itl": "ITL   between chunks",
    "tpot": "TPOT  per output token",
    "e2e": "whole request",
}
REFRESH_S = 0.5


@dataclass(frozen=True)
class Traffic(DrawnRequests):
    """Requests, drawn or listed in a file."""

    rate: Annotated[float, option("Requests per second.", min=0.001)] = 8.0
    prompt: Annotated[str, option("Prompt tokens: 100, 50-200 or lognormal:MEAN:SIGMA.")] = "50-150"
    output: Annotated[str, option("Generated tokens, in the same forms.")] = "32"
    duration: Annotated[float, option("Seconds during which requests are sent.", min=0.1)] = 30.0
    replay: Annotated[
        Path | None,
        option("File of requests instead: from prep serve --request-log, or like prep sim's --requests."),
    ] = None

    def requests(self) -> list[SimRequest]:
        """Return the requests in order of arrival. Raises ValueError for wrong settings or a wrong file."""
        if self.replay is not None:
            return read_trace(self.replay)
        return list(self.draw(max(1, round(self.rate * self.duration))))


@dataclass(frozen=True)
class Limits:
    """The service level objective: a request within all limits is good."""

    slo_ttft: Annotated[float | None, option("Milliseconds to the first token.", min=0)] = None
    slo_tpot: Annotated[float | None, option("Milliseconds per output token.", min=0)] = None
    slo_e2e: Annotated[float | None, option("Milliseconds for the whole request.", min=0)] = None


@option_groups
def load(
    url: Annotated[str, argument("Address of the server, such as http://127.0.0.1:8000.")],
    traffic: Traffic,
    limits: Limits,
    model: Annotated[str | None, option("Name of the model; by default the server's first.")] = None,
    api_key: Annotated[str | None, option(f"Key of the server. Also: {KEY_VARIABLE}.")] = None,
    vocabulary: Annotated[int, option("Prompts consist of token ids below this one.", min=200)] = 1000,
    timeout: Annotated[float, option("Seconds without a byte after which a request fails.", min=0.1)] = 60.0,
    json: JsonOption = False,
) -> None:
    """Send requests to a server at a fixed rate, and measure what its clients see.

    Open loop: requests leave at their time, however many are unanswered. Works with any server that has OpenAI's
    completions and takes token ids: ours, vLLM. Exit code 1 if a request failed.

    \b
    Examples:
      prep load http://127.0.0.1:8000 --rate 8 --duration 60
      prep load http://127.0.0.1:8000 --rate 20 --slo-ttft 200 --slo-tpot 30 --json
      prep load http://127.0.0.1:8000 --replay requests.jsonl
      prep load http://127.0.0.1:8000 --num-prefixes 4 --prefix-len 128 --prompt 150-250
    """
    terminal.need_libraries("load needs", ["httpx", "uvloop"], "load", "serve")
    import httpx
    import uvloop

    from engine.server.load_client import Load, Objective

    seconds = [None if ms is None else ms / 1000 for ms in vars(limits).values()]
    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        base = f"http://{base}"
    key = api_key or os.environ.get(KEY_VARIABLE, "")
    run = Load(base, key, model, Objective(*seconds), timeout)
    requests = traffic.requests()
    try:
        report = uvloop.run(_watched(run, requests, vocabulary))
    except (httpx.ConnectError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise terminal.Problem(
            f"no server at {base}: {error}", "prep serve shop   starts one", code=terminal.ENVIRONMENT
        ) from None
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        hint = "prep load URL --api-key KEY" if status == 401 else "prep load URL --model NAME"
        raise terminal.Problem(f"{base}/v1/models answers with status {status}", hint) from None
    except httpx.HTTPError as error:
        raise terminal.Problem(f"{base} does not answer: {error or type(error).__name__}") from None
    if json:
        terminal.print_json(report)
    else:
        show(report)
    if report.errors:
        raise SystemExit(terminal.CHECKS_FAILED)


async def _watched(run: Load, requests: list[SimRequest], vocabulary: int) -> LoadReport:
    """Run the load beside a screen that shows the figures so far."""
    from engine.server.load_client import due

    async def refresh(tell: Any) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            tell(run.report())

    with _screen(len(requests)) as tell:
        watching = asyncio.create_task(refresh(tell))
        try:
            return await run.run(due(requests, vocabulary))
        finally:
            watching.cancel()


@contextmanager
def _screen(total: int) -> Iterator[Any]:
    """Yield a function that shows a report: a table that changes on a terminal, else a line now and then."""
    console = terminal.err()
    if terminal.is_live(console):
        from rich.console import Group
        from rich.live import Live
        from rich.text import Text

        with Live(console=console, auto_refresh=False, transient=True) as area:
            yield lambda report: area.update(
                Group(Text(f" {_line(report, total)}"), times(report)), refresh=True
            )
        return
    shown = 0.0

    def tell(report: LoadReport) -> None:
        nonlocal shown
        if report.seconds - shown >= 5:
            shown = report.seconds
            console.print(_line(report, total), markup=False)

    yield tell


def _line(report: LoadReport, total: int) -> str:
    failed = sum(report.errors.values())
    return (
        f"{report.seconds:4.0f} s  sent {report.num_sent} of {total}, {report.num_running} unanswered, "
        f"{failed} failed, {report.output_tokens_per_s:,.0f} tok/s"
    )


def times(report: LoadReport) -> Any:
    """Return the table of percentiles."""
    table = terminal.table("", "mean", "p50", "p90", "p99", "max")
    for name, words in TIMES.items():
        if (spread := getattr(report, name)) is not None:
            values = (spread.mean, spread.p50, spread.p90, spread.p99, spread.max)
            table.add_row(words, *(duration(value) for value in values))
    return table


def show(report: LoadReport) -> None:
    """Print the results."""
    terminal.show(f"{counted(report.num_done, 'answer')} in {duration(report.seconds)}", times(report))
    rows = [
        ("throughput", f"{report.output_tokens_per_s:,.0f}", "output tokens/s"),
        ("", f"{report.requests_per_s:,.2f}", "requests/s"),
    ]
    if report.goodput_per_s is not None and report.good_share is not None:
        rows.append(
            ("goodput", f"{report.goodput_per_s:,.2f}", f"good requests/s, {report.good_share:.1%} of all")
        )
    rows += [("failed", f"{number:,}", why) for why, number in sorted(report.errors.items())]
    table = terminal.table("", "", "", left=("",), rows=rows)
    table.show_header = False
    terminal.out().print(table)
