"""Every shipped scenario: numbers of each kind, the lint, and whole sessions of five scripted candidates."""

import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from interview.mock.assessment import Assessment, assess
from interview.mock.candidates import PERSONAS, Candidate
from interview.mock.case import Case
from interview.mock.drawn import draw_scenario
from interview.mock.lint import lint
from interview.mock.scenario import LEVELS, Scenario
from interview.mock.scenario_list import load_scenarios
from interview.mock.session import Session, read
from interview.mock.talk import Spec, with_rules
from quizzes.experiments.runner import Runner
from quizzes.topics import ROLES
from tests.app.debugger.mock_candidate import walk
from tests.app.mock_typist import sit

SCENARIOS = load_scenarios()
NAMES = sorted(SCENARIOS.entries)
ON_PAGE = NAMES if os.environ.get("PREP_WALKS") == "all" else NAMES[::8]
"""Scenarios that also go through the page; PREP_WALKS=all takes all of them, which adds two minutes."""


@pytest.fixture(autouse=True)
def shared_cache(home: Path, results: Path) -> None:
    (home / "cache").symlink_to(results)


def test_they_load_and_their_paths_are_their_ids() -> None:
    assert not SCENARIOS.problems
    for name, document in SCENARIOS.documents.items():
        assert document.path == f"{name.replace('.', '/')}.yaml"


def test_there_are_enough_of_every_kind() -> None:
    kinds = Counter(entry.kind for entry in SCENARIOS)
    assert len(SCENARIOS) >= 24
    assert kinds["design"] >= 8 and kinds["coding"] >= 4 and kinds["incident"] >= 4 and kinds["kernel"] >= 4


def test_the_place_of_an_option_says_nothing_about_it() -> None:
    """Flaws, experiments that refute and repairs are shuffled per session."""
    for name in NAMES:
        for step in SCENARIOS.scenario(name).steps:
            lists = [step.reverse.flaw, step.reverse.tests] if step.reverse else []
            lists += [Case.of(step).fixes] if step.incident else []
            for options in lists:
                drawn = [draw_scenario(SCENARIOS.scenario(name), seed) for seed in range(12)]
                places = {each.shuffled(step, options).index(options[0]) for each in drawn}
                assert len(places) > 1, (name, step.id)


def test_the_length_of_an_option_says_nothing_about_it() -> None:
    """The right option is the longest one about as often as by chance; a third of the options are right."""
    places: Counter[str] = Counter()
    for name in NAMES:
        for step in SCENARIOS.scenario(name).steps:
            lists = [step.choices, step.reverse.flaw if step.reverse else []]
            for options in lists:
                right = [option for option in options if option.right is True]
                if len(right) == 1 and not any(isinstance(option.right, str) for option in options):
                    longest = max(options, key=lambda option: len(option.text))
                    shortest = min(options, key=lambda option: len(option.text))
                    places["all"] += 1
                    places["longest"] += longest is right[0]
                    places["shortest"] += shortest is right[0]
    assert places["all"] > 100
    assert places["longest"] < 0.4 * places["all"] and places["shortest"] < 0.4 * places["all"], places


def test_scenarios_and_settings_have_the_same_roles() -> None:
    assert get_args(Scenario.model_fields["role"].annotation) == tuple(ROLES)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("level", LEVELS)
def test_every_role_and_level_has_two(role: str, level: str) -> None:
    assert sum(entry.role == role and entry.level == level for entry in SCENARIOS) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_texts_hold_for_twenty_seeds_and_what_it_runs_comes_out_as_declared(
    name: str, runner: Runner
) -> None:
    assert list(lint(SCENARIOS.scenario(name), runner, range(11, 12))) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_five_candidates_rank_alike_and_reach_the_end(
    name: str, runner: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The excellent one's 45 minutes are typed at a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(Runner, "warm", lambda self, name: None)  # the results are known
    entry = SCENARIOS.entries[name]
    found = {}
    for persona in PERSONAS:
        for minutes in (20, 45) if persona == "excellent" else (45,):
            spec = with_rules(Spec(f"{persona}-{minutes}", entry.role, entry.level, minutes, 11, (name,), ""))
            with Session.start(spec, SCENARIOS) as session:
                if spec.id == "excellent-45":
                    sit(session, runner=runner)
                else:
                    Candidate(persona, session, runner).hold()
            assert session.is_over
            asked = session.talk.asked
            runs = sum(
                "result" in each.run or each.form == "incident" and each.value is not None for each in asked
            )
            assert runs >= 2, minutes
            found[persona] = assess(session.talk)
            if persona == "excellent":
                low = {mark.axis: mark.value for mark in found[persona].marks if (mark.value or 5) < 4}
                assert not low, (minutes, low)
    overall = [found[persona].overall or 0.0 for persona in PERSONAS]
    assert overall == sorted(overall, reverse=True), dict(zip(PERSONAS, overall, strict=True))
    wrong = found["wrong"].mark("correctness").value
    assert wrong is None or wrong <= 2
    shown = capsys.readouterr().out
    assert "The run failed" not in shown and "is not possible" not in shown
    typed = ("> ", "| ", "/")
    wide = [line for line in shown.splitlines() if len(line) > 80 and not any(t in line for t in typed)]
    assert not wide, wide
    if name in ON_PAGE:
        _goes_through_the_page(name, found["excellent"], monkeypatch)


def _goes_through_the_page(name: str, typed: Assessment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page asks the same and leads to the same marks as the terminal."""
    monkeypatch.setenv("PREP_APP_PAGE", "mock")
    spec = Session.replay("excellent-45").spec
    Session.start(replace(spec, id="page")).close()
    assert walk("page") == "Report"
    replies = {each: {line["turn"]: line["reply"] for line in read(each).lines} for each in ("page", spec.id)}
    assert replies["page"].keys() == replies[spec.id].keys()
    assert not any(reply.get("failed") for reply in replies["page"].values())
    assert [(mark.axis, mark.value) for mark in assess(Session.replay("page").talk).marks] == [
        (mark.axis, mark.value) for mark in typed.marks
    ]


def test_the_answers_of_json_at_scale_are_as_long_as_the_interviewer_says(runner: Runner) -> None:
    said = SCENARIOS.scenario("applied.json_at_scale").step("own_limit").say
    pairs = {pair for text in said for pair in re.findall(r"(\d+) (?:and|to) (\d+) tokens", text)}
    [(shortest, longest)] = [tuple(map(int, pair)) for pair in pairs]

    def valid(max_tokens: int) -> int:
        args = {"model": "trained", "answers": 16, "max_tokens": max_tokens}
        return int(runner.run("structured_output.valid_share", args).result["valid_masked"])

    assert valid(shortest - 1) == 0 < valid(shortest) and valid(longest - 1) < 16 == valid(longest)
