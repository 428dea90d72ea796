"""A fork is the real scheduler on a recorded workload: nothing changed gives the recorded run, to the block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.core.trace_fork import ForkResult, fork
from engine.core.trace_reader import TraceReader
from tests.core.fork_workloads import crowded_run, first_difference
from tests.core.trace_workloads import random_run


def forked(reader: TraceReader, folder: Path, **options: Any) -> tuple[ForkResult, TraceReader]:
    result = fork(reader, folder / "fork.itrace", **options)
    return result, TraceReader(result.path)


def assert_is_the_recorded_run(a: TraceReader, folder: Path, at: int) -> None:
    result, b = forked(a, folder, at=at)
    assert result.failure is None
    assert (b.problems, b.warnings) == ([], []), "the fork's own checks"
    assert first_difference(a, b) == ""
    assert a.workload_hash == b.workload_hash


@pytest.mark.parametrize("first_seed", range(0, 60, 20))
def test_nothing_changed_is_the_recorded_run_block_for_block(tmp_path: Path, first_seed: int) -> None:
    """Priorities, chunks, prefix hits, preemptions, host tiers, windows, drafts, aborts at any moment, reused names."""
    for seed in range(first_seed, first_seed + 20):
        run = random_run(tmp_path / "run.itrace", seed)
        assert_is_the_recorded_run(TraceReader(run.path), tmp_path, at=0)


@pytest.mark.parametrize("first_seed", range(0, 90, 30))
def test_so_it_is_among_adapters_lookahead_errors_and_interrupts(tmp_path: Path, first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 30):
        reader = crowded_run(tmp_path / "run.itrace", seed)
        assert_is_the_recorded_run(reader, tmp_path, at=reader.num_steps // 2)
