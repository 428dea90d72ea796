"""The interviewer's words about an answer that is far off, or that a run contradicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interview.mock.conduct import CONTRADICTED
from interview.mock.reacting import reaction
from interview.mock.scenario_list import Scenarios, load_scenarios
from interview.mock.session import Session
from interview.mock.turns import Ask
from quizzes.grading import Graded, Part
from tests.interview.helpers import SAMPLE, advance, spec, start

RESULT = {"static_steps": 176, "continuous_steps": 132, "static_slot_use": 0.6, "continuous_slot_use": 0.8}


def of(given: Any, expected: Any, *, ran: bool = True, name: str = "x") -> str:
    part = Part(name, given, expected, given == expected, 0.0, 1.0, unit="" if name == "choice" else "steps")
    return reaction(Graded((part,), "exact"), {"a": "It waits.", "b": "It runs."}, ran=ran)


@pytest.mark.parametrize(
    ("given", "expected", "says"),
    [
        (5_000_000, 48, "You said 5,000,000 steps, which is 100,000 times too high: hold such"),
        (48, 480.0, "You said 48 steps, which is 10 times too low: hold such"),
        (0.004, 0.1, "You said 0.004 steps, which is 25 times too low: hold such"),
    ],
)
def test_a_number_that_is_far_off_is_told_with_its_factor_after_a_run(
    given: float, expected: float, says: str
) -> None:
    assert of(given, expected).startswith(says)
    assert of(given, expected, ran=False) == "That figure is off by more than a factor of 5. Let us go on."


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        *((48, 48), (50, 48), (200, 48), (10, 48), (0, 48), (3, 0), (True, False)),
        *(
            (float("inf"), 5),
            (5, float("inf")),
            (float("nan"), 5),
            (10**400, 5),
            (5, -(10**400)),
            (1e308, 1e-5),
        ),
    ],
)
def test_nothing_is_said_of_a_number_near_the_truth_or_without_a_ratio(given: float, expected: float) -> None:
    assert of(given, expected) == of(given, expected, ran=False) == ""


def test_a_run_contradicts_a_wrong_option_and_without_a_run_the_verdict_waits_for_the_report() -> None:
    assert of(["a"], ["b"], name="choice") == 'The run contradicts "It waits".'
    assert of(["a"], ["b"], name="choice", ran=False) == of(["b"], ["b"], name="choice") == ""


def test_the_interviewer_reacts_before_the_explanation() -> None:
    absurd = {
        f"{name}{end}": text
        for name in ("static", "continuous")
        for end, text in (("", "900000"), (".interval", "1..1000000"))
    }
    with start() as session:
        advance(session, "run1#run", {"run1#ask": {"replies": absurd}, **PASS})
        session.reply({"result": RESULT})
        assert session.turn is not None
        assert session.turn.say.startswith("You said 900,000 steps, which is 5,100 times too high")
        assert "Static 176, continuous 132." in session.turn.say


PASS: dict[str, dict[str, Any]] = {name: {"pass": True} for name in ("ask", "again")} | {
    "answer": {"text": "x " * 80},
    "mark.refill": {"mark": "miss"},
    "mark.tail": {"mark": "miss"},
}


def test_the_run_of_a_first_question_that_was_passed_is_told() -> None:
    with start(warm="batching.static_vs_continuous") as session:
        session.reply({})
        session.reply({"pass": True})
        assert session.turn is not None and session.turn.id.endswith("#run")
        session.reply({"result": RESULT})
        assert session.turn is not None
        assert (
            session.turn.say.startswith("The run says: ")
            and "176 steps" in session.turn.say.partition("\n")[0]
        )


CONTRADICTING = "All slots wait until the batch has ended. Slots are never empty at the end."


@pytest.mark.parametrize("passes", [False, True])
def test_a_verdict_without_a_run_waits_for_the_report_also_after_a_contradicting_answer(
    passes: bool,
) -> None:
    with start() as session:
        advance(session, "p_refill#ask", {"answer": {"text": CONTRADICTING}})
        session.reply({"pass": True} if passes else {"replies": {"choice": number(session, "b")}})
        assert session.turn is not None and CONTRADICTED not in session.turn.say


def with_a_run(folder: Path) -> Scenarios:
    """Return the sample with a run after the reply to its first probe."""
    run = (
        "    experiment: {run: batching.static_vs_continuous, args: {lens: '=lens', slots: '=slots'}}\n"
        "    explain: 'Continuous {{ result.continuous_steps }}.'\n"
    )
    before, probe, after = next(SAMPLE.glob("*/*.yaml")).read_text().partition("  - id: p_tail\n")
    path = folder / "inference" / "slots.yaml"
    path.parent.mkdir()
    path.write_text(f"{before}{run}{probe}{after}")
    scenarios = load_scenarios(folder)
    assert not scenarios.problems
    return scenarios


def number(session: Session, name: str) -> str:
    """Return the number of an option on the screen."""
    assert session.turn is not None and isinstance(session.turn.want, Ask)
    return str([choice.id for choice in session.turn.want.instance.choices()].index(name) + 1)


@pytest.mark.parametrize(("reply", "is_told"), [("b", True), ("a", False), ("pass", False)])
def test_a_run_that_contradicts_a_wrong_reply_also_contradicts_the_answer_before(
    reply: str, is_told: bool, tmp_path: Path
) -> None:
    with Session.start(spec(), with_a_run(tmp_path)) as session:
        advance(session, "p_refill#ask", {"answer": {"text": CONTRADICTING}})
        session.reply(
            {"pass": True} if reply == "pass" else {"replies": {"choice": number(session, reply)}}, 9.0
        )
        session.reply({"result": RESULT})
        assert session.turn is not None and (CONTRADICTED in session.turn.say) is is_told
        assert not session.turn.say.startswith(CONTRADICTED)
