"""Start `prep serve` and `prep gateway run` in processes of their own."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from engine.server.child_server import PREP, ChildServer
from prep_common.child_process import ROOT as ROOT


def start_server(stack: ExitStack, folder: Path, *options: str, port: int = 0) -> ChildServer:
    """Start `prep serve shop` with these options; return when it answers."""
    return _start(stack, folder, "/health", "serve", "shop", *options, port=port)


def start_gateway(stack: ExitStack, folder: Path, settings: Path) -> ChildServer:
    """Start a gateway; return when it listens."""
    return _start(stack, folder, "/gateway/state", "gateway", "run", str(settings))


def _start(stack: ExitStack, folder: Path, path: str, *words: str, port: int = 0) -> ChildServer:
    handle, name = tempfile.mkstemp(dir=folder)
    open(handle).close()
    server = ChildServer(
        PREP, args=words, name=f"prep {words[0]}", path=path, port=port, log=Path(name), wait=False
    )
    stack.callback(server.kill)
    server.wait_until_ready()
    return server
