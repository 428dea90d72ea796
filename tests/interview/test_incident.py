"""Incidents of an interview: drills, answered from recorded figures or run on this machine."""

from __future__ import annotations

from typing import Any

import pytest

from interview.drills.applies import figures_of_drill
from interview.drills.checking import recorded
from interview.drills.drill import Drill, Load, Stage, find_drill, load_drills
from interview.drills.figures import LOOKS
from interview.drills.post_mortem import ESTIMATED, post_mortem
from interview.drills.running import Record, Tell
from interview.mock.case import Case
from interview.mock.drawn import draw_scenario
from interview.mock.incident import KNOWN, LIVE, incident_step
from interview.mock.live import BUSY, live
from interview.mock.scenario import Step
from interview.mock.scenario_list import load_scenarios
from interview.mock.talk import Asked, Heard, Spec, Talk
from interview.mock.turns import Hypothesis, Menu, RunDrill, Turn
from quizzes.grading import ParseError
from quizzes.yaml_files import UnknownId
from tests.app.debugger.drill_records import GOOD, SETTING, run

SCENARIOS = load_scenarios()
INCIDENTS = [
    (entry.id, step.id)
    for entry in SCENARIOS
    for step in SCENARIOS.scenario(entry.id).steps
    if step.incident is not None
]


class Floor:
    """An incident of a scenario, turn by turn."""

    def __init__(self, scenario: str, step: str) -> None:
        drawn = draw_scenario(SCENARIOS.scenario(scenario), 3)
        self.step: Step = drawn.scenario.step(step)
        self.talk = Talk(Spec("x", "sre", "mid", 45, 3, (scenario,), ""))
        self.asked: Asked = self.talk.begin(
            f"{scenario}/{step}", self.step, "experiment", "incident", "Look.", 5
        )
        self._turns = incident_step(self.talk, drawn, self.step, self.asked)
        self.turn: Turn | None = next(self._turns)
        self.told = [self.turn.say]

    def reply(self, **reply: Any) -> None:
        assert self.turn is not None
        self.turn.want.check(reply)
        try:
            self.turn = self._turns.send(Heard(reply, 1.0))
            self.told.append(self.turn.say)
        except StopIteration:
            self.turn = None


@pytest.mark.parametrize(("scenario", "step"), INCIDENTS)
def test_the_recorded_figures_answer_each_look_and_repair(scenario: str, step: str) -> None:
    floor = Floor(scenario, step)
    case = Case.of(floor.step)
    drill, proof = case.drill, recorded()[case.drill.id]
    assert f"{proof.good['faulty']:.0%} of the requests meet it" in floor.told[0]
    figures = list(drill.evidence)[:2]
    looks = dict.fromkeys(next(name for name in LOOKS if figure in case.shown(name)) for figure in figures)
    for look in looks:
        floor.reply(pick=look)
        assert max(map(len, floor.told[-1].splitlines())) <= 80
    assert all(figure in "\n".join(floor.told) for figure in figures)
    floor.reply(pick=KNOWN)
    floor.reply(cause=drill.cause, confidence=90, evidence=figures)
    wrong = next(number for number, fix in enumerate(drill.fixes, 1) if not fix.helps)
    floor.reply(pick=str(wrong))
    floor.reply(pick=str(drill.right_fixes[0]))
    assert floor.turn is None and floor.asked.all_right
    assert [row[2] for row in floor.asked.rows[2:]] == [
        f"{proof.good[str(number)]:.0%} good" for number in (wrong, drill.right_fixes[0])
    ]
    assert drill.debrief.question in floor.asked.explain
    document = post_mortem(floor.asked.replies["events"])
    assert all(
        text in document
        for text in (*(f"Looked at {look}" for look in looks), drill.fixes[wrong - 1].say, "points.")
    )
    assert [each.value for each in floor.talk.evidence if each.axis == "diagnosis"] == [4.6]


def test_only_figures_that_a_look_has_shown_are_evidence() -> None:
    floor = Floor("sre.noon_cliff", "the_incident")
    floor.reply(pick="cache")
    floor.reply(pick=KNOWN)
    assert floor.turn is not None and isinstance(floor.turn.want, Hypothesis)
    for evidence, says in ((["waiting_mean"], "no look has shown"), ([], "no figure is named")):
        with pytest.raises(ParseError, match=says):
            floor.reply(cause="seqs_too_low", confidence=90, evidence=evidence)


def test_an_option_keeps_its_number_while_others_come_and_go() -> None:
    floor = Floor("sre.noon_cliff", "the_incident")
    seen: list[dict[int, str]] = []
    for pick in ("cache", "latency", KNOWN):
        assert floor.turn is not None and isinstance(floor.turn.want, Menu)
        seen.append(floor.turn.want.numbers)
        floor.reply(pick=pick)
    floor.reply(cause="overload", confidence=50, evidence=["server_ttft_p50"])
    assert {name: number for menu in seen for number, name in menu.items()} == {
        name: number for number, name in seen[0].items()
    }
    assert list(seen[0]) == list(range(1, len(seen[0]) + 1)), "no gaps at first"
    assert {seen[0][number] for number in seen[0].keys() - seen[2].keys()} == {"cache", "latency"}
    assert floor.turn is not None and isinstance(floor.turn.want, Menu)
    fixes = floor.turn.want.numbers
    wrong = next(
        str(number) for number, fix in enumerate(Case.of(floor.step).drill.fixes, 1) if not fix.helps
    )
    floor.reply(pick=wrong)
    assert floor.turn is not None and isinstance(floor.turn.want, Menu)
    assert floor.turn.want.numbers == {number: name for number, name in fixes.items() if name != wrong}


def test_figures_that_one_server_cannot_have_are_neither_offered_nor_shown() -> None:
    floor = Floor("sre.noon_cliff", "the_incident")
    case = Case.of(floor.step)
    assert (
        "replicas" not in case.looks_left([])
        and "replica_spread" not in case.hypothesis(["replicas"]).figures
    )
    assert "tenant_share" not in case.shown("clients") and "hit_rate" not in case.shown("cache")
    assert "nothing: no request has a known answer" in case.shown("quality")
    assert case.hypothesis(["quality"]).figures == ()
    proof = recorded()["bad-canary"]
    two = Case(find_drill("bad-canary"), proof.healthy, proof.faulty, proof.good)
    assert "replicas" in two.looks_left([]) and "replica_step_ratio" in two.shown("replicas")


@pytest.mark.parametrize(("drill_id", "explains"), [("seqs-too-low", True), ("rope", False)])
def test_a_post_mortem_explains_why_a_client_can_be_below_the_server(drill_id: str, explains: bool) -> None:
    proof = recorded()[drill_id]
    events = [
        {
            "at": "2000-01-01T00:00:00",
            "event": name,
            "drill": drill_id,
            "figures": figures,
            "good": 1.0,
            "is_met": True,
        }
        for name, figures in (("start", {}), ("healthy", proof.healthy), ("faulty", proof.faulty))
    ]
    assert (ESTIMATED in post_mortem(events)) is explains


@pytest.mark.parametrize("drill", load_drills(), ids=lambda drill: drill.id)
def test_every_figure_that_decides_or_differs_in_a_recorded_run_can_exist_there(drill: Drill) -> None:
    among = figures_of_drill(drill.id)
    assert set(drill.evidence) <= among
    assert set(recorded()[drill.id].signature) <= among


@pytest.mark.parametrize(("num_late", "starts"), [(0, 2), (1, 3), (2, 2)])
def test_a_live_run_whose_healthy_server_misses_its_objective_twice_fails(num_late: int, starts: int) -> None:
    begun: list[Stage] = []

    def runs(stage: Stage, load: Load, tell: Tell) -> Record:
        begun.append(stage)
        settings = {**stage.set, SETTING: 99} if len(begun) <= num_late else stage.set
        return run(stage.model_copy(update={"set": settings}), load, tell)

    reply = live(RunDrill("seqs-too-high", {"fix": 0}), lambda text: None, runs)
    assert len(begun) == starts
    if num_late < 2:
        assert reply["result"]["good"] == {"healthy": 1.0, "faulty": 0.0}
    else:
        assert reply == {"failed": "this machine is too busy: the healthy server, too, has 0% good requests"}


@pytest.mark.parametrize(
    ("is_busy", "helps", "starts"), [(False, True, 1), (True, True, 2), (True, False, 1)]
)
def test_a_right_fix_on_a_busy_machine_is_repeated_and_then_no_verdict(
    is_busy: bool, helps: bool, starts: int
) -> None:
    drill = find_drill("seqs-too-high")
    number = next(n for n, fix in enumerate(drill.fixes, 1) if fix.helps is helps)
    begun: list[Stage] = []

    def runs(stage: Stage, load: Load, tell: Tell) -> Record:
        begun.append(stage)
        settings = {**stage.set, SETTING: 99 if is_busy else GOOD}
        return run(stage.model_copy(update={"set": settings}), load, tell)

    reply = live(RunDrill(drill.id, {"fix": number}), lambda text: None, runs)
    assert len(begun) == starts
    if is_busy and helps:
        assert reply == {"failed": "this machine is too busy: a repair that helps leaves 0% good requests"}
    else:
        assert reply == {"result": {"good": {str(number): 0.0 if is_busy else 1.0}}}


def test_a_run_that_fails_leaves_the_recorded_figures() -> None:
    floor = Floor("sre.noon_cliff", "the_incident")
    floor.reply(pick=LIVE)
    assert floor.turn is not None and isinstance(floor.turn.want, RunDrill)
    floor.reply(failed="the port is taken")
    assert floor.turn is not None and isinstance(floor.turn.want, Menu)
    assert "the port is taken" in floor.told[-1] and "A recorded run" in floor.told[-1]


def test_a_scenario_names_a_drill_that_exists() -> None:
    with pytest.raises(UnknownId, match="did you mean .seqs-too-low"):
        find_drill("seqs-to-low")
    step = SCENARIOS.scenario("sre.noon_cliff").step("the_incident").model_dump()
    with pytest.raises(ValueError, match="did you mean .seqs-too-low"):
        Step.model_validate({**step, "incident": {"drill": "seqs-to-low"}})


@pytest.mark.slow
def test_a_live_run_takes_the_place_of_the_recorded_figures() -> None:
    floor = Floor("sre.noon_cliff", "the_incident")
    floor.reply(pick=LIVE)
    assert floor.turn is not None and isinstance(floor.turn.want, RunDrill)
    told: list[str] = []
    reply = live(floor.turn.want, told.append)
    floor.reply(**reply)
    if "failed" in reply:  # on a busy machine, and for no other reason, the recorded figures stay
        assert BUSY in reply["failed"] and reply["failed"] in floor.told[-1]
        assert "A recorded run" in floor.told[-1]
        return
    assert {each.partition(":")[0] for each in told} == {"yesterday, 1 of 2", "today, 2 of 2"}
    assert "A run on this machine" in floor.told[-1]
    floor.reply(pick="top")
    assert "waiting" in floor.told[-1], "a look that only a run has"
    floor.reply(pick=KNOWN)
    assert floor.asked.all_right is None
