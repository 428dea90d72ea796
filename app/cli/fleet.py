"""`prep fleet`: replicas of a server behind a gateway on this machine, scaled by hand or by the load."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from app.cli import terminal
from app.cli.options import JsonOption, argument, option
from common.child_process import ProcessEnded
from common.text import duration, gib

NameArgument = Annotated[str | None, argument("Name of a running fleet; not needed if only one runs.")]
NameOption = Annotated[str | None, option("Name of a running fleet; not needed if only one runs.", "--name")]
LIBRARIES = ["starlette", "uvicorn", "httpx", "prometheus_client", "zmq", "msgspec"]


def up(
    file: Annotated[Path, argument("Settings of the fleet, YAML.", metavar="FILE")],
    port: Annotated[
        int | None, option("Port instead of the one in FILE; 0: a free one.", min=0, max=65535)
    ] = None,
) -> None:
    """Start replicas, a gateway and an autoscaler, until Ctrl-C or prep fleet down.

    \b
    The smallest settings:
      model: shop
      replicas: 2
    Also: name, port, policy, engine (options of prep serve), threads, oversubscribe, warm_pool, autoscale, hold,
    tenants, events (engine/fleet/README.md).

    \b
    Examples:
      prep fleet up engine/fleet/example.yaml
      prep fleet up fleet.yaml --port 9000
    """
    terminal.need_libraries("a fleet needs", LIBRARIES, "fleet", "serve")
    from engine.fleet.config import check_fits, read_settings
    from engine.fleet.run import serve

    settings = read_settings(file)
    if port is not None:
        settings = settings.model_copy(update={"port": port})
    check_fits(settings)

    def ready(url: str) -> None:
        terminal.note(f"[bold]{settings.name}[/] listens on {url}/v1 until Ctrl-C; its replicas start")
        terminal.note(f"next: prep fleet status {settings.name}")

    try:
        serve(settings, ready)
    except OSError as error:
        where = error.filename or f"127.0.0.1:{settings.port}"
        raise terminal.Problem(
            f"cannot use {where}: {os.strerror(error.errno or 0)}",
            f"prep fleet up {file} --port PORT   uses another port",
            code=terminal.ENVIRONMENT,
        ) from None
    except ProcessEnded as error:
        raise terminal.Problem(str(error), f"correct {file}, then prep fleet up {file}") from None
    terminal.note("stopped")


def status(name: NameArgument = None, json: JsonOption = False) -> None:
    """Show replicas, the autoscaler and the last events of a running fleet.

    \b
    Examples:
      prep fleet status
      prep fleet status shop --json
    """
    found = _ask(name, "status")
    if json:
        terminal.print_json(found)
        return
    rows = [
        (
            each["name"], each["state"], str(each["pid"]), f"{each['load']:,}", f"{each['requests']:,}",
            gib(each["memory_bytes"], 2) if each["memory_bytes"] else "",
            "" if each["start_s"] is None else duration(each["start_s"]),
        )
        for each in found["replicas"]
    ]  # fmt: skip
    table = terminal.table(
        "replica", "state", "process", "load", "requests", "memory", "start", left=("state",), rows=rows
    )
    terminal.show(f"{found['name']}: {found['wanted']} of {found['model']} wanted, {found['policy']}", table)
    cold = next((each for each in found["replicas"] if each["stages"]), None)
    if cold is not None:
        stages = ", ".join(f"{stage} {duration(seconds)}" for stage, seconds in cold["stages"].items())
        terminal.say(f"cold start of {cold['name']}: {stages}")
    scaler = found["autoscaler"]
    if scaler is not None:
        terminal.say(
            f"autoscaler: {scaler['signal']} is {scaler['value']:.2f}; out above {scaler['out_above']:g}, in below "
            f"{scaler['in_below']:g}; thrash {found['thrash']}"
        )
    for each in found["events"][-8:]:
        words = f"{each['at']:8.1f} s  {each['kind']:<8} {each['replica']:<4} {each['why']}"
        terminal.say(f"[dim]{terminal.literal(words.rstrip())}[/]")


def scale(
    replicas: Annotated[int, argument("Replicas that get requests.", min=0)], name: NameOption = None
) -> None:
    """Change the number of replicas; the autoscaler, if there is one, goes on from there.

    \b
    Example: prep fleet scale 3
    """
    terminal.say(f"wanted: {_ask(name, 'scale', {'replicas': replicas})['wanted']}")


def drain(
    replica: Annotated[str, argument("A replica, see prep fleet status.")], name: NameOption = None
) -> None:
    """Let one replica finish its requests and stop, and want one less.

    \b
    Example: prep fleet drain r1
    """
    found = _ask(name, "drain", {"replica": replica})
    terminal.say(f"{found['replica']} is {found['state']}; wanted: {found['wanted']}")


def roll(name: NameArgument = None) -> None:
    """Replace all replicas one at a time: start a new one, route to it, drain the old one. No request is lost.

    \b
    Example: prep fleet roll
    """
    terminal.say(f"replaces {', '.join(_ask(name, 'roll', {})['replaces']) or 'nothing'}")
    terminal.next_command("prep fleet status")


def down(name: NameArgument = None) -> None:
    """End a fleet; requests under way finish.

    \b
    Example: prep fleet down
    """
    _ask(name, "down", {})
    terminal.say("ends")


def _ask(name: str | None, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    terminal.need_libraries("a fleet needs", LIBRARIES, "fleet", "serve")
    from engine.fleet.folder import ask, choose

    return ask(choose(name), path, body)


fleet = terminal.command_app(
    up, status, scale, drain, roll, down,
    help="Run replicas behind a gateway on this machine, and scale them by hand or by the load.",
)  # fmt: skip
