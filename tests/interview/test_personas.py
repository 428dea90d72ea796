"""Personas and attackers hold whole sessions; what the rubric implies about their order."""

import pytest

from quizzes.experiments.runner import Runner
from tests.interview.helpers import start
from tests.interview.personas import EVERY_NAME, TICKED, person, violations


@pytest.mark.parametrize("name", EVERY_NAME)
def test_a_persona_holds_a_session_and_only_estimates_outside_their_interval_are_refused(
    name: str, runner: Runner
) -> None:
    with start(name) as session:
        held = person(name, session, runner)
        held.hold()
        assert session.is_over
        assert len(session.past) > 10
        assert not held.refused or name == "outside"


def test_the_ticker_says_28_words() -> None:
    assert len(TICKED.split()) == 28


@pytest.mark.slow
def test_in_a_real_scenario_no_attacker_is_above_weak_and_honesty_is_not_below_a_bluff() -> None:
    found = violations("senior", ["kernel.fp8_kv"])
    assert [each for each in found if each.startswith(("attacker", "honest", "unobserved"))] == []
