"""A server of a drill: `prep serve` with a log of its steps and with hooks: its pace and, in a faulty one, the fault.

    python -m interview.drills.faulty_server FOLDER NAME -- serve shop --max-num-seqs 8 --port 8000

The environment variable HOOKS_VARIABLE has the hooks, as JSON: [{"name": "abort_leaks_blocks", "args": {}}]. They are
no argument, because a learner runs `ps`. A hook patches this process or the engine's process, so no other code knows
of faults. FOLDER gets NAME.steps. When stdin ends, which a parent cannot prevent by being killed, the folder and all
processes of the server are gone.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from threading import Thread
from typing import Any

from engine.core.sched_output import EngineCoreOutput
from engine.core.stats import StepStats
from engine.exec import core_process
from engine.outputs import RequestOutput
from engine.server import run
from engine.server.child_server import PREP
from engine.server.request_log import RequestLog
from interview.drills import faults

KEPT = [
    field.name for field in fields(StepStats) if field.name.startswith("num_") and "per_pos" not in field.name
] + ["step", "kv_cache_usage", "prefix_cache_queries", "prefix_cache_hits"]
EMPTY_S = 0.1
"""Steps without a token are counted in one line per so many seconds."""


class StepLog(RequestLog):
    """The request log, and beside it a file with a line per step."""

    steps_file: Path

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._num_empty, self._told = 0, 0.0
        self._steps = self.steps_file.open("a", buffering=1, encoding="utf-8")

    def step(
        self,
        stats: StepStats | None,
        when: float,
        core_outputs: Sequence[EngineCoreOutput],
        outputs: Sequence[RequestOutput],
    ) -> None:
        super().step(stats, when, core_outputs, outputs)
        if stats is None:
            return
        self._num_empty += not stats.num_scheduled_tokens
        if stats.num_scheduled_tokens or when - self._told > EMPTY_S:
            self._told = when
            entry = {name: value for name in KEPT if (value := getattr(stats, name))}
            entry |= {"when": when, "empty": self._num_empty}
            self._num_empty = 0
            self._steps.write(json.dumps(entry, separators=(",", ":")) + "\n")

    def close(self) -> None:
        super().close()
        self._steps.close()


def main(folder: str, name: str, arguments: list[str]) -> None:
    """Apply the hooks of the environment, then run `prep` with the arguments."""
    Thread(target=_end_with_parent, args=[folder], daemon=True).start()
    StepLog.steps_file = Path(folder) / f"{name}.steps"
    run.RequestLog = StepLog  # type: ignore[misc]
    run_prep(arguments)


def run_prep(arguments: list[str]) -> None:
    """Run `prep` in this process, with the hooks of the environment here and in the engine's process."""
    faults.apply("server")
    start = core_process.PipeChild

    def faulty_child(module: str, **options: Any) -> Any:
        mine = "interview.drills.faulty_core"
        return start(mine if module == core_process.__name__ else module, **options)

    core_process.PipeChild = faulty_child  # type: ignore[assignment,misc]
    sys.argv = ["prep", *arguments]
    runpy.run_module(PREP, run_name="__main__")


def _end_with_parent(folder: str) -> None:
    """Wait until stdin ends, then remove the folder and kill this process group."""
    while os.read(0, 1 << 16):
        pass
    while Path(folder).exists():  # a sibling may write into it until it ends, too
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.01)
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[4:])
