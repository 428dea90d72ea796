"""`prep fleet`: replicas of a server behind a gateway on this machine, scaled by hand or by the load."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from app.cli import terminal
from app.cli.options import JsonOption, argument, option, with_example
from engine.fleet import start_time
from prep_common.child_process import ProcessEnded
from prep_common.text import counted, duration, gib, join_and, rough_duration

if TYPE_CHECKING:
    from engine.fleet.config import FleetSettings
    from engine.fleet.events import FleetEvent

NameArgument = Annotated[str | None, argument("Name of a running fleet; not needed if only one runs.")]
NameOption = Annotated[str | None, option("Name of a running fleet; not needed if only one runs.", "--name")]
LIBRARIES = ["starlette", "uvicorn", "httpx", "prometheus_client", "zmq", "msgspec"]


HELP = """Run replicas behind a gateway on this machine, and scale them by hand or by the load.

`prep fleet up` holds its terminal; the other commands steer it from another one.

\b
Examples:
  prep fleet up engine/fleet/example.yaml
  prep fleet status
  prep fleet scale 3
  prep fleet roll
  prep fleet down
"""


class Teller:
    """Tells on the terminal of `prep fleet up` what happens, and what to do once the replicas are ready."""

    def __init__(self, settings: FleetSettings) -> None:
        self.settings, self.url = settings, ""
        self.num_ready = 0
        self.is_up = False

    def listens(self, url: str) -> None:
        """Say what starts and how long that took the last time."""
        settings, self.url = self.settings, url
        self.is_up = not settings.replicas
        count = settings.replicas + settings.warm_pool
        took = start_time.last(settings.model)
        expected = (
            f"at most {settings.start_timeout_s:g} s each"
            if took is None
            else (f"about {rough_duration(took)}, as the last time")
        )
        terminal.note(
            f"[bold]{settings.name}[/] listens on {url}/v1 and holds requests until a replica is ready"
        )
        if count:
            terminal.note(f"{counted(count, 'replica')} of {settings.model} start: {expected}")
        else:
            terminal.note("no replica starts before the first request")
            self._next()

    def tell(self, event: FleetEvent) -> None:
        """Print an event, and the next command after the last replica of the start."""
        terminal.note(f"[dim]{terminal.literal(event_line(vars(event)))}[/]")
        if event.start_s is not None:
            start_time.note(self.settings.model, event.start_s)
        self.num_ready += event.kind == "ready"
        if not self.is_up and self.num_ready >= self.settings.replicas:
            self.is_up = True
            terminal.note(f"[bold]{self.settings.name}[/] is ready: {self.url}/v1, until Ctrl-C")
            self._next()

    def _next(self) -> None:
        terminal.next_command(f"prep load {self.url} --rate 4", "in another terminal; or prep fleet status")


def event_line(event: dict[str, Any]) -> str:
    """Return one line for an event."""
    words = f"{event['at']:8.1f} s  {event['kind']:<8} {event['replica']:<4} {event['why']}"
    return words.rstrip()


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

    settings = with_example(read_settings, file, "prep fleet up engine/fleet/example.yaml")
    if port is not None:
        settings = settings.model_copy(update={"port": port})
    check_fits(settings)

    teller = Teller(settings)
    try:
        serve(settings, teller.listens, tell=teller.tell)
    except OSError as error:
        where, remedy = f"127.0.0.1:{settings.port}", f"prep fleet up {file} --port PORT   uses another port"
        if error.filename:
            where, remedy = error.filename, f"change events in {file}"
        reason = os.strerror(error.errno or 0)
        raise terminal.Problem(f"cannot use {where}: {reason}", remedy, code=terminal.ENVIRONMENT) from None
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
    state = _ask(name, "status")
    if json:
        terminal.print_json(state)
        return
    rows = [
        (
            replica["name"], replica["state"], str(replica["pid"]), f"{replica['load']:,}", f"{replica['requests']:,}",
            gib(replica["memory_bytes"], 2) if replica["memory_bytes"] else "",
            "" if replica["start_s"] is None else duration(replica["start_s"]),
        )
        for replica in state["replicas"]
    ]  # fmt: skip
    table = terminal.table(
        "replica", "state", "process", "load", "requests", "memory", "start", left=("state",), rows=rows
    )
    terminal.show(f"{state['name']}: {state['wanted']} of {state['model']} wanted, {state['policy']}", table)
    cold = next((replica for replica in state["replicas"] if replica["stages"]), None)
    if cold is not None:
        stages = ", ".join(f"{stage} {duration(seconds)}" for stage, seconds in cold["stages"].items())
        terminal.say(f"cold start of {cold['name']}: {stages}")
    if state["rolling"]:
        terminal.say("a roll is under way: each replica is replaced by a new one")
    scaler = state["autoscaler"]
    if scaler is not None:
        terminal.say(
            f"autoscaler: {scaler['signal']} is {scaler['value']:.2f}; out above {scaler['out_above']:g}, in below "
            f"{scaler['in_below']:g}; thrash {state['thrash']}"
        )
    for event in state["events"][-8:]:
        terminal.say(f"[dim]{terminal.literal(event_line(event))}[/]")


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
    reply = _ask(name, "drain", {"replica": replica})
    terminal.say(f"{reply['replica']} is {reply['state']}; wanted: {reply['wanted']}")


def roll(name: NameArgument = None) -> None:
    """Replace all replicas one at a time: start a new one, route to it, drain the old one. No request is lost.

    \b
    Example: prep fleet roll
    """
    old = _ask(name, "roll", {})["replaces"]
    if not old:
        terminal.say("no replica is ready: nothing to replace")
        return
    terminal.say(
        f"the fleet replaces {join_and(old)} in the background, one at a time; this command does not wait"
    )
    terminal.next_command("prep fleet status", "shows how far it is; its log ends with roll: done")


def down(name: NameArgument = None) -> None:
    """End a fleet; requests under way finish.

    \b
    Example: prep fleet down
    """
    from engine.fleet.folder import choose

    terminal.need_libraries("a fleet needs", LIBRARIES, "fleet", "serve")
    address = choose(name)
    state = _ask(name, "status")
    _ask(name, "down", {})
    load = sum(replica["load"] for replica in state["replicas"])
    with terminal.status(f"{state['name']} ends; {counted(load, 'request')} under way"):
        while address.is_alive:
            time.sleep(0.1)
    terminal.say(f"{state['name']} has ended")


def _ask(name: str | None, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    terminal.need_libraries("a fleet needs", LIBRARIES, "fleet", "serve")
    from engine.fleet.folder import ask, choose

    return ask(choose(name), path, body)


fleet = terminal.command_app(
    up, status, scale, drain, roll, down,
    help=HELP,
)  # fmt: skip
