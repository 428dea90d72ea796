"""Functions that tests run inside workers with `collective_rpc`."""

from __future__ import annotations

import os
import signal

from engine.core.sched_output import Scheduled, SchedulerOutput
from engine.worker.model_input import ModelInput
from engine.worker.worker import Worker


def pid(_worker: Worker) -> int:
    return os.getpid()


def threads(_worker: Worker) -> str:
    return os.environ["OMP_NUM_THREADS"]


def watch_rows(worker: Worker) -> None:
    """From here on, remember the rows of every batch in their order."""
    inputs = worker.runner._inputs
    build = inputs.build
    worker.seen_rows = []

    def remember(rows: list[Scheduled], *rest: object) -> ModelInput:
        batch = build(rows, *rest)
        order = [(row.request_id, row.start, row.num_tokens) for row in batch.rows]
        worker.seen_rows.append((order, batch.input_ids.tolist()))
        return batch

    inputs.build = remember


def seen_rows(worker: Worker) -> list[object]:
    return worker.seen_rows


def traffic(worker: Worker) -> dict[str, dict[str, int]]:
    return {
        "tensor": dict(worker.ranks.tensor.traffic.calls),
        "pipeline": dict(worker.ranks.pipeline.traffic.calls),
    }


def held(worker: Worker) -> tuple[int, int]:
    """State slots in use, and layers of this worker's KV cache."""
    return len(worker.runner.state.slot_of), worker.local_config.num_hidden_layers


def arm(worker: Worker, rank: int, what: str) -> None:
    """Let one rank die or fail in its next step."""
    if worker.ranks.tensor.rank != rank:
        return

    def disaster(_out: SchedulerOutput, _bitmask: object = None) -> None:
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ArithmeticError("planted")

    worker.execute = disaster
