"""A fleet of `prep fleet up` whose replicas compute a small model at the pace of a larger one.

    python -m app.bench.paced_fleet '{"step_ms": 15, "token_ms": 1}' FILE --port N    the fleet
    python -m app.bench.paced_fleet serve shop ... --port N                             a replica; the fleet starts it

A step takes `step_ms`, and `token_ms` for each token that it computes. The processor is free while the rest of that
time passes, as while a device computes. Scheduling, prefix cache, HTTP, gateway and processes are those of any fleet.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.fleet.config import read_settings
from engine.fleet.run import serve
from interview.drills.commands import HOOKS_VARIABLE
from interview.drills.faulty_server import run_prep

MODULE = "app.bench.paced_fleet"


@dataclass(frozen=True)
class Pace:
    """The duration of a step."""

    step_ms: float
    token_ms: float

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    def seconds(self, num_tokens: int) -> float:
        """Return the duration of a step that computes so many tokens."""
        return (self.step_ms + self.token_ms * num_tokens) / 1000


def main(arguments: list[str]) -> None:
    """Run the fleet, or one replica."""
    if arguments[0] == "serve":
        run_prep(arguments)
        return
    pace_json, file, _, port = arguments
    pace = Pace(**json.loads(pace_json))
    args = {"step_ms": pace.step_ms, "token_ms": pace.token_ms, "row_ms": pace.token_ms}
    os.environ[HOOKS_VARIABLE] = json.dumps([{"name": "pace", "args": args}])  # replicas inherit it
    settings = read_settings(Path(file)).model_copy(update={"port": int(port)})
    serve(settings, print, module=MODULE)


if __name__ == "__main__":
    main(sys.argv[1:])
