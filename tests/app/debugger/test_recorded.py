"""The runs that ship are the engine's, and the catalogue says of them what is so."""

from __future__ import annotations

import json
import os
import re
from base64 import b64decode
from pathlib import Path
from xml.etree import ElementTree

import pytest

from app.debugger import colours
from app.debugger.catalogue import Look, glance, load_catalogue
from app.debugger.recorded.scenes import SCENES
from app.debugger.runs import RECORDED, list_runs, open_run
from app.debugger.views.phases import phases
from engine.trace.reader import TraceReader
from quizzes.topics import TOPICS

CHEAP = "first-steps"


def test_every_scene_is_recorded_and_in_the_catalogue() -> None:
    assert list(load_catalogue()) == list(SCENES)
    assert {path.stem for path in RECORDED.glob("*.itrace")} == set(SCENES)
    assert len(SCENES) >= 10


@pytest.mark.parametrize("run_id", SCENES)
def test_a_recorded_run_is_sound_complete_and_small(run_id: str) -> None:
    reader = TraceReader(RECORDED / f"{run_id}.itrace")
    assert reader.problems == [] and reader.warnings == [] and reader.is_complete
    assert reader.path.stat().st_size < 150 * 1024
    assert all(request.ended is not None for request in reader.requests)


@pytest.mark.parametrize("run_id", SCENES)
def test_a_recording_says_nothing_of_the_machine_it_was_made_on(run_id: str) -> None:
    header = TraceReader(RECORDED / f"{run_id}.itrace").header
    assert header["model"] == "shop"
    assert "/" not in json.dumps({**header["config"], "code_rev": header["code_rev"]}, default=str)


@pytest.mark.parametrize("entry", load_catalogue().values(), ids=lambda entry: entry.id)
def test_what_to_look_at_happens(entry: object) -> None:
    found = load_catalogue()[entry.id]
    assert found.look.step(open_run(found.id).index) is not None
    assert set(found.topics) <= set(TOPICS)


def test_a_place_is_named_by_one_thing() -> None:
    for wrong in (
        {},
        {"event": "preempt", "reason": "no_blocks"},
        {"event": "preempt", "nth": 0},
        {"event": "boom"},
    ):
        with pytest.raises(ValueError):
            Look.model_validate(wrong)


def test_the_figures_of_a_run_are_those_of_its_steps() -> None:
    found, reader = glance(open_run("memory-pressure")), open_run("memory-pressure").reader(0)
    steps = [reader.step(step) for step in range(reader.num_steps)]
    assert found.counts["step"] == len(steps)
    assert found.counts["preemption"] == sum(len(step.preempted) for step in steps) > 0
    assert found.min_free_blocks == min(step.num_free_blocks for step in steps)
    assert found.step == next(step.step for step in steps if step.preempted)


def test_the_picture_of_a_run_has_a_bar_for_every_phase_and_a_mark_for_every_preemption() -> None:
    index = open_run("memory-pressure").index
    source = re.search(r"base64,([^\"]+)", glance(open_run("memory-pressure")).picture)
    assert source is not None
    drawing = b64decode(source[1]).decode()
    spans = [span.phase for request in index.requests for span in phases(index, request)]
    assert drawing.count("<rect") == sum(phase != "waiting" for phase in spans)
    assert drawing.count(colours.PREEMPTED) >= len(index.event_steps("preempt")) == 2
    ElementTree.fromstring(drawing)


def test_swapping_and_recomputing_are_the_same_customers() -> None:
    runs = [open_run(name).reader(0) for name in ("recompute", "swap")]
    assert len({run.workload_hash for run in runs}) == 1
    recomputed, swapped = (sum(run.series.num_tokens) for run in runs)
    assert swapped < recomputed


@pytest.mark.parametrize(
    "run_id", [CHEAP, *(pytest.param(name, marks=pytest.mark.slow) for name in SCENES if name != CHEAP)]
)
def test_recording_again_makes_the_same_decisions(
    run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.debugger.recorded.record import record

    monkeypatch.chdir(tmp_path)
    again = Path(f"{run_id}.itrace")
    record(SCENES[run_id](), again)
    assert _decisions(again) == _decisions(RECORDED / again.name)


def _decisions(path: Path) -> list[dict[str, object]]:
    """Every record without clocks and without what depends on machine and checkout."""
    reader = TraceReader(path)
    left_out = ("time_s", "duration_s")
    steps = [reader.step(step).__dict__ for step in range(reader.num_steps)]
    return [{name: value for name, value in step.items() if name not in left_out} for step in steps]


def test_own_runs_come_after_those_that_ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    (tmp_path / "runs").mkdir()
    os.link(RECORDED / "swap.itrace", tmp_path / "runs" / "mine.itrace")
    assert [entry.run_id for entry in list_runs()] == [*sorted(SCENES), "mine:mine"]
