"""The sample scenario, and sessions on it."""

from pathlib import Path
from typing import Any

from interview.mock.scenario_list import Scenarios, load_scenarios
from interview.mock.session import Session
from interview.mock.talk import Spec

SAMPLE = Path(__file__).parent / "sample"


def sample() -> Scenarios:
    scenarios = load_scenarios(SAMPLE)
    assert not scenarios.problems
    return scenarios


def spec(session_id: str = "s1", minutes: int = 45, **more: Any) -> Spec:
    values = {"role": "inference", "level": "mid", "seed": 3, "scenarios": ("inference.slots",), "warm": ""}
    rules = {"skips_said": True, "comes_back": True, "marks_late": True}
    return Spec(id=session_id, minutes=minutes, **{**rules, **values, **more})


def start(session_id: str = "s1", minutes: int = 45, **more: Any) -> Session:
    return Session.start(spec(session_id, minutes, **more), sample())


def advance(session: Session, until: str, replies: dict[str, dict[str, Any]]) -> None:
    """Reply from `replies` by turn, "*" by default, until the turn whose id ends with `until`."""
    while session.turn is not None and not session.turn.id.endswith(until):
        name = session.turn.id.rpartition("/")[2]
        session.reply(replies.get(name, replies.get(name.partition("#")[2], {})), 10.0)
