"""The two sides of an upgrade check: a running server, a command, a checkout, or a git ref of this repository.

    http://127.0.0.1:8000      a running server; its memory is unknown
    "command: vllm serve M"    started here, with --port added
    ../prep-next               a checkout: `prep serve` of its sources, with this Python
    v0.1.0, HEAD~3             a commit of this repository, unpacked into a temporary folder

The commit is unpacked by `git archive`, not as a worktree: however the check ends, the repository knows nothing of it.
"""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from app.bench.sides.server_side import flags
from engine.config import ConfigError
from engine.server.child_server import ChildServer
from prep_common.child_process import ROOT

PATIENCE_S = 300.0
"""A checkout with other kernels compiles them at its start."""
COMMAND = "command:"
URLS = ("http://", "https://")
GIT = ("git", "-C", str(ROOT))


@dataclass(frozen=True)
class Target:
    """A side as the user named it."""

    text: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Options of `prep serve` for this side, with underscores."""

    def __str__(self) -> str:
        options = " ".join(f"{name}={value}" for name, value in self.settings.items())
        return f"{self.text} {options}".rstrip()


@dataclass(frozen=True)
class RunningSide:
    """A server that answers."""

    name: str
    url: str
    pid: int | None = None
    """None: it runs elsewhere."""

    def peak_bytes(self) -> int | None:
        """Return the peak memory of its processes, summed; None for a server that was not started here."""
        if self.pid is None:
            return None
        process = psutil.Process(self.pid)
        return sum(_peak_of(p) for p in (process, *process.children(recursive=True)))


def _peak_of(process: psutil.Process) -> int:
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):  # no /proc, or the process is ending
        return int(process.memory_info().rss) if process.is_running() else 0


def start_side(stack: ExitStack, target: Target, model: str) -> RunningSide:
    """Start a side, or find it running; leaving `stack` ends what was started.

    Raises:
        ConfigError: the target is none of the four kinds, or its settings cannot be applied.
        ProcessEnded: the server ended, or does not answer in time.
    """
    check_target(target)
    text = target.text
    if text.startswith(URLS):
        return RunningSide(text, text.rstrip("/").removesuffix("/v1"))
    folder: Path | None = None
    if text.startswith(COMMAND):
        command = shlex.split(text.removeprefix(COMMAND))
    else:
        folder = checkout_of(stack, text)
        command = [sys.executable, "-m", "app.cli.main", "serve", model]
    log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prep-upgrade-"))) / "log"
    server = ChildServer(
        [*command, *flags(dict(target.settings))],
        name=f"the server of {target}",
        log=log,
        patience_s=PATIENCE_S,
        wait=False,
        cwd=folder,
        environment={} if folder is None else {"PYTHONPATH": str(folder)},
    )
    stack.callback(server.close)
    server.wait_until_ready(PATIENCE_S)
    return RunningSide(str(target), server.url, server.pid)


def check_target(target: Target) -> None:
    """Raise ConfigError if the target is none of the four kinds, or its settings cannot be applied."""
    text = target.text
    if text.startswith(URLS):
        if target.settings:
            raise ConfigError(f"{text} is a running server: its settings cannot be changed from here")
    elif text.startswith(COMMAND):
        if not text.removeprefix(COMMAND).strip():
            raise ConfigError(f"{COMMAND!r} needs a command, such as '{COMMAND} vllm serve MODEL'")
    else:
        _folder_or_commit(text)


def checkout_of(stack: ExitStack, text: str) -> Path:
    """Return the folder of a checkout, or of a commit that is unpacked for the time of `stack`."""
    source = _folder_or_commit(text)
    if isinstance(source, Path):
        return source
    unpacked = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prep-upgrade-")))
    archive = subprocess.run([*GIT, "archive", source], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(unpacked, filter="data")
    return unpacked


def _folder_or_commit(text: str) -> Path | str:
    """Return the folder of a checkout, or the id of a commit. Raises ConfigError."""
    folder = Path(text).expanduser()
    if folder.is_dir():
        if not (folder / "app" / "cli" / "main.py").is_file():
            raise ConfigError(f"{text} is a folder but not a checkout of prep: it has no app/cli/main.py")
        return folder.resolve()
    result = subprocess.run(
        [*GIT, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}"],
        capture_output=True,
        text=True,
    )
    if result.returncode != 0:
        kinds = "a URL, 'command: ...', a checkout's folder or a git ref of this repository"
        raise ConfigError(f"{text!r} is none of: {kinds}")
    return result.stdout.strip()
