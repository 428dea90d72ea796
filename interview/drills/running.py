"""Run a stage: start its servers, send the load, collect what they tell, end them.

All of it happens on 127.0.0.1 and ends with this process, however that ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvloop
import yaml

from engine.config import ConfigError
from engine.gateway.config import GatewaySettings
from engine.server.child_server import ChildServer
from engine.server.load_client import Due, Load, Objective, Sent
from engine.server.scrape import Activity, Scrape
from interview.drills import drill as files
from interview.drills.commands import HOOKS_VARIABLE, arguments, commands
from interview.drills.work import requests
from prep_common.child_process import ROOT, ProcessEnded
from prep_common.paths import data_dir

EVERY_S = 0.25
"""Seconds between two scrapes."""
GRACE_S = 4.0
"""Seconds after the last arrival for answers to end."""
START_S = 6.0
"""Usual time for a server to start."""
LOG_LINES = 12

Tell = Callable[[str], None]


@dataclass
class Record:
    """The data of a run, from which looks and figures are made."""

    sent: list[Sent]
    due: list[Due]
    seconds: float
    """From the first arrival to the last answer."""
    began: float
    """Time of day of the first arrival."""
    total: Activity
    """Between the scrapes before and after the load."""
    samples: list[Activity]
    """One per scrape, since the one before."""
    more: dict[str, float]
    """Growth of all other values of /metrics."""
    steps: list[list[dict[str, Any]]] = field(default_factory=list)
    """Per server."""
    log: list[list[dict[str, Any]]] = field(default_factory=list)
    """Request log per server."""
    last_lines: str = ""
    commands: list[str] = field(default_factory=list)


class Rig:
    """The servers of a stage, running."""

    def __init__(self, urls: list[str], entry: str, folder: Path, commands: list[str]) -> None:
        self.urls, self.entry, self.folder, self.commands = urls, entry, folder, commands

    def paths(self, ending: str) -> list[Path]:
        """Return the file of each server with this ending: requests, steps or log."""
        return [self.folder / f"{number}.{ending}" for number in range(len(self.urls))]

    def logs(self, ending: str) -> list[list[dict[str, Any]]]:
        """Return the lines of a log, per server. A line under way is left out."""
        logs = []
        for path in self.paths(ending):
            lines: list[dict[str, Any]] = []
            for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
                with suppress(ValueError):
                    lines.append(json.loads(line))
            logs.append(lines)
        return logs

    def last_lines(self) -> str:
        """Return the end of the first server's output, without the lines of its start."""
        lines = (self.folder / "0.log").read_text(encoding="utf-8", errors="replace").splitlines()
        kept = [line for line in lines if line.strip() and "interview.drills" not in line]
        return "\n".join(kept[-LOG_LINES:])


@contextmanager
def started(stage: files.Stage) -> Iterator[Rig]:
    """Start the servers of a stage, and its gateway. Raises ProcessEnded if one does not start."""
    with (
        tempfile.TemporaryDirectory(prefix="prep-drill-", ignore_cleanup_errors=True) as name,
        ExitStack() as stack,
    ):
        folder = Path(name)
        hooks = [{"name": "pace", "args": stage.pace.model_dump()}]
        if stage.hook is not None:
            hooks.append(stage.hook.model_dump())
        servers = []
        for number in range(stage.replicas):
            own = hooks
            if stage.last is not None and stage.last.hook and number == stage.replicas - 1:
                own = [*hooks, stage.last.hook.model_dump()]
            visible = arguments(stage, number)
            more = ["--request-log", str(folder / f"{number}.requests"), "--stats-interval", "1"]
            args = [name, str(number), "--", *visible, *more]
            servers.append(stack.enter_context(_child(folder / f"{number}.log", args, own)))
        for server in servers:
            server.wait_until_ready()
        urls = [server.url for server in servers]
        entry = urls[0]
        if stage.gateway is not None:
            backends = [{"name": f"r{number}", "url": url} for number, url in enumerate(urls)]
            for backend, more_of_it in zip(backends, stage.gateway.get("backends", []), strict=False):
                backend |= more_of_it
            settings = {**stage.gateway, "backends": backends}
            GatewaySettings.model_validate(settings)
            file = folder / "gateway.yaml"
            file.write_text(yaml.safe_dump(settings), encoding="utf-8")
            args = [name, "gateway", "--", "gateway", "run", str(file)]
            gateway = stack.enter_context(_child(folder / "gateway.log", args, []))
            gateway.wait_until_ready()
            entry = gateway.url
        yield Rig(urls, entry, folder, commands(stage))


def _child(log: Path, args: list[str], hooks: list[dict[str, Any]]) -> ChildServer:
    """Start a server that ends as soon as its stdin is closed, after it has removed the folder.

    It watches stdin itself, so it is a whole command: `ChildServer` would let a module end at once.
    """
    return ChildServer(
        [sys.executable, "-m", "interview.drills.faulty_server", *args],
        name="the server of the drill",
        cwd=ROOT,
        log=log,
        wait=False,
        environment={HOOKS_VARIABLE: json.dumps(hooks)},
        stdin=subprocess.PIPE,
        stop_signal=None,
    )


def run(stage: files.Stage, load: files.Load, tell: Tell = lambda text: None) -> Record:
    """Start the stage, send the load once, and return what was seen.

    Raises ConfigError if a server does not start, or while the servers of another drill run: both would be slower.
    """
    tell(f"starting, about {START_S:.0f} s")
    try:
        with _alone(), started(stage) as rig:
            record = uvloop.run(watched(rig, load, tell))
            record.steps, record.log = rig.logs("steps"), rig.logs("requests")
            record.last_lines, record.commands = rig.last_lines(), rig.commands
            return record
    except ProcessEnded as error:
        raise ConfigError(f"the server does not start: {error}") from None


@contextmanager
def _alone() -> Iterator[None]:
    """Hold the lock of runs. Raises ConfigError while another process holds it."""
    with ExitStack() as stack:
        with suppress(OSError):  # a full disk, or a file system without locks
            folder = data_dir() / "drills"
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((folder / "running.lock").open("a", encoding="utf-8"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    "the servers of another drill are running, and two drills would slow each other down; "
                    "try again in a minute"
                ) from None
        yield


async def watched(rig: Rig, load: files.Load, tell: Tell = lambda text: None) -> Record:
    """Send the load to a running stage, beside regular scrapes. The record has no logs."""
    due = requests(load)
    asks = any(group.questions for group in load.groups.values())
    client = Load(rig.entry, "", None, Objective(), timeout_s=30.0, keeps_choices=asks)
    async with httpx.AsyncClient(timeout=5.0) as scraper:
        scrapes = [await _scrape(scraper, rig.urls)]

        async def watch() -> None:
            while True:
                await asyncio.sleep(EVERY_S)
                with suppress(httpx.HTTPError, ValueError):
                    scrapes.append(await _scrape(scraper, rig.urls))
                report = client.report()
                left = max(0.0, load.seconds - report.seconds)
                tell(
                    f"load: {report.num_sent} of {len(due)} sent, {report.num_running} unanswered, {left:.0f} s left"
                )

        watching = asyncio.create_task(watch())
        began, start = time.time(), time.monotonic()
        try:
            async with asyncio.timeout(load.seconds + GRACE_S):
                await client.run(due)
        except TimeoutError:
            pass  # the rest is unanswered
        except httpx.HTTPError as error:
            raise ConfigError(f"the server stopped answering: {error or type(error).__name__}") from None
        finally:
            watching.cancel()
        seconds = time.monotonic() - start
        await asyncio.sleep(EVERY_S)  # for the last step's figures
        with suppress(httpx.HTTPError, ValueError):
            scrapes.append(await _scrape(scraper, rig.urls))
    first, last = scrapes[0], scrapes[-1]
    pairs = zip(scrapes, scrapes[1:], strict=False)
    samples = [Activity.between(before, after) for before, after in pairs]
    more = {name: value - first.values.get(name, 0.0) for name, value in last.values.items()}
    more |= {f"ended_{name}": number - first.ended.get(name, 0.0) for name, number in last.ended.items()}
    return Record(client.sent, due, seconds, began, Activity.between(first, last), samples, more)


async def _scrape(client: httpx.AsyncClient, urls: list[str]) -> Scrape:
    """Return the figures of all servers together."""
    answers = await asyncio.gather(*(client.get(f"{url}/metrics") for url in urls))
    return Scrape.of("".join(answer.text for answer in answers))
