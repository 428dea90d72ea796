"""The report in its three forms, what it keeps in the learner's state, and the choice of the next session."""

import datetime as dt
import html.parser
import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from app.cli.options import parse_settings
from interview.mock.candidates import Candidate
from interview.mock.choose import choose, is_repeat
from interview.mock.drawn import draw_scenario
from interview.mock.keep import keep
from interview.mock.report import Report, as_html, as_markdown, load, make, save
from interview.mock.report.build import _calibration, _command
from interview.mock.scenario_list import load_scenarios
from interview.mock.session import Session, SessionError, sessions
from interview.mock.taking_up import literal
from interview.mock.talk import Asked, Spec, Talk
from quizzes.experiments.registry import get
from quizzes.experiments.runner import Runner
from quizzes.learning.review import cards
from quizzes.question_bank import load_bank
from quizzes.state import State
from tests.interview.helpers import sample, start

ATTACK = "<script>alert(1)</script> | **bold** `code` [x](http://x)\n# heading \x1b[31m"


@pytest.fixture(scope="module")
def vague(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREP_HOME", str(tmp_path_factory.mktemp("vague")))
        with start("vague") as session:
            candidate = Candidate("vague", session, runner)
            while session.turn is not None:
                reply, seconds = candidate.reply(session.turn)
                session.reply({"text": ATTACK} if "text" in reply else reply, seconds)
        return make(session, sessions())


class _Tags(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_markdown_says_what_was_said_and_measured(vague: Report) -> None:
    text = as_markdown(vague)
    for words in ("# Mock interview: Eight slots", "Recommendation for mid", "prep run batching.static_vs_continuous",
                  "An answer that would score 5", "not observed", "Next session"):  # fmt: skip
        assert words in text
    assert max(map(len, vague.trend.values())) == 1 and "## Trend" not in text


def test_a_candidates_words_stay_words(vague: Report) -> None:
    page = as_html(vague)
    tags = _Tags(page)
    assert "script" not in tags.seen and "a" not in tags.seen
    assert not tags.attributes & {"onclick", "href", "src"}
    assert 'lang="en">' in page and 'data-theme="dark">' in as_html(vague, theme="dark")
    assert "alert(1)" in page and "\x1b" not in page
    assert page.count("<svg") == 1 and "http" not in page.replace("http://x", "")
    assert literal("a|b\x00") == "a\\|b "


def test_every_command_of_a_report_has_the_arguments_of_its_run() -> None:
    """Only `--set` is read, as `prep run` reads it; the runs would take minutes."""
    scenarios, count = load_scenarios(), 0
    for name in scenarios.entries:
        drawn = draw_scenario(scenarios.scenario(name), seed=3)
        for step in drawn.scenario.steps:
            runs = [test.run for test in step.reverse.tests] if step.reverse else []
            runs += [step.canvas.run] if step.canvas else []
            ran = [(run.run, drawn.value(run.args)) for run in runs]
            if step.experiment is not None:
                ran.append((step.experiment.run, drawn.question(step).run_args()))
            for experiment, args in ran:
                command = _command(Asked("s/x", "core", "ask", "", 1, run={"name": experiment, "args": args}))
                words = shlex.split(command)
                assert words[:3] == ["prep", "run", experiment] and set(words[3::2]) <= {"--set"}
                given = parse_settings(words[4::2])
                assert given == args and get(experiment).check(given) == get(experiment).check(args), command
                count += 1
    assert count > 80


def test_json_comes_back_as_it_went(vague: Report, home: Path) -> None:
    assert vague.to_json() == json.loads(json.dumps(vague.to_json()))
    save(vague)
    again = load("vague")
    assert again is not None and again.to_json() == vague.to_json()
    assert load("none") is None


def test_a_report_of_a_newer_version_is_named(vague: Report) -> None:
    save(replace(vague, format=99))
    with pytest.raises(SessionError, match="has format 99"):
        load("vague")


def test_an_unfinished_session_has_a_report_that_says_so() -> None:
    with start() as session:
        session.reply({})
    report = make(session)
    assert not report.finished and report.recommendation == "the session is not over"
    assert as_html(report)


def test_trend_has_the_sessions_before(runner: Runner) -> None:
    for name, persona in (("a1", "wrong"), ("a2", "excellent")):
        with start(name) as session:
            Candidate(persona, session, runner).hold()
        save(report := make(session, sessions()))
    assert report.trend["correctness"] == [1, 5]
    assert "## Trend" in as_markdown(report) and as_html(report).count("<svg") == 2


@pytest.mark.slow
def test_missed_steps_bring_cards_back_and_no_score_changes(runner: Runner) -> None:
    with start(warm="batching.straggler") as session:
        Candidate("wrong", session, runner).hold()
    with State.open() as state:
        keep(session, state)
        kept = state.attempts()
        assert [attempt.question_id for attempt in kept if attempt.scored] == ["batching.straggler"]
        assert "batching.straggler" in cards(state)
        assert keep(session, state) == [] and len(state.attempts()) == len(kept)


def spec_of(past: list[object], seed: int = 1, minutes: int = 45) -> object:
    return choose(
        sample(),
        load_bank(),
        past,
        role="inference",
        level="senior",
        minutes=minutes,
        seed=seed,
    )


def test_nothing_comes_twice_within_thirty_days_unless_nothing_is_left() -> None:
    first = spec_of([])
    Session.start(first, sample()).close()
    second = spec_of(sessions())
    assert is_repeat(second, sessions()) and not is_repeat(first, [])
    assert second.warm != first.warm
    late = dt.datetime.now(dt.UTC) + dt.timedelta(days=31)
    third = choose(sample(), load_bank(), sessions(), role="sre", level="mid", minutes=20, seed=1, now=late)
    assert not is_repeat(third, sessions())


def test_a_judge_stands_in_a_column_of_its_own_and_changes_no_mark(runner: Runner) -> None:
    with start("judged") as session:
        Candidate("vague", session, runner).hold()
    plain = make(session)
    judged = make(session, judged={"inference.slots/walk": {"refill": "hit", "tail": "miss"}})
    assert [row.machine for row in judged.axes] == [row.machine for row in plain.axes]
    assert {row.axis: row.judge for row in judged.axes if row.judge} == {"mechanism": 3}
    assert "| judge |" in as_markdown(judged) and "| judge |" not in as_markdown(plain)


def test_a_report_names_questions_by_number_and_words_not_by_internal_names(vague: Report) -> None:
    text = as_markdown(vague).replace("\\_", "_")
    for name in ("warm/", ".interval", ": choice:", "missing:", ". core", "tradeoffs"):
        assert name not in text, name
    assert ", question 1: " in text and "your answer · " in text and "inference engineer, mid" in text


def test_after_a_session_without_gaps_the_next_looks_at_what_was_not_observed(runner: Runner) -> None:
    with start("good", 20) as session:
        Candidate("excellent", session, runner).hold()
    report = make(session)
    unseen = [row.title.lower() for row in report.axes if row.machine is None]
    assert all(row.machine >= 4 for row in report.axes if row.machine is not None)
    assert not unseen or report.next_session.endswith(unseen[0])


@pytest.mark.parametrize(("cause_right", "wrong"), [(None, 1), (False, 1), (True, 0)])
def test_confidence_in_a_cause_is_judged_by_the_cause_alone(cause_right: bool | None, wrong: int) -> None:
    talk = Talk(Spec("x", "sre", "mid", 45, 3, ("sre.noon_cliff",), ""))
    asked = Asked("s/x", "core", "incident", "", 3.0, confidence=95, all_right=False, cause_right=cause_right)
    talk.asked.append(asked)
    assert _calibration(talk)["sure_and_wrong"] == wrong
