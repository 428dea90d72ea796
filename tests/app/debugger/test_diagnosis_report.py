"""The report of the section Diagnose says what the trees answered: a cause, candidates or nothing, with reasons."""

from __future__ import annotations

from html import escape

import pytest

from app.debugger.diagnosis.report import as_html
from engine.server.diagnosis.evidence import Evidence, load
from engine.server.diagnosis.verdict import diagnose
from tests.diagnosis.record import FOLDER


def recording(name: str) -> Evidence:
    return load(FOLDER / f"{name}.gz")


@pytest.mark.parametrize("name", ["caching_off", "kv_too_small", "queue_limit"])
def test_a_cause_has_its_evidence_its_runner_up_and_the_next_step(name: str) -> None:
    found = diagnose(recording(f"{name}.fault"), recording(f"{name}.healthy"))
    said = as_html(found)
    assert f"Cause: {found.cause}." in said and found.cause == name
    for text in (*found.evidence, found.next_step, found.excluded_by, *found.path[-1].replies):
        assert escape(text) in said
    assert f"Runner-up: {found.runner_up}" in said and "None" not in said


def test_a_healthy_server_has_nothing_wrong_and_every_cause_stands_in_the_tree() -> None:
    found = diagnose(recording("overload.healthy"), recording("overload.healthy"))
    said = as_html(found)
    assert "Nothing wrong" in said and "Cause:" not in said
    assert all(step.cause in said for step in found.path)


def test_candidates_are_named_with_the_look_that_tells_them_apart() -> None:
    names = (
        "caching_off",
        "kv_too_small",
        "overload",
        "seqs_too_low",
        "template_changed",
        "timestamp_at_head",
    )
    alone = [recording(f"{name}.fault") for name in names]
    answers = [diagnose(Evidence(each.looks, each.ended_at)) for each in alone]
    found = next(answer for answer in answers if answer.candidates)
    said = as_html(found)
    assert f"Candidates: {', '.join(found.candidates)}." in said and "tells them apart" in said
