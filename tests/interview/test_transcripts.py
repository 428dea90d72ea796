"""No false praise: the machine's marks of labelled transcripts."""

from pathlib import Path

import pytest
import yaml

from interview.mock.assessment import assess
from interview.mock.scenario import AXES
from interview.mock.scenario_list import load_scenarios
from quizzes.experiments.runner import Runner
from tests.interview.transcripts import FOLDER, play

FILES = sorted(FOLDER.glob("*.yaml"))
SCENARIOS = load_scenarios()
LEAST = 60
SHARE = 0.95
"""Share of all marks that must lie within 1 of the label."""


def test_there_are_enough_and_all_levels_of_every_axis_are_labelled() -> None:
    labels = [yaml.safe_load(path.read_text(encoding="utf-8"))["labels"] for path in FILES]
    assert len(labels) >= LEAST
    for axis in AXES:
        seen = {label[axis] for label in labels if label[axis] is not None}
        assert {1, 3, 5} <= seen, (axis, seen)


@pytest.mark.slow
def test_marks_lie_within_one_of_the_labels(runner: Runner, results: Path) -> None:
    off, total = [], 0
    for path in FILES:
        transcript = yaml.safe_load(path.read_text(encoding="utf-8"))
        played = play(transcript, SCENARIOS, runner, results=results)
        marks = {mark.axis: mark for mark in assess(played.talk).marks}
        for axis, label in transcript["labels"].items():
            found = marks[axis].value
            if found is None or label is None:
                continue
            total += 1
            if abs(found - label) > 1:
                off.append(f"{path.stem}: {axis} is {found}, labelled {label}: {marks[axis].evidence}")
    assert total >= 3 * len(FILES)
    assert len(off) <= (1 - SHARE) * total, "\n".join(off)
