"""The sentence that is shown while a question is open equals the sentence of a run that ends with the step."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from engine.trace.reader import TraceReader
from engine.trace.sentence import sentence
from tests.trace.trace_workloads import random_run

RECORDED = Path(__file__).resolve().parents[2] / "app" / "debugger" / "recorded"


def cut(path: Path, step: int, to: Path) -> TraceReader:
    """A copy of the trace that ends after a step."""
    kept = []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            kept.append(line)
            record = json.loads(line)
            if record["t"] == "step" and record["i"] == step:
                break
    with gzip.open(to, "wt", encoding="utf-8") as out:
        out.writelines(kept)
    return TraceReader(to)


@pytest.mark.parametrize("name", ["memory-pressure", "swap", "recompute", "priorities", "random"])
def test_a_sentence_without_a_look_ahead_is_that_of_the_run_so_far(name: str, tmp_path: Path) -> None:
    path = random_run(tmp_path / "run.itrace", 44).path if name == "random" else RECORDED / f"{name}.itrace"
    whole = TraceReader(path)
    steps = [step for step in range(whole.num_steps) if whole.step(step).preempted]
    assert steps and any(sentence(whole, step) != sentence(whole, step, ahead=False) for step in steps)
    for step in [*steps[:6], *range(0, whole.num_steps, 12)]:
        so_far = cut(path, step, tmp_path / f"{step}.itrace")
        assert sentence(whole, step, ahead=False) == sentence(so_far, step)
