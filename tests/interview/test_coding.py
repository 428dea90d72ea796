"""Coding rounds: exercises, labs and programs to repair behind one interface."""

import pytest
from pydantic import ValidationError

from interview.mock import coding
from interview.mock.report.markdown import command
from interview.mock.scenario import Code
from interview.mock.scenario_list import load_scenarios
from quizzes.topics import ROLES

SCENARIOS = load_scenarios()
CODES = [
    step.code
    for name in SCENARIOS.entries
    for step in SCENARIOS.scenario(name).steps
    if step.code is not None
]


def test_every_role_has_a_coding_round_and_three_rounds_are_labs() -> None:
    assert {entry.role for entry in SCENARIOS if entry.kind == "coding"} == set(ROLES)
    assert sum(code.lab is not None for code in CODES) >= 3
    assert any(code.exercise for code in CODES) and any(code.program for code in CODES)


def test_names_of_files_differ() -> None:
    names = {coding.name_of(code) for code in CODES}
    assert len(names) == len({code.model_dump_json() for code in CODES})
    assert all(name.isidentifier() for name in names)


def test_a_lab_begins_as_its_stub_and_our_solution_passes() -> None:
    code = Code(lab="router-affinity")
    begun = coding.check(code, coding.start(code))
    assert not begun.passed and begun.lines
    done = coding.check(code, coding.solution(code))
    assert done.all_pass, done.failed
    assert len(done.passed) >= 8


@pytest.mark.parametrize("given", [{}, {"lab": "swap-tier", "exercise": "07.1"}, {"lab": "../labs"}])
def test_a_round_names_exactly_one_program(given: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        Code(**given)


def test_a_gap_may_lead_to_a_lab() -> None:
    assert command("rate-limiter") == "prep lab new rate-limiter"
    assert command("scheduling.no_phases") == "prep quiz --question scheduling.no_phases"
