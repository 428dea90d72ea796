"""The state machine: stages, follow-ups, own numbers, hints, the clock."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from interview.drills.checking import recorded
from interview.mock.assessment import assess
from interview.mock.candidates import PERSONAS, Candidate
from interview.mock.conduct import TIME_LEFT
from interview.mock.scenario import Pick
from interview.mock.scenario_list import Scenarios, load_scenarios
from interview.mock.session import Session, read
from interview.mock.turns import (
    Ask,
    Continue,
    Form,
    Hypothesis,
    Mark,
    Menu,
    Program,
    Prose,
    Rate,
    RunDrill,
    RunExperiment,
    read_pick,
)
from quizzes.experiments.runner import Runner
from quizzes.grading import ParseError
from tests.interview.cheaters import CHEATERS, Cheater
from tests.interview.helpers import SAMPLE, sample, spec, start

RESULT = {"static_steps": 176, "continuous_steps": 132, "static_slot_use": 0.6, "continuous_slot_use": 0.8}


def keys(session: Session) -> list[str]:
    return [asked.key.partition("/")[2] for asked in session.talk.asked if "/" in asked.key]


def held(persona: str, runner: Runner, minutes: int = 45) -> Session:
    with start(persona, minutes) as session:
        Candidate(persona, session, runner).hold()
    return session


def test_stages_come_in_their_order(runner: Runner) -> None:
    assert keys(held("excellent", runner)) == [
        "walk", "p_refill", "p_tail", "bound", "run1", "ext", "run2", "curve", "rev",
    ]  # fmt: skip


def test_a_short_session_has_a_number_and_two_experiments(runner: Runner) -> None:
    assert keys(held("excellent", runner, 20)) == [
        "walk",
        "p_refill",
        "p_tail",
        "bound",
        "run1",
        "ext",
        "run2",
    ]


def test_a_wrong_prediction_brings_another_follow_up_than_a_right_one(runner: Runner) -> None:
    found = keys(held("wrong", runner))
    assert "miss" in found and "ext" not in found


def test_an_experiment_runs_with_the_candidates_own_number(runner: Runner) -> None:
    with start() as session:
        candidate = Candidate("excellent", session, runner)
        while session.turn is not None:
            if session.turn.id.endswith("run2#picks"):
                session.reply({"values": {"slots": 11}})
            elif session.turn.id.endswith("run2#run"):
                assert isinstance(session.turn.want, RunExperiment)
                assert session.turn.want.args["slots"] == 11
                break
            else:
                session.reply(*candidate.reply(session.turn))


def test_clarifying_questions_are_answered_from_the_list_or_left_to_the_candidate() -> None:
    with start() as session:
        session.reply({})
        session.reply({"clarify": "How long are the output lengths?"})
        assert session.turn is not None and "tokens, in order of arrival" in session.turn.say
        session.reply({"clarify": "What colour is the rack?"})
        assert session.turn is not None and "State your assumption" in session.turn.say
        session.reply({"text": "x " * 80})
        asked = next(asked for asked in session.talk.asked if asked.stage == "core")
        assert [bool(each["fact"]) for each in asked.clarified] == [True, False]


def test_a_probe_that_is_passed_does_not_confirm_its_key_point(runner: Runner) -> None:
    with start() as session:
        candidate = Candidate("excellent", session, runner)
        while session.turn is not None and not session.turn.id.endswith("bound#ask"):
            is_probe = session.turn.id.endswith("p_refill#ask")
            session.reply(*({"pass": True}, 9.0) if is_probe else candidate.reply(session.turn))
    walk = next(asked for asked in session.talk.asked if asked.key.endswith("/walk"))
    assert walk.probes == {"refill": [False], "tail": [True]}


def test_a_hint_comes_once_and_caps_the_evidence(runner: Runner) -> None:
    with start() as session:
        candidate = Candidate("excellent", session, runner)
        while session.turn is not None and not session.turn.id.endswith("p_tail#ask"):
            session.reply(*candidate.reply(session.turn))
        session.reply({"replies": {"steps": "1"}, "confidence": 60})
        assert session.turn is not None and session.turn.id.endswith("p_tail#again")
        session.reply(*candidate.reply(session.turn))
        found = [e.value for e in session.talk.evidence if e.step.endswith("p_tail")]
        assert found == [3.0]


def test_a_run_that_fails_does_not_count(runner: Runner) -> None:
    with start() as session:
        candidate = Candidate("excellent", session, runner)
        while session.turn is not None:
            is_first = session.turn.id.endswith("run1#run")
            session.reply(
                {"failed": "the run was interrupted"} if is_first else candidate.reply(session.turn)[0]
            )
            if is_first:
                assert session.turn is not None and "does not count" in session.turn.say
    assert not [e for e in session.talk.evidence if e.step.endswith("run1")]


def test_somebody_who_takes_too_long_is_stopped_and_what_is_left_is_named(runner: Runner) -> None:
    with start("slow", 20) as session:
        candidate = Candidate("slow", session, runner)
        said = []
        while session.turn is not None:
            said.append(session.turn.say)
            session.reply(candidate.reply(session.turn)[0], 300.0)
    assert any("took longer than planned" in text for text in said)
    assert session.talk.unreached or keys(session).count("run2")
    runs = sum("name" in asked.run for asked in session.talk.asked)
    assert runs >= 2 and any(asked.stage == "quantify" for asked in session.talk.asked)


THIRD = """
  - id: p_idle
    stage: probe
    after: walk
    when: "missing:idle"
    say: ["Which order leaves fewer slots idle?"]
    minutes: 2
    axes: [tradeoffs]
    choices:
      - {id: a, text: "longest first", right: true}
      - {id: b, text: "shortest first"}
      - {id: c, text: "random"}
  - id: bound
"""


def with_three_probes(folder: Path) -> Scenarios:
    """Return the sample with a third key point: in 20 minutes one of three probes finds no place after the answer."""
    path = folder / "inference" / "slots.yaml"
    path.parent.mkdir(parents=True)
    text = next(SAMPLE.glob("*/*.yaml")).read_text()
    idle = "      - {id: idle, say: The order decides, must: true, probes: [p_idle], good: [order], bad: [none]}\n"
    text = text.replace('    five: "Every step', f'{idle}    five: "Every step').replace(
        "\n  - id: bound\n", THIRD
    )
    path.write_text(text)
    scenarios = load_scenarios(folder)
    assert not scenarios.problems
    return scenarios


def held_with_three_probes(folder: Path, runner: Runner, seconds: float, **more: Any) -> Session:
    with Session.start(spec(minutes=20, **more), with_three_probes(folder)) as session:
        candidate = Candidate("excellent", session, runner)
        while session.turn is not None:
            session.reply(candidate.reply(session.turn)[0], seconds)
    return session


def test_an_interviewer_with_time_left_comes_back_to_a_follow_up_that_was_left_out(
    runner: Runner, tmp_path: Path
) -> None:
    session = held_with_three_probes(tmp_path / "s", runner, 20.0)
    assert keys(session)[-1] == "p_tail" and session.talk.unreached == []
    say = next(turn for turn, _ in session.past if turn.id.endswith("p_tail#ask")).say
    assert TIME_LEFT in say and "You said: " in say
    walk = next(asked for asked in session.talk.asked if asked.key.endswith("/walk"))
    assert walk.probes == {"refill": [True], "tail": [True], "idle": [True]}
    [prose] = [e for e in session.talk.evidence if e.step == walk.key and e.axis == "mechanism"]
    assert prose.why.startswith("3 of 3 follow-ups right")


def test_key_points_are_shown_after_the_last_probe_also_if_the_interviewer_comes_back_to_it(
    runner: Runner, tmp_path: Path
) -> None:
    session = held_with_three_probes(tmp_path / "s", runner, 20.0)
    turns = [turn.id.partition("/")[2] for turn, _ in session.past]
    marks = ["walk#mark.refill", "walk#mark.tail", "walk#mark.idle"]
    assert turns[turns.index("p_tail#ask") + 1 : -1] == marks
    say = next(turn.say for turn, _ in session.past if turn.id.endswith("#mark.refill"))
    walk = next(asked for asked in session.talk.asked if asked.key.endswith("/walk"))
    assert "Before we end, back to this question:" in say and walk.say in say
    answers = [turn.want.answer for turn, _ in session.past if isinstance(turn.want, Mark)]
    assert answers == [walk.replies["text"], "", ""], "minutes after the answer was given"


def test_lists_count_the_minutes_that_the_report_counts(runner: Runner, tmp_path: Path) -> None:
    session = held_with_three_probes(tmp_path / "s", runner, 20.0)
    assert {"mark", "run"} <= {turn.id.partition("#")[2].partition(".")[0] for turn, _ in session.past}
    assert read("s1").elapsed == pytest.approx(session.elapsed)
    assert session.elapsed < 20.0 * len(session.past)


def test_a_probe_without_place_or_time_leaves_its_point_unproven_and_is_named(
    runner: Runner, tmp_path: Path
) -> None:
    session = held_with_three_probes(tmp_path / "s", runner, 140.0)
    walk = next(asked for asked in session.talk.asked if asked.key.endswith("/walk"))
    assert set(walk.probes) == {"refill", "idle"} and set(walk.marks) == {"refill", "tail", "idle"}
    assert session.talk.unreached == ["inference.slots/p_tail"]


def test_the_log_of_a_version_that_came_back_after_the_key_points_is_replayed_and_proves_nothing_by_it(
    runner: Runner, tmp_path: Path
) -> None:
    session = held_with_three_probes(tmp_path / "s", runner, 20.0, marks_late=False)
    head, *lines = session.path.read_text().splitlines()
    fields = json.loads(head)
    del fields["spec"]["marks_late"]
    session.path.write_text("\n".join([json.dumps(fields), *lines]) + "\n")
    replayed = Session.replay("s1", load_scenarios(tmp_path / "s"))
    assert replayed.is_over and keys(replayed)[-1] == "p_tail"
    turns = [turn.id.partition("/")[2] for turn, _ in replayed.past]
    assert turns.index("walk#mark.idle") < turns.index("p_tail#ask")
    [prose] = [e for e in replayed.talk.evidence if e.step.endswith("/walk") and e.axis == "mechanism"]
    assert prose.why.startswith("2 of 2 follow-ups right")


@pytest.mark.parametrize(("seconds", "comes_back"), [(140.0, True), (20.0, False)])
def test_without_time_or_by_the_rules_of_an_earlier_version_a_follow_up_stays_left_out(
    seconds: float, comes_back: bool, runner: Runner, tmp_path: Path
) -> None:
    session = held_with_three_probes(tmp_path / "s", runner, seconds, comes_back=comes_back)
    assert "p_tail" not in keys(session)
    assert "inference.slots/p_tail" in session.talk.unreached


def test_a_coach_tells_the_verdict_and_an_interview_does_not(runner: Runner) -> None:
    def told(coach: bool) -> str:
        with start(f"coach{coach}", coach=coach) as session:
            candidate = Candidate("wrong", session, runner)
            said = ""
            while session.turn is not None:
                said += session.turn.say
                session.reply(*candidate.reply(session.turn))
        return said

    assert "Not quite" in told(True)
    assert "Not quite" not in told(False)


@pytest.mark.parametrize(
    "reply",
    [
        {"text": "x" * 20_001},
        {"text": None},
        {},
    ],
)
def test_an_unusable_reply_is_refused_and_the_turn_stays(reply: dict[str, Any]) -> None:
    with start() as session:
        session.reply({})
        turn = session.turn
        with pytest.raises(ParseError):
            session.reply(reply)
        assert session.turn is turn


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("1e400", "is out of range"),
        ("-3", "is out of range"),
        ("nan", "is out of range"),
        ("9" * 400, "9… is out of range"),
        ("1,5", "is ambiguous"),
        ("2.5", "is not a whole number"),
        (None, "is not a number"),
    ],
)
def test_a_number_that_cannot_be_used_is_named(value: object, says: str) -> None:
    pick = Pick(id="n", ask="replicas", lo=1, hi=2000)
    with pytest.raises(ParseError, match=says) as caught:
        read_pick(pick, value)
    assert len(str(caught.value)) < 100
    assert read_pick(pick, "1,500") == read_pick(pick, "1_500") == read_pick(pick, 1500) == 1500


ODD = st.one_of(
    st.text(max_size=200),
    st.sampled_from(
        ["", "🙂" * 40, "\x00\x1b[31m", "def f():\n    return 1", "Das hängt davon ab.", "a" * 20_000]
    ),
)


@pytest.mark.slow
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
@given(data=st.data())
def test_any_usable_replies_reach_the_end(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever is said, there is no dead end, and every mark lies between 1 and 5."""
    name = tmp_path_factory.mktemp("any").name
    with start(f"any-{name}", data.draw(st.sampled_from([20, 45]))) as session:
        while (turn := session.turn) is not None:
            session.reply(_some(data, turn.want), data.draw(st.floats(0, 600)))
    json.dumps([asked.replies for asked in session.talk.asked])
    assert all(1 <= each.value <= 5 for each in session.talk.evidence)


def of_drill(want: RunDrill) -> dict[str, Any]:
    """Return the recorded figures of a drill as the result of a run."""
    proof, fix = recorded()[want.name], want.args["fix"]
    if fix:
        return {"good": {str(fix): proof.good[str(fix)]}}
    return {
        "healthy": proof.healthy,
        "faulty": proof.faulty,
        "good": proof.good,
        "details": {"top": ["a line"]},
    }


def _some(data: st.DataObject, want: object) -> dict[str, Any]:
    if isinstance(want, RunDrill):
        return data.draw(st.sampled_from([{"result": of_drill(want)}, {"failed": "no"}]))
    if isinstance(want, Hypothesis):
        cause, _ = data.draw(st.sampled_from(want.causes))
        return {
            "cause": cause,
            "confidence": data.draw(st.integers(1, 99)),
            "evidence": list(want.figures[:1]),
        }
    if isinstance(want, RunExperiment):
        return data.draw(st.sampled_from([{"result": RESULT}, {"failed": "no"}]))
    if isinstance(want, Prose):
        return {data.draw(st.sampled_from(["text", "text", "clarify"])): data.draw(ODD)}
    if isinstance(want, Ask):
        if data.draw(st.booleans()):
            return {"pass": True}
        replies = {key: "2" for key in want.keys if not key.endswith(".interval")}
        replies |= {
            key: "1..9" for key in want.keys if key.endswith(".interval") and data.draw(st.booleans())
        }
        return {"replies": replies, "confidence": data.draw(st.sampled_from([None, 1, 50, 99]))}
    if isinstance(want, Form):
        return {"values": {}, "commit": data.draw(st.booleans())}
    if isinstance(want, Menu):
        return {"pick": data.draw(st.sampled_from([name for name, _ in want.options]))}
    if isinstance(want, Mark):
        return {"mark": data.draw(st.sampled_from(["hit", "partial", "miss", "contradicted"]))}
    if isinstance(want, Rate):
        return {"ratings": {axis: data.draw(st.integers(1, 5)) for axis in want.axes}}
    assert isinstance(want, Continue) and not isinstance(want, Program)
    return {}


@pytest.mark.parametrize("minutes", [20, 45])
def test_personas_rank_alike(runner: Runner, minutes: int) -> None:

    overall = [assess(held(persona, runner, minutes).talk).overall for persona in PERSONAS]
    assert overall == sorted(overall, key=lambda value: -(value or 0)), dict(
        zip(PERSONAS, overall, strict=True)
    )


def test_the_sample_passes_the_lint(runner: Runner) -> None:
    from interview.mock.lint import lint

    assert list(lint(sample().scenario("inference.slots"), runner)) == []


@pytest.mark.parametrize(
    ("right", "problem"),
    [
        ({100: 100, 0: 0, 200: 200}, "hit is the pick itself"),
        ({100: 96, 0: 96, 200: 96}, "the picks make no difference"),
        ({100: 96, 0: 0, 200: 192}, ""),
    ],
)
def test_the_lint_finds_a_free_choice_that_predicts_itself_or_changes_nothing(
    right: dict[int, int], problem: str
) -> None:
    from interview.mock.lint import free_choice

    step = load_scenarios().scenario("inference.repair_prefix_cache").step("own_position")
    found = list(free_choice(step, [({"between": pick}, {"hit": hit}) for pick, hit in right.items()]))
    assert [problem in each for each in found] == [True] * bool(problem)


@pytest.mark.slow
def test_what_a_design_brought_is_shown_with_the_next_question_and_not_lost_in_a_silent_run(
    runner: Runner, home: object
) -> None:
    name = "platform.quantise_or_buy"
    with Session.start(spec("design", scenarios=(name,)), load_scenarios()) as session:
        candidate = Candidate("excellent", session, runner)
        while session.turn is not None and not session.turn.id.endswith("canvas#design1.0"):
            session.reply(*candidate.reply(session.turn))
        assert session.turn is not None and session.turn.say.startswith("By hand:")
        while session.turn is not None and "/canvas#" in session.turn.id:
            session.reply(*candidate.reply(session.turn))
    rounds = [
        each for each in session.talk.evidence if each.step.endswith("/canvas") and each.axis == "tradeoffs"
    ]
    assert len(rounds) >= 2 and sum(each.weight for each in rounds) == pytest.approx(1)
    assert session.turn.chart is not None and len(session.turn.chart["rows"]) == 4


@pytest.mark.parametrize("kind", CHEATERS)
def test_a_candidate_who_knows_nothing_gets_no_praise(kind: str, runner: Runner) -> None:
    for seed in range(4):
        with start(f"s{seed}", seed=seed) as session:
            Cheater(kind, session, runner).hold()
        found = assess(session.talk)
        assert found.recommendation in ("lean no", "no", "strong no"), (seed, found.recommendation)
        assert (found.mark("communication").value or 0) <= 3
