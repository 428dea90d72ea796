"""The requests that use adapter slots, read from a trace: as the scheduler counted them when it decided."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.core.sched_output import NotScheduled, Reason
from engine.trace.adapters import adapter_of, slot_users
from engine.trace.reader import TraceReader
from engine.trace.why import why
from tests.seeds import seeds
from tests.trace.fork_workloads import crowded_run

RECORDED = Path(__file__).parents[2] / "app" / "debugger" / "recorded" / "lora.itrace"


def waits(reader: TraceReader) -> list[tuple[int, NotScheduled]]:
    steps = reader.steps_with(Reason.NO_LORA_SLOT)
    return [
        (step, entry)
        for step in steps
        for entry in reader.reasons(step)
        if entry.reason is Reason.NO_LORA_SLOT
    ]


@pytest.mark.parametrize("seed", seeds(12))
def test_every_slot_has_users_while_a_request_waits_for_one(tmp_path: Path, seed: int) -> None:
    """Those of the trace are at least those that the scheduler counted; later ones of the step join adapters on the
    device."""
    reader = crowded_run(tmp_path / "run.itrace", seed)
    for step, entry in waits(reader):
        assert entry.request_id is not None
        users = slot_users(reader, reader.step(step))
        assert len(users) == entry.details["slots"]
        assert sum(map(len, users.values())) >= entry.details["running"] >= len(users)


def test_the_workloads_have_waits_for_slots(tmp_path: Path) -> None:
    assert sum(bool(waits(crowded_run(tmp_path / f"{seed}.itrace", seed))) for seed in range(12)) >= 2


def test_why_names_the_holder_of_the_slot_and_both_adapters() -> None:
    reader = TraceReader(RECORDED)
    for step, entry in waits(reader):
        name = str(entry.request_id)
        [(_, holders)] = slot_users(reader, reader.step(step)).items()
        own, theirs = (adapter_of(reader.find(each)) for each in (name, holders[0]))
        sentence = why(reader, name, step).sentence
        assert all(each in sentence for each in (name, own, *holders, theirs))
        assert ("is closed: a request that has waited for longer gets it next" in sentence) == (own == theirs)
        assert "1 requests" not in sentence and "1 running" not in sentence


def test_the_base_model_uses_no_slot() -> None:
    reader = TraceReader(RECORDED)
    assert adapter_of(reader.find("ana-base")) == ""
    named = {
        name
        for step in range(reader.num_steps)
        for each in slot_users(reader, reader.step(step)).values()
        for name in each
    }
    assert named == {request.request_id for request in reader.requests if request.record["lora"]}
