"""Start `prep serve` and `prep gateway run` in processes of their own."""

from __future__ import annotations

import re
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from common.child_process import ChildProcess

ROOT = Path(__file__).resolve().parents[2]


class Served:
    """A running server."""

    def __init__(self, process: ChildProcess, url: str) -> None:
        self.process, self.url = process, url


def start_server(stack: ExitStack, folder: Path, *options: str) -> Served:
    """Start `prep serve shop` with these options; return when it answers."""
    return _start(stack, folder, "serve", "shop", "--port", "0", *options)


def start_gateway(stack: ExitStack, folder: Path, settings: Path) -> Served:
    """Start a gateway; return when it listens."""
    return _start(stack, folder, "gateway", "run", str(settings), "--port", "0")


def _start(stack: ExitStack, folder: Path, *words: str) -> Served:
    handle, name = tempfile.mkstemp(dir=folder)
    log = Path(name)
    with open(handle, "wb") as output:
        command = [sys.executable, "-m", "app.cli.main", *words]
        process = ChildProcess(command, name=f"prep {words[0]}", stderr=output, cwd=ROOT)
    stack.callback(process.kill)
    while (found := re.search(r"http://127.0.0.1:\d+", log.read_text())) is None:
        assert process.is_running, log.read_text()
        time.sleep(0.05)
    return Served(process, found[0])
