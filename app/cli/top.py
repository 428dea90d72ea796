"""`prep top`: a running server, live: batch, queue, KV cache, latencies."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from app.cli import terminal
from app.cli.options import JsonOption, argument, option
from app.cli.progress import bar
from app.cli.serve import KEY_VARIABLE
from prep_common.text import duration

if TYPE_CHECKING:
    from engine.server.scrape import Activity, Scrape

T = TypeVar("T")


def top(
    url: Annotated[str, argument("Address of the server, such as http://127.0.0.1:8000.")],
    interval: Annotated[float, option("Seconds between two samples.", min=0.1)] = 2.0,
    once: Annotated[bool, option("Print one sample and exit.", "--once")] = False,
    api_key: Annotated[str | None, option(f"Key of the server. Also: {KEY_VARIABLE}.")] = None,
    json: JsonOption = False,
) -> None:
    """Watch a running server: requests, KV cache, tokens per second, latencies, preemptions. Ctrl-C ends it.

    It reads /metrics, so it works with this server and with any vLLM. Rates and latencies are those of the last
    interval; latencies are interpolated in the histograms' buckets, as Prometheus does.

    \b
    Examples:
      prep top http://127.0.0.1:8000
      prep top http://127.0.0.1:8000 --once --json
    """
    terminal.need_libraries("top needs", ["httpx", "prometheus_client"], "top", "serve")
    from engine.server.scrape import Activity, base_of

    base = told(lambda: base_of(url))
    before = look(base, api_key)
    if once or json or not terminal.is_live(terminal.out()):
        time.sleep(interval)
        activity = Activity.between(before, look(base, api_key))
        terminal.print_json(activity) if json else terminal.show(base, table(activity))
        return
    from rich.live import Live

    with Live(console=terminal.out(), auto_refresh=False) as area:
        while True:
            time.sleep(interval)
            after = look(base, api_key)
            area.update(table(Activity.between(before, after)), refresh=True)
            before = after


def look(base: str, api_key: str | None) -> Scrape:
    """Scrape the server once. Raises a Problem if there is no such server."""
    from engine.server.scrape import fetch

    return told(lambda: fetch(base, api_key or os.environ.get(KEY_VARIABLE, "")))


def told(action: Callable[[], T]) -> T:
    from engine.server.scrape import ScrapeError

    try:
        return action()
    except ScrapeError as error:
        code = terminal.ENVIRONMENT if error.is_down else terminal.USAGE
        raise terminal.Problem(str(error), error.next_step, code=code) from None


def table(activity: Activity) -> Any:
    """Return the screen."""

    def seconds(p50: float | None, p99: float | None) -> tuple[str, str]:
        return tuple("-" if value is None else duration(value) for value in (p50, p99))  # type: ignore[return-value]

    def percent(share: float | None) -> str:
        return "-" if share is None else f"{share:.0%}"

    totals = activity.totals
    rows = [
        ("running", f"{activity.running:,.0f}", "requests"),
        ("waiting", f"{activity.waiting:,.0f}", "requests"),
        ("KV cache", percent(activity.kv_cache_usage), bar(activity.kv_cache_usage, 24)),
        ("prefix hits", percent(activity.prefix_hit_rate), "of prompt tokens"),
        (
            "output",
            f"{activity.output_tokens_per_s:,.0f}",
            f"tokens/s, {totals['output_tokens']:,.0f} in all",
        ),
        (
            "prompts",
            f"{activity.prompt_tokens_per_s:,.0f}",
            f"tokens/s, {totals['prompt_tokens']:,.0f} in all",
        ),
        ("ended", f"{activity.requests_per_s:,.2f}", f"requests/s, {totals['requests']:,.0f} in all"),
        (
            "preempted",
            f"{activity.preemptions_per_s:,.2f}",
            f"per second, {totals['preemptions']:,.0f} in all",
        ),
        (
            "failed",
            f"{activity.errors_per_s:,.2f}",
            f"per second, {totals['errors']:,.0f} in all; {totals['rejections']:,.0f} rejected at a full queue",
        ),
    ]
    if activity.draft_acceptance is not None:
        rows.append(("drafts", percent(activity.draft_acceptance), "accepted"))
    for name, words in (("ttft", "first token"), ("itl", "next token"), ("e2e", "whole request")):
        p50, p99 = seconds(getattr(activity, f"{name}_p50"), getattr(activity, f"{name}_p99"))
        rows.append((words, p50, f"median; p99 {p99}"))
    screen = terminal.table("", "", "", left=("",), rows=rows)
    screen.show_header = False
    return screen
