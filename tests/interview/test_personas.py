"""Personas and attackers hold whole sessions; what the rubric implies about their order."""

import pytest

from interview.mock.scenario_list import load_scenarios
from quizzes.experiments.runner import Runner
from tests.interview.helpers import start
from tests.interview.personas import EVERY_NAME, TICKED, person, violations

CHECKED = {
    "applied.rag_documents": "mid",
    "applied.json_at_scale": "mid",
    "sre.noon_cliff": "mid",
    "inference.stalled_streams": "senior",
    "inference.repair_prefix_cache": "senior",
    "kernel.fp8_kv": "senior",
}
"""Scenario -> level: each kind, and the one in which filler once made weak as good as middling; five minutes. All
scenarios of a level:

    python -m tests.interview.personas LEVEL
"""


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


def test_the_checked_scenarios_cover_every_kind() -> None:
    entries = load_scenarios().entries
    assert {entries[name].kind for name in CHECKED} == {entry.kind for entry in entries.values()}


@pytest.mark.slow
@pytest.mark.parametrize("scenario", CHECKED)
def test_better_candidates_rank_higher_no_attacker_is_above_weak_and_honesty_is_not_below_a_bluff(
    scenario: str, runner: Runner
) -> None:
    assert violations(CHECKED[scenario], runner, [scenario]) == []
