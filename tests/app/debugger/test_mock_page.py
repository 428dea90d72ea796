"""The page Mock without a browser: a scripted candidate's replies go through the page's own fields."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from streamlit.testing.v1 import AppTest

from app.debugger import tabs
from app.debugger.mock import charts, desk, starting
from app.debugger.mock import held as interviews
from app.debugger.mock.conversation import stages
from app.debugger.mock.held import Clock
from app.debugger.mock.texts import markdown, plain
from app.debugger.mock.transcript import visible
from app.debugger.tabs import Job
from interview.mock import coding
from interview.mock.candidates import Candidate
from interview.mock.coding import Checked
from interview.mock.report import load
from interview.mock.session import Session, read, sessions
from interview.mock.talk import Spec
from interview.mock.turns import MAX_CHARACTERS, RunExperiment
from quizzes.experiments.runner import Runner
from quizzes.free_text.canaries import GateResult
from quizzes.free_text.judge import prompt_hash
from quizzes.free_text.settings import JudgeSettings, save
from quizzes.question_bank import Bank
from quizzes.state import State
from tests.app.debugger.mock_candidate import SCRIPT, answer, button, go_to, held
from tests.interview.helpers import start
from tests.quizzes.test_free_text import Server, generous

SAMPLE = Path(__file__).resolve().parents[1] / "mock_scenarios"
PROGRAM = {
    "id": "program",
    "stage": "core",
    "say": ["Write it.", "Now write it."],
    "axes": ["mechanism"],
    "code": {"exercise": "06.1"},
}
Opener = Callable[..., AppTest]


@pytest.fixture(scope="module")
def with_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample scenario, with a program to write."""
    folder = tmp_path_factory.mktemp("scenarios")
    data = yaml.safe_load((SAMPLE / "inference" / "slots.yaml").read_text())
    data["steps"].append(PROGRAM)
    (folder / "inference").mkdir()
    (folder / "inference" / "slots.yaml").write_text(yaml.safe_dump(data))
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> Iterator[Opener]:
    """Open the page; the bank is empty, which saves compiling it."""
    (tmp_path / "cache").symlink_to(cache)
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    monkeypatch.setenv("PREP_SCENARIOS", str(SAMPLE))
    monkeypatch.setenv("PREP_APP_PAGE", "mock")
    bank = Bank({}, [], {})
    users = ["interview.mock.session", "interview.mock.keep", "app.debugger.mock.starting"]
    for module in [*users, "quizzes.question_bank"]:  # last: a module that is imported now takes the real one
        monkeypatch.setattr(f"{module}.load_bank", lambda: bank)

    def opened(interview: str | None = None) -> AppTest:
        app = AppTest.from_file(str(SCRIPT), default_timeout=30)
        if interview is not None:
            app.query_params["interview"] = interview
        return app.run()

    yield opened
    for each in list(interviews.HELD.held.values()):
        interviews.release(each)


def begun(until: str = "", **more: Any) -> str:
    """Hold an interview without the page until the turn whose id ends so; no tab holds it then. Return its id."""
    values: dict[str, Any] = {
        "role": "inference",
        "level": "senior",
        "seed": 3,
        "warm": "",
        "minutes": 45,
        **more,
    }
    spec = Spec(id="s1", scenarios=("inference.slots",), skips_said=True, **values)
    with Session.start(spec) as session, Runner() as runner:
        candidate = Candidate("excellent", session, runner)
        while until and session.turn is not None and not session.turn.id.endswith(until):
            session.reply(*candidate.reply(session.turn))
    return "s1"


def said(app: AppTest) -> str:
    kinds = ("markdown", "caption", "info", "warning", "error")
    parts = [str(each.value) for kind in kinds for each in app.get(kind)]
    return "\n".join([*parts, *(each.proto.body for each in app.get("html"))])


@pytest.mark.slow
def test_a_whole_interview_goes_through_the_page(
    open_page: Opener, monkeypatch: pytest.MonkeyPatch, with_program: Path
) -> None:
    monkeypatch.setenv("PREP_SCENARIOS", str(with_program))
    monkeypatch.setattr(coding, "check", lambda code, source: Checked(["fills", "stops"], []))
    app = open_page(begun())
    given = go_to(app, "never")
    assert [each.value for each in app.title] == ["Report"]
    kinds = {type(turn.want).__name__ for turn, _ in given}
    assert kinds == {"Continue", "Prose", "Ask", "Form", "Menu", "Hypothesis", "Mark", "Rate", "Program"}
    kept = {line["turn"]: line["reply"] for line in read("s1").lines if "result" not in line["reply"]}
    assert set(kept) == {turn.id for turn, _ in given}
    for turn, reply in given:
        assert {name: kept[turn.id][name] for name in reply if name != "commit"} == {
            name: value for name, value in reply.items() if name != "commit"
        }
    assert read("s1").is_over and not interviews.HELD.held, "over, and its file is closed"


def test_the_form_begins_with_the_settings_and_the_open_interview_is_offered(open_page: Opener) -> None:
    with State.open() as state:
        state.change_settings(role="sre", level="junior")
    app = open_page()
    assert app.selectbox(key="mock role").value == "sre" and app.radio(key="mock level").value == "mid"
    app.radio(key="mock minutes").set_value(20)
    button(app, "Begin").click().run()
    spec = held().session.spec
    assert (spec.role, spec.level, spec.minutes) == ("sre", "mid", 20)
    assert app.query_params["interview"] == spec.id
    assert not held().is_timed, "the clock starts after Begin"
    app.button(key="mock_leave").click().run()
    assert not interviews.HELD.held and "An interview is open" in said(app)
    app.button(key="mock_resume").click().run()
    assert held().session.spec.id == spec.id


@pytest.mark.slow
def test_a_clarifying_question_is_answered_and_its_fact_stays(open_page: Opener) -> None:
    app = open_page(begun("why#answer"))
    button(app, "Ask").click().run()
    assert "Type a question first" in said(app)
    answer(app, held().turn, {"clarify": "Which SLO counts?"})
    assert said(app).count("Only the end of the whole batch counts.") == 2, "said, and beside the problem"


def test_the_answer_stays_in_sight_while_it_is_marked(open_page: Opener) -> None:
    open_page(begun("why#mark.free_slot"))
    shown = visible(held().session.past, held().turn)
    assert [
        reply["text"] for turn, reply in (held().session.past[place] for place in shown) if "text" in reply
    ]


def test_any_text_is_kept_and_shown_without_markup(open_page: Opener) -> None:
    text = ("🙂 a\x00\x07\x1b[31m <b>b</b> $x$ \ud800" + "x" * MAX_CHARACTERS)[:MAX_CHARACTERS]
    app = open_page(begun("why#answer"))
    turn = held().turn
    held().reply({"text": text})
    app.run()
    assert not app.exception and read("s1").lines[-1]["turn"] == turn.id
    assert plain(text) in said(app) and "\x1b" not in said(app) and "<b>" not in plain(text)


def test_prose_that_is_empty_or_too_long_is_a_sentence_and_nothing_is_lost(open_page: Opener) -> None:
    app = open_page(begun("why#answer"))
    for text, problem in (("  \n", "The answer is empty"), ("x" * 20_001, "20,000 is the limit")):
        app.text_area[0].set_value(text)
        button(app, "Answer").click().run()
        assert problem in said(app) and app.text_area[0].value == text
    assert held().turn.id.endswith("why#answer")
    button(app, "No answer").click().run()
    assert "short request has just finished" in said(app), "the hint"


def test_a_number_that_cannot_be_read_is_named_at_its_field(open_page: Opener) -> None:
    app = open_page(begun("bound#ask"))
    key = f"mock {held().turn.id}"
    app.text_input(key=f"{key} least from").set_value("50")
    help_ = app.slider(key=f"{key} sure").help
    assert "counts twice and earns 1 less" in help_ and "assumed" not in help_, "a slider always has a value"
    app.slider(key=f"{key} sure").set_value(70)
    for bad in ("", "a lot 🙂", "\x00", "9" * 20_000):
        app.text_input(key=f"{key} least").set_value(bad)
        button(app, "Answer").click().run()
        assert len(app.error) == 2
        assert app.text_input(key=f"{key} least").value == bad and app.slider(key=f"{key} sure").value == 70
    app.text_input(key=f"{key} least").set_value("61")
    app.text_input(key=f"{key} least to").set_value("70")
    button(app, "Answer").click().run()
    reply = read("s1").lines[-1]["reply"]
    assert reply == {"replies": {"least": "61", "least.interval": "50 .. 70"}, "confidence": 70}


@pytest.mark.slow
def test_a_design_is_checked_before_it_is_committed(open_page: Opener) -> None:
    app = open_page(begun("fleet#design0.0"))
    button(app, "Check").click().run()
    while isinstance(held().turn.want, RunExperiment):
        app.run()
    assert held().turn.id.endswith("design0.1")
    assert "By hand: 100 requests a second" in said(app) and "✗ not met" in said(app)


def test_a_reloaded_tab_goes_on_at_the_same_turn_with_its_clock(
    open_page: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_page(begun("bound#ask"))
    before, clock = held(), held().clock
    monkeypatch.setattr(tabs, "is_open", lambda tab: False)
    clock._since = time.monotonic() - 50
    again = open_page("s1")
    assert not again.error
    assert held() is before and held().clock is clock
    assert 50 <= clock.seconds < 60 and held().turn.id.endswith("bound#ask")
    now = time.monotonic()  # the keeper's thread looks with it, too
    interviews.HELD.release_left(now=now)
    interviews.HELD.release_left(now=now + 11.0)
    assert not interviews.HELD.held
    later = open_page("s1")
    assert not later.error and held() is not before and held().turn.id.endswith("bound#ask")
    assert held().clock.seconds < 60


def test_a_second_tab_and_a_terminal_are_told_where_the_interview_is(
    open_page: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tabs, "PATIENCE_S", 0.0)
    elsewhere = Session.open(begun())
    app = open_page("s1")
    assert "this session is open in another terminal or tab. Next: go on there" in said(app)
    elsewhere.close()
    monkeypatch.setattr(tabs, "is_open", lambda tab: True)
    other = interviews.take("s1", "another tab", 0.0)
    app.button(key="mock_retry").click().run()
    assert "another terminal or tab" in said(app)
    interviews.release(other)
    app.button(key="mock_retry").click().run()
    assert not app.error and button(app, "Begin")


@pytest.mark.slow
def test_a_link_to_no_interview_is_a_sentence(open_page: Opener) -> None:
    app = open_page("nothing")
    assert not app.exception and "no interview is called nothing" in said(app)
    app.button(key="mock_all").click().run()
    assert not app.error and sessions() == []


def test_the_clock_pauses_and_the_log_knows(open_page: Opener) -> None:
    app = open_page(begun("bound#ask"))
    app.button(key="mock_pause").click().run()
    assert held().clock.is_paused and "The clock stands still" in said(app)
    assert not [each for each in app.button if each.label == "Answer"]
    app.button(key="mock_continue").click().run()
    assert button(app, "Answer") and read("s1").notes[-1]["note"] == "pause"


@pytest.mark.slow
def test_a_run_that_is_stopped_is_a_reply(open_page: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def run(self: Runner, name: str, args: dict[str, Any]) -> None:
        ended.wait()
        raise RuntimeError("its process was ended")

    monkeypatch.setattr("app.debugger.mock.running.QUICK_S", 0.05)
    app = open_page(begun("own#ask"))
    monkeypatch.setattr(Runner, "run", run)
    monkeypatch.setattr(Runner, "close", lambda self: ended.set())
    key = f"mock {held().turn.id}"
    app.text_input(key=f"{key} steps").set_value("60")
    button(app, "Answer").click().run()
    assert "Running `batching.static_vs_continuous`" in said(app) and not held().is_timed
    next(each for each in app.button if each.label == "Stop the run").click().run()
    assert "The run failed (you stopped it)" in said(app)


@pytest.mark.slow
def test_checks_of_a_program_are_listed_and_its_file_is_the_terminals(
    open_page: Opener, monkeypatch: pytest.MonkeyPatch, with_program: Path
) -> None:
    monkeypatch.setenv("PREP_SCENARIOS", str(with_program))
    results = [Checked(["fills"], ["stops"], ["stops: <it> runs on"]), Checked(["fills", "stops"], [])]
    monkeypatch.setattr(coding, "check", lambda code, source: results.pop(0))
    app = open_page(begun("program#code"))
    assert app.text_area[0].value.strip() == coding.start(held().turn.want.code).strip()
    app.text_area[0].set_value("   ")
    button(app, "Check").click().run()
    assert "The program is empty." in said(app)
    app.text_area[0].set_value("x = 1")
    button(app, "Check").click().run()
    assert "1 of 2 checks pass" in said(app) and "stops: &lt;it&gt; runs on" in said(app)
    assert (held().session.path.with_suffix("") / "exercise_06_1.py").read_text() == "x = 1"
    button(app, "Hand in").click().run()
    reply = read("s1").lines[-1]["reply"]
    assert reply == {"source": "x = 1", "passed": ["fills", "stops"], "failed": [], "tries": 1}


@pytest.mark.slow
def test_the_drawing_is_kept_with_the_reply_and_comes_back(open_page: Opener) -> None:
    app = open_page(begun())
    held().drawing, held().is_drawing_new = [[1, 2, 3, 4]], True
    answer(app, held().turn, {})
    notes = [note for note in read("s1").notes if note["note"] == "drawing"]
    assert [note["strokes"] for note in notes] == [[[1, 2, 3, 4]]]
    interviews.release(held())
    open_page("s1")
    assert held().drawing == [[1, 2, 3, 4]]


# ---------------------------------------------------------------------- parts


def test_strokes_from_a_browser_are_whole_and_few() -> None:
    assert desk.strokes_of("draw") == desk.strokes_of([["a"], [1], None]) == []
    assert desk.strokes_of([[1.7, 2, 3]]) == [[1, 2]]
    kept = desk.strokes_of([[1e9] * 30_000, [1] * 30_000, [5, 6]])
    assert sum(map(len, kept)) == 2 * desk.MOST_POINTS and max(map(max, kept)) == 10_000


def test_the_clock_counts_what_is_shown_without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("app.debugger.mock.held.time.monotonic", lambda: now[0])
    clock = Clock()
    clock.show("one")
    for pauses in (False, True, False):
        now[0] += 10
        if pauses:
            assert clock.go_on() == 10
        else:
            clock.pause()
    assert clock.seconds == 20
    clock.show("one")
    assert clock.seconds == 20
    clock.show("two", 3.0)
    assert clock.seconds == 3


def test_work_in_a_thread_ends_with_its_result_or_its_error() -> None:
    good, bad = Job("t", lambda: 7), Job("t", lambda: 1 // 0)
    good.wait(5), bad.wait(5)
    assert good.is_done and good.result == 7 and isinstance(bad.error, ZeroDivisionError)


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (("gap", "150 ms (120 to 181.8)", "158.128 ms", False), ("gap", "ms", 150, 120, 181.8, 158.128)),
        (("steps", "68 steps", "1e+03 steps", True), ("steps", "", 68, None, None, 1000)),
        (("x", "-3.5", "2", True), ("x", "", -3.5, None, None, 2)),
    ],
)
def test_a_prediction_is_compared_with_the_figure(row: tuple[Any, ...], found: tuple[Any, ...]) -> None:
    assert tuple(charts.compared(row) or ()) == found


def test_what_is_no_number_is_only_in_the_table() -> None:
    rows = [("choice", "both <rise>", "both fall", False), ("cost", "", "12.00 $/h", True)]
    assert [charts.compared(row) for row in rows] == [None, None]
    assert "both &lt;rise&gt;" in charts.table(rows, with_verdicts=False)
    assert "✗ missed" in charts.table(rows, with_verdicts=True)
    goals = charts.table([("p99 under 2 s", "", "3 s", False)], with_verdicts=False)
    assert "✗ not met" in goals and "you said" not in goals


def test_figures_over_time_are_found_in_a_result() -> None:
    times = list(range(8))
    by_columns = {"p99": 3.0, "load": {"seconds": times, "queue": times, "name": ["a"] * 8}}
    by_rows = {"load": [{"t": t, "queue": 2.0 * t} for t in times]}
    assert charts.series(by_columns) == ("seconds", {"seconds": times, "queue": times})
    assert charts.series(by_rows) == ("t", {"t": times, "queue": [2.0 * t for t in times]})
    assert charts.series({"t": [1, 2], "queue": [1, 2], "p99": 3}) is None


def test_markdown_of_scenarios_has_no_formulas_and_no_markup_of_the_page() -> None:
    assert markdown("$2 to $3, a < b, `$x <`") == "\\$2 to \\$3, a &lt; b, `$x <`"


def test_defaults_are_sensible_without_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    assert starting.defaults() == ("inference", "senior")
    assert not (tmp_path / "state.sqlite3").exists()


@pytest.mark.slow
def test_a_judge_that_passed_its_test_marks_the_report_of_the_page(open_page: Opener) -> None:
    server = Server()
    server.judge = generous
    try:
        save(JudgeSettings(server.url, "m", GateResult("m", prompt_hash(), 60, 1.0, 0.0, 0)))
        begun("never")
        app = open_page("s1")
        assert not app.exception and server.seen
    finally:
        server.close()
    found = load("s1")
    assert found is not None and any(row.judge is not None for row in found.axes)


def test_only_the_stages_of_a_session_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    shown = {}
    for minutes in (20, 45):
        with start(f"s{minutes}", minutes) as session:
            shown[minutes] = stages(SimpleNamespace(session=session, turn=session.turn))
    assert "Refute it" in shown[45] and "Refute it" not in shown[20]
    assert "Experiment" in shown[20] and "Warm-up" not in shown[20]
