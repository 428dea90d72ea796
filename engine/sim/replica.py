"""One engine as a member of a fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.sim.engine import SimEngine


@dataclass(eq=False)
class Replica:
    """One engine and its state in the fleet."""

    index: int
    engine: SimEngine
    state: Literal["starting", "ready", "draining", "stopped"] = "ready"
    started: float = 0.0
    """Time from which the replica is billed."""
    ready_at: float = 0.0
    stopped: float | None = None
    num_requests: int = 0


@dataclass
class ReplicaReport:
    index: int
    num_requests: int
    output_tokens: int
    prefix_cache_hit_rate: float
    busy_seconds: float
    preemptions: int
    started: float
    stopped: float | None


def replica_report(replica: Replica) -> ReplicaReport:
    recorder = replica.engine.recorder
    return ReplicaReport(
        replica.index,
        replica.num_requests,
        recorder.num_generated_tokens,
        recorder.prefix_hits / recorder.prefix_queries if recorder.prefix_queries else 0.0,
        recorder.step_seconds,
        recorder.num_preemptions,
        replica.started,
        replica.stopped,
    )
