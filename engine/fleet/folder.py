"""The folder of a running fleet: its address and key, and the logs of its replicas. It goes when the fleet ends.

DATA/fleets/NAME/fleet.json     {"pid", "url", "key"}, readable by this user only
DATA/fleets/NAME/r1.log         output of a replica
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from engine.config import ConfigError
from prep_common.child_process import ChildProcess
from prep_common.paths import data_dir


@dataclass(frozen=True)
class Address:
    """Address and key of a running fleet."""

    pid: int
    started: float
    """Start of the process, which tells it from a later one with its id."""
    url: str
    key: str

    @property
    def is_alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            is_same = abs(process.create_time() - self.started) < 1
            return is_same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


@contextmanager
def state_folder(name: str, url: str, key: str) -> Iterator[Path]:
    """Create the folder; remove it at the end, also if this process is killed. Raises ConfigError if a fleet has it."""
    folder = data_dir() / "fleets" / name
    known = find(name)
    if known is not None:
        raise ConfigError(
            f"fleet {name!r} runs already (process {known.pid}); prep fleet down {name}   ends it"
        )
    address = Address(os.getpid(), psutil.Process().create_time(), url, key)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Whole at once: `find` takes a folder without an address for a dead fleet's, and removes it.
    prepared = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
    with open(os.open(prepared / "fleet.json", os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        json.dump(asdict(address), file)
    try:
        prepared.rename(folder)
    except OSError:  # another fleet was faster
        shutil.rmtree(prepared)
        raise ConfigError(f"fleet {name!r} starts already; prep fleet status {name}   shows it") from None
    streams: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    with ChildProcess("engine.fleet.janitor", args=[str(folder)], name="the janitor", **streams):
        yield folder


def find(name: str) -> Address | None:
    """Return the running fleet of a name; remove what a dead one has left."""
    folder = data_dir() / "fleets" / name
    try:
        address = Address(**json.loads((folder / "fleet.json").read_text()))
    except (OSError, ValueError, TypeError):
        address = None
    if address is None or not address.is_alive:
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return address


def running() -> dict[str, Address]:
    """Return all running fleets of this user by name."""
    root = data_dir() / "fleets"
    names = sorted(path.name for path in root.glob("[!.]*"))
    return {name: address for name in names if (address := find(name)) is not None}


def choose(name: str | None) -> Address:
    """Return the fleet of a name, or the only running one. Raises ConfigError."""
    fleets = running()
    names = ", ".join(fleets) or "none"
    if name is not None and name not in fleets:
        raise ConfigError(f"no fleet {name!r} runs; running: {names}; prep fleet up FILE   starts one")
    if name is None and len(fleets) != 1:
        which = "name one" if fleets else "prep fleet up FILE   starts one"
        raise ConfigError(f"running fleets: {names}; {which}")
    return fleets[name] if name is not None else next(iter(fleets.values()))


def ask(address: Address, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ask a fleet, by POST if there is a body. Raises ConfigError if it refuses or does not answer."""
    try:
        response = httpx.request(
            "GET" if body is None else "POST", f"{address.url}/fleet/{path}", json=body,
            headers={"Authorization": f"Bearer {address.key}"}, timeout=30,
        )  # fmt: skip
        answer = response.json()
    except (httpx.HTTPError, ValueError) as error:
        raise ConfigError(f"the fleet at {address.url} does not answer: {type(error).__name__}") from None
    if response.status_code != 200:
        raise ConfigError(str(answer.get("error", {}).get("message", response.text)))
    return dict(answer)
