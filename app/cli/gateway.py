"""`prep gateway`: several servers behind one address, with a recorded reason for each routing decision."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from app.cli import terminal
from app.cli.options import JsonOption, argument, option, with_example
from app.cli.serve import KEY_VARIABLE

SettingsArgument = Annotated[Path, argument("Settings of the gateway, YAML.", metavar="FILE")]
UrlArgument = Annotated[str, argument("Address of a running gateway.")]
KeyOption = Annotated[str | None, option(f"The gateway's admin_key. Also: {KEY_VARIABLE}.")]


def run(
    file: SettingsArgument,
    host: Annotated[str, option("Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option("Port; 0: a free one.", min=0, max=65535)] = 8080,
) -> None:
    """Put servers behind one address, until Ctrl-C or SIGTERM.

    \b
    The smallest settings:
      policy: prefix-affinity
      backends:
        - {name: a, url: "http://127.0.0.1:8001"}
        - {name: b, url: "http://127.0.0.1:8002"}
    Also: canary, shadow, fallback, tenants, admin_key, retries, breaker, max_prompt_tokens
    (engine/gateway/README.md).

    \b
    Examples:
      prep gateway run engine/gateway/example.yaml
      prep gateway run gateway.yaml --port 9000
    """
    terminal.need_libraries(
        "the gateway needs",
        ["starlette", "uvicorn", "httpx", "prometheus_client", "zmq", "msgspec"],
        "gateway",
        "serve",
    )
    from engine.gateway.config import read_settings
    from engine.gateway.run import serve

    settings = with_example(read_settings, file, "prep gateway run engine/gateway/example.yaml")

    def ready(port: int) -> None:
        names = ", ".join(backend.name for backend in settings.backends)
        terminal.note(f"gateway on http://{host}:{port}/v1 until Ctrl-C; {settings.policy} over {names}")
        terminal.note(f"[dim]why: prep gateway explain http://{host}:{port}[/]")

    try:
        serve(settings, host, port, ready)
    except OSError as error:
        raise terminal.Problem(
            f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}",
            f"prep gateway run {file} --port PORT",
            code=terminal.ENVIRONMENT,
        ) from None


def check(file: SettingsArgument, json: JsonOption = False) -> None:
    """Check a settings file and print its settings, without listening.

    \b
    Example: prep gateway check engine/gateway/example.yaml
    """
    from engine.gateway.config import read_settings

    settings = with_example(read_settings, file, "prep gateway check engine/gateway/example.yaml")
    if json:
        key = {"api_key"}
        keys: Any = {
            "backends": {"__all__": key},
            "tenants": {"__all__": key},
            "fallback": key,
            "admin_key": True,
        }
        terminal.print_json(settings.model_dump(exclude=keys))
        return
    rows = [
        (backend.name, backend.url, backend.version, ", ".join(backend.models or ["any"]))
        for backend in settings.backends
    ]
    left = ("url", "version", "models")
    terminal.show(f"{settings.policy} over", terminal.table("backend", *left, left=left, rows=rows))
    terminal.next_command(f"prep gateway run {file}")


def state(url: UrlArgument, api_key: KeyOption = None, json: JsonOption = False) -> None:
    """Show backends, tenants and the canary of a running gateway.

    \b
    Example: prep gateway state http://127.0.0.1:8080
    """
    status = ask(url, "/gateway/state", api_key)
    if json:
        terminal.print_json(status)
        return
    shown = [
        (
            backend["name"], backend["version"], "yes" if backend["healthy"] else "no", backend["breaker"],
            f"{backend['load']:,}", f"{backend['requests']:,}", f"{backend['failed']:,}",
        )
        for backend in status["backends"]
    ]  # fmt: skip
    headings = ("backend", "version", "healthy", "breaker", "load", "requests", "failed")
    terminal.show(status["policy"], terminal.table(*headings, left=headings[1:4], rows=shown))
    if status["tenants"]:
        rows = [
            (tenant["name"], f"{tenant['requests']:,}", f"{tenant['tokens']:,}", _left(tenant))
            for tenant in status["tenants"]
        ]
        terminal.out().print(terminal.table("tenant", "requests", "tokens", "left today", rows=rows))
    if status["canary"]:
        terminal.say(
            f"canary: version {status['canary']['version']}, {status['canary']['share']:.0%} of the users"
        )
    if status.get("canary_look"):
        terminal.say(terminal.literal(status["canary_look"]["sentence"]))


def explain(
    url: UrlArgument,
    request_id: Annotated[
        str | None, argument("Id of a request (X-Request-Id); by default the last ones.")
    ] = None,
    last: Annotated[int, option("Number of decisions, without an id.", min=1, max=999_999)] = 100,
    api_key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Show the chosen backend of requests, and the reasons. The page Capacity of `prep app` draws the JSON.

    \b
    Examples:
      prep gateway explain http://127.0.0.1:8080
      prep gateway explain http://127.0.0.1:8080 my-request-7
      prep gateway explain http://127.0.0.1:8080 --last 5000 --json > routes.json
    """
    path = f"/gateway/decisions?last={last}" if request_id is None else f"/gateway/decisions/{request_id}"
    decisions = ask(url, path, api_key)
    if json:
        terminal.print_json(decisions)
        return
    for decision in decisions if isinstance(decisions, list) else [decisions]:
        ended = f"  [dim]{terminal.literal(decision['ended'] or 'under way')}[/]"
        terminal.say(terminal.literal(decision["sentence"]) + ended)


def canary(
    url: UrlArgument,
    share: Annotated[float, argument("Share of the users, 0 to 1; 0 rolls back.", min=0, max=1)],
    api_key: KeyOption = None,
) -> None:
    """Change the canary's share of the users at once.

    \b
    Example: prep gateway canary http://127.0.0.1:8080 0
    """
    reply = ask(url, "/gateway/canary", api_key, {"share": share})
    terminal.say(f"version {reply['version']}: {reply['share']:.0%} of the users")


def ask(url: str, path: str, api_key: str | None, body: dict[str, Any] | None = None) -> Any:
    """Ask a gateway. Raises a Problem if there is none, or if it refuses."""
    terminal.need_libraries("the gateway needs", ["httpx"], "gateway", "serve")
    import httpx

    base = url.rstrip("/") if url.startswith(("http://", "https://")) else f"http://{url.rstrip('/')}"
    key = api_key or os.environ.get(KEY_VARIABLE, "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        response = httpx.request(
            "GET" if body is None else "POST", base + path, headers=headers, json=body, timeout=10
        )
        answer = response.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise terminal.Problem(
            f"no gateway at {base}: {error or type(error).__name__}",
            "prep gateway run FILE   starts one",
            code=terminal.ENVIRONMENT,
        ) from None
    if response.status_code != 200:
        raise terminal.Problem(str(answer.get("error", {}).get("message", response.text)))
    return answer


def _left(tenant: dict[str, Any]) -> str:
    left = tenant["tokens_left_today"]
    return "any" if left is None else f"{max(0, left):,}"


gateway = terminal.command_app(
    run,
    check,
    state,
    explain,
    canary,
    help="Run a gateway in front of several servers, and show its routing decisions.",
)
