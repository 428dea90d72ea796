"""Hooks for faults around a server: its neighbours, its ranks, its drafts and its clock."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

from engine.engine_core import EngineCore
from engine.exec import multiproc
from engine.server.ended_requests import EndedRequests
from engine.worker.speculator import Speculator
from interview.drills.faults import hook
from interview.drills.timed_rank import SlowRankWorker, TimedRankWorker

NEIGHBOUR = """
import os, sys, time
busy, every, parent = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
start = time.time()
while time.time() < start + 60 and os.getppid() == parent:
    time.sleep(every - time.time() % every)
    while time.time() % every < busy:
        pass
"""
"""A program that is busy for a part of each period, and ends with its parent, or after 60 s."""


@hook("core")
def shared_processor(busy_ms: float, every_ms: float, processes: int = 4, moved: bool = False) -> None:
    """Run the engine on the first processor, and there, at a higher priority, a program that is busy now and then.

    moved: the program runs on the last processor instead, which helps if there are two. busy_ms: 0 starts no program.
    processes: of the program.
    """
    processors = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if busy_ms:
        command = [
            sys.executable,
            "-c",
            NEIGHBOUR,
            str(busy_ms / 1000),
            str(every_ms / 1000),
            str(os.getpid()),
        ]
        for _ in range(processes):
            neighbour = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            if processors:
                os.sched_setaffinity(neighbour.pid, processors[-1:] if moved else processors[:1])
    if processors:
        os.sched_setaffinity(0, processors[:1])
    os.nice(19)


@hook("core")
def drafts_take(ms: float, shift: int = 0) -> None:
    """Let each draft token of a step take a time, as on a larger model, and add `shift` to the ids of all drafts.

    A shift stands for a draft model that was trained for another vocabulary.
    """
    step, propose = EngineCore.step, Speculator.propose
    proposed = [0]

    def counted(self: Speculator, *args: Any) -> dict[str, list[int]]:
        proposals = propose(self, *args)
        proposals = {
            name: [(token + shift) % self.vocab_size for token in drafts]
            for name, drafts in proposals.items()
        }
        proposed[0] = sum(map(len, proposals.values()))
        return proposals

    def slower(self: EngineCore) -> Any:
        time.sleep(ms * proposed[0] / 1000)
        proposed[0] = 0
        return step(self)

    Speculator.propose = counted  # type: ignore[method-assign,assignment]
    EngineCore.step = slower  # type: ignore[method-assign]


@hook("core")
def timed_ranks(slow: bool = False) -> None:
    """Let each rank write its own time; `slow`: rank 1 takes longer, as a GPU whose clock is throttled."""
    multiproc.RankWorker = SlowRankWorker if slow else TimedRankWorker  # type: ignore[misc]


@hook("server")
def skewed_clock(seconds: float) -> None:
    """Let the clock of the server's request log be wrong."""
    build = EndedRequests.__init__

    def built(self: EndedRequests, *args: Any, **options: Any) -> None:
        build(self, *args, **options)
        self._epoch += seconds

    EndedRequests.__init__ = built  # type: ignore[method-assign]
