"""A server and its client as one side of a comparison: what HTTP costs, `prep bench throughput --against server`.

The server is a child of this process, which sends it the requests as streams. `engine["server"]` is the command that
starts it. Processor time of this side includes the client's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import httpx
import uvloop

from app.bench.sides.side_protocol import serve
from engine.server.child_server import ChildServer
from engine.server.load_client import Due, Load, Objective
from engine.sim.report import percentiles
from prep_common.child_process import ProcessEnded

PATIENCE_S = 600.0
"""vLLM compiles the model at its start."""


class Server:
    """A server with vLLM's flags, driven over HTTP."""

    def __init__(self, model: str, engine: dict[str, Any]) -> None:
        command = [*engine.pop("server"), model, "--served-model-name", "it", *flags(engine)]
        try:
            self._server = ChildServer(command, name="the server", patience_s=PATIENCE_S, own_group=False)
        except ProcessEnded as error:
            raise SystemExit(str(error)) from None
        self._url = self._server.url

    def describe(self) -> dict[str, Any]:
        version = httpx.get(f"{self._url}/version").json()["version"]
        return {"engine": f"server {version}", "torch": "", "device": "cpu", "threads": 0}

    def generate(self, prompts: list[list[int]], max_tokens: list[int]) -> list[int]:
        """Stream all completions at once; return the output lengths."""
        return uvloop.run(self._generate(prompts, max_tokens))

    async def _generate(self, prompts: list[list[int]], max_tokens: list[int]) -> list[int]:
        load = Load(self._url, "", "it", Objective(), PATIENCE_S)
        await load.run(Due(0.0, prompt, length) for prompt, length in zip(prompts, max_tokens, strict=True))
        gaps = percentiles([gap for request in load.sent for gap in request.gaps])
        self._itl_p99 = gaps.p99 if gaps else None
        return [request.num_tokens for request in load.sent]

    def itl_p99(self, prompts: list[list[int]], max_tokens: list[int]) -> dict[str, Any]:
        """Return the 99th percentile of the last round's times between chunks."""
        return {"seconds": self._itl_p99}


def flags(engine: dict[str, Any]) -> list[str]:
    """Return engine arguments as options of `prep serve` and `vllm serve`."""
    options = []
    for name, value in engine.items():
        flag = name.replace("_", "-")
        options += (
            [f"--{flag}" if value else f"--no-{flag}"]
            if isinstance(value, bool)
            else [f"--{flag}", str(value)]
        )
    return options


if __name__ == "__main__":
    serve(Server)
