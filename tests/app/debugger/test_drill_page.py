"""The page Drill room without a browser and without servers: its states, scores and wrong inputs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from typing import Any

import psutil
import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from app.cli.app import SCRIPT
from app.cli.main import app as prep
from app.debugger import tabs
from app.debugger.drill import held as drills
from app.debugger.drill.held import HELD, Held
from app.debugger.drill.stage_process import StageProcess
from app.debugger.views.drill_looks import charts_of, request_rows
from engine.config import ConfigError
from interview.drills.drill import causes, find_drill, load_drills
from interview.drills.figures import FIGURES, LOOKS
from interview.drills.score import MOST_NAMED
from interview.drills.session import Session, folder, is_held, read, sessions
from tests.app.debugger.drill_records import GOOD, run
from tests.waiting import LIMIT_S, wait_until

DRILL = find_drill("D01")
Opener = Callable[..., AppTest]


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Opener]:
    """Open the page; runs are made up, and take no time."""
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    monkeypatch.setenv("PREP_APP_PAGE", "drill")
    monkeypatch.setattr(StageProcess, "run", lambda self, stage, load, tell: run(stage, load, tell))

    def opened(drill: str | None = None) -> AppTest:
        app = AppTest.from_file(str(SCRIPT), default_timeout=30)
        if drill is not None:
            app.query_params["drill"] = drill
        return shown(app)

    yield opened
    for each in list(HELD.held.values()):
        drills.release(each)


def shown(app: AppTest) -> AppTest:
    app.run()
    assert not app.exception
    return app


def held() -> Held:
    return next(iter(HELD.held.values()))


def said(app: AppTest) -> str:
    """Return the texts of the page."""
    kinds = ("title", "header", "caption", "markdown", "error", "info")
    words = [str(element.value) for kind in kinds for element in getattr(app, kind)]
    return "\n".join([*words, *(element.proto.body for element in app.get("html"))])


def press(app: AppTest, key: str) -> AppTest:
    app.button(key=key).click()
    return shown(app)


def widget(app: AppTest, kind: str, name: str) -> Any:
    return getattr(app, kind)(key=f"drill {held().session.id} {name}")


def begun(app: AppTest) -> AppTest:
    """Begin D01, and wait for its runs."""
    app.selectbox[0].select(DRILL.code)
    press(app, "drill_begin")
    return settled(app)


def settled(app: AppTest) -> AppTest:
    job = held().job
    if job is not None:
        job.wait(20)
    return shown(app)


def stated(app: AppTest, cause: str = DRILL.cause) -> AppTest:
    widget(app, "radio", "cause").set_value(cause)
    widget(app, "multiselect", "evidence").set_value(["preemptions"])
    widget(app, "slider", "sure").set_value(80)
    return press(app, "drill_state")


def fixed(app: AppTest, number: int) -> AppTest:
    widget(app, "radio", "fix").set_value(number)
    press(app, "drill_apply")
    return settled(app)


def test_the_list_tells_symptoms_and_no_cause(open_page: Opener) -> None:
    app = open_page()
    assert app.title[0].value == "Drill room"
    assert len(app.selectbox[0].options) == len(load_drills()) + 1
    words = " ".join(app.selectbox[0].options)
    assert all(drill.title in words and drill.code in words for drill in load_drills())
    assert not [drill.id for drill in load_drills() if drill.id in words]


def test_a_drill_from_symptom_to_report(open_page: Opener) -> None:
    app = begun(open_page())
    assert app.title[0].value == f"D01 · {DRILL.title}"
    assert "0 looks · cost <b>0</b>" in said(app) and "0%" in said(app) and "100%" in said(app)
    assert not any(
        causes()[drill.cause] in said(app) for drill in load_drills() if drill.cause not in DRILL.hypotheses
    )
    press(app, "drill_look_queue")
    assert "1 look · cost <b>1</b>" in said(app) and "preemptions" in said(app)
    press(app, "drill_look_config")
    press(app, "drill_look_queue")
    assert "2 looks · cost <b>4</b> · 0 points lost" in said(app), "a look is paid once"
    stated(app)
    assert f"Stated, 80 % sure: {causes()[DRILL.cause]}" in said(app)
    fixed(app, 1)
    assert "objective missed" in said(app)
    fixed(app, DRILL.right_fixes[0])
    assert "objective met" in said(app)
    name = held().session.id
    press(app, "drill_end")
    assert not HELD.held and app.title[0].value == f"Debrief · D01 · {DRILL.title}"
    assert (
        "80 of 100 · solved" in said(app)
        and "1 of 2 figures" in said(app)
        and "Brier score of your first statement 0.04" in said(app)
    )
    assert DRILL.debrief.say in said(app) and DRILL.debrief.question in said(app)
    assert app.get("download_button")
    done = CliRunner().invoke(prep, ["drill", "report", name, "--markdown"])
    assert (
        done.exit_code == 0
        and f"80 % sure: {causes()[DRILL.cause].rstrip('.')}, because of preemptions." in done.output
    )
    for words in ("| preemptions (decides) | 0 | 230 | 0 |", "| figure | yesterday | today | with the fix |"):
        assert words in done.output
    assert "because of preemptions: yesterday 0, today 230, with the fix 0" in said(app)
    row = said(app).split(f"{FIGURES['preemptions'].says}</th>")[1].split("</tr>")[0]
    assert [row.count(f">{value}<") for value in (0, 230)] == [2, 1], "yesterday, today and with the fix"
    press(app, "drill_again")
    assert "D01 · 80 of 100" in app.button(key=f"drill_open_{name}").label
    press(app, f"drill_open_{name}")
    assert "80 of 100 · solved" in said(app)


def test_each_look_shows_its_figures_beside_those_of_yesterday(open_page: Opener) -> None:
    app = begun(open_page())
    session = held().session
    for name in LOOKS:
        press(app, f"drill_look_{name}")
        assert f"{name}: {LOOKS[name].shows}" in said(app)
        charts = charts_of(name, session.record, session.before)
        assert bool(charts.pairs) == bool(
            [each for each in app.get("bidi_component") if "lines" in str(each.proto)]
        )
    assert app.code[0].value == f"prep serve shop --max-num-seqs {DRILL.fault.set['max-num-seqs']}"


def test_what_is_missing_is_said_and_nothing_typed_is_lost(open_page: Opener) -> None:
    app = begun(open_page())
    press(app, "drill_state")
    assert app.error[0].value == "Choose a cause."
    widget(app, "radio", "cause").set_value(DRILL.hypotheses[0])
    press(app, "drill_state")
    assert "Name the figures that decide" in app.error[0].value
    press(app, "drill_apply")
    assert "Choose a fix" in app.error[0].value
    widget(app, "radio", "fix").set_value(0)
    shown(app)
    widget(app, "text_input", "own").set_value("port=80")
    press(app, "drill_apply")
    assert "Port belongs to the drill" in app.error[0].value
    widget(app, "text_input", "own").set_value("max-num-seqs=nonsense")
    press(app, "drill_apply")
    settled(app)
    assert "does not start: --max-num-seqs takes a number" in app.error[0].value
    assert held().session.num_fixes == 0 and held().draft["cause"] == DRILL.hypotheses[0]
    widget(app, "text_input", "own").set_value(f"max-num-seqs={GOOD}")
    press(app, "drill_apply")
    settled(app)
    assert not app.error and "objective met" in said(app)


def test_looks_end_with_the_time_and_the_paid_ones_stay(open_page: Opener) -> None:
    app = begun(open_page())
    press(app, "drill_look_queue")
    held().session._deadline = time.monotonic() - 1
    press(app, "drill_look_config")
    assert "The time is over" in app.error[0].value and held().session.looked == ["queue"]
    press(app, "drill_look_queue")
    assert not app.error


def test_a_reloaded_tab_goes_on_and_a_second_one_is_told(
    open_page: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = begun(open_page())
    press(app, "drill_look_queue")
    widget(app, "radio", "cause").set_value("kv_too_small")
    widget(app, "multiselect", "evidence").set_value(["preemptions"])
    shown(app)
    name, before = held().session.id, held()
    again = open_page(name)
    assert held() is before and again.title[0].value.startswith("D01")
    assert widget(again, "radio", "cause").value == "kv_too_small"
    assert widget(again, "multiselect", "evidence").value == ["preemptions"]
    assert "1 look · cost <b>1</b>" in said(again)
    monkeypatch.setattr(tabs, "PATIENCE_S", 0.0)
    monkeypatch.setattr(tabs, "is_open", lambda tab: True)
    held().owner = "another tab"
    fresh = open_page(name)
    assert "open in another tab" in fresh.info[0].value
    monkeypatch.setattr("app.debugger.drill.room.tab_id", lambda: "fresh tab")
    press(fresh, "drill_move")
    assert held().owner == "fresh tab" and fresh.button(key="drill_end") and "1 look" in said(fresh)
    monkeypatch.setattr("app.debugger.drill.room.tab_id", lambda: "another tab")
    assert "open in another tab" in shown(again).info[0].value


def test_a_drill_of_a_terminal_is_not_called_interrupted(open_page: Opener) -> None:
    session = Session.start(DRILL)
    app = open_page(session.id)
    assert "runs in a terminal" in app.info[0].value and is_held(session.id)
    session.close()
    press(app, "drill_retry")
    assert "was interrupted" in app.info[0].value and not is_held(session.id)


def test_the_clock_stands_still_while_a_load_runs_again(open_page: Opener) -> None:
    app = begun(open_page())
    session = held().session
    session._deadline = time.monotonic() + 60
    left: list[float] = []

    def slow(stage: Any, load: Any, tell: Any) -> Any:
        assert session._stopped is not None
        session._stopped -= 30  # the fix began half a minute ago
        left.append(session.seconds_left)
        session._deadline -= 30
        return run(stage, load, tell)

    session._runs = slow
    fixed(app, DRILL.right_fixes[0])
    assert left == [pytest.approx(90, abs=5)] and session.seconds_left == pytest.approx(60, abs=5)


def test_a_hypothesis_names_at_most_four_figures(open_page: Opener) -> None:
    app = begun(open_page())
    for name in ("queue", "cache"):
        press(app, f"drill_look_{name}")
    assert widget(app, "multiselect", "evidence").proto.max_selections == MOST_NAMED
    with pytest.raises(ConfigError, match="name at most 4 figures that decide, got 5"):
        held().session.guess(DRILL.cause, 50, list(FIGURES)[:5])


def test_a_drill_of_a_closed_tab_waits_an_hour_with_its_run(
    open_page: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = begun(open_page())
    press(app, "drill_look_queue")
    monkeypatch.setattr(tabs, "is_open", lambda tab: tab != "closed")
    name = held().session.id
    held().owner, held().left_at = "closed", time.monotonic() - tabs.LEFT_S
    HELD.release_left()
    assert open_page(name).button(key="drill_end"), "it waits for its learner"
    go = threading.Event()
    monkeypatch.setattr(held().session, "_runs", lambda *given: (go.wait(20), run(*given))[1])
    held().apply(DRILL.right_fixes[0])
    held().owner, held().left_at = "closed", time.monotonic() - 10 * tabs.LEFT_S
    HELD.release_left()
    go.set()
    held().job.wait(20)
    held().settle()
    assert [result.is_met for _, result in held().fixes] == [True], "a run under way goes on without its tab"
    held().owner, held().left_at = "closed", time.monotonic() - drills.WAITS_S
    HELD.release_left()
    assert not HELD.held and [event["event"] for event in read(name)] == [
        "start",
        "healthy",
        "faulty",
        "look",
        "fix",
    ]
    later = open_page(name)
    assert "was interrupted" in later.info[0].value and 'class="decides"' not in said(later)
    assert causes()[DRILL.cause] not in said(later), "the cause stays secret"


def test_runs_show_how_far_they_are_and_can_be_stopped(
    open_page: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    def waits(self: StageProcess, stage: Any, load: Any, tell: Any) -> Any:
        tell("load: 3 of 17 sent")
        go.wait(LIMIT_S)
        raise ValueError("the drill was stopped")

    monkeypatch.setattr(StageProcess, "run", waits)
    monkeypatch.setattr(StageProcess, "stop", lambda self: go.set())
    app = open_page()
    app.selectbox[0].select(DRILL.code)
    press(app, "drill_begin")
    wait_until(lambda: "3 of 17" in said(shown(app)))
    assert (
        "Yesterday: the healthy server" in said(app) and "of about 14 s" in said(app) and "waits" in said(app)
    )
    press(app, "drill_stop")
    assert not HELD.held and app.title[0].value == "Drill room"
    assert "not ended" in app.button(key=f"drill_open_{sessions()[0]}").label


@pytest.mark.parametrize("name", ["yesterday", "../../x", "D99"])
def test_an_unknown_drill_in_the_address_is_a_sentence(open_page: Opener, name: str) -> None:
    app = open_page(name)
    assert "No session of a drill is called" in app.error[0].value
    press(app, "drill_all")
    assert app.title[0].value == "Drill room" and not app.error


def test_a_damaged_session_and_missing_libraries_are_sentences(
    open_page: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder().mkdir(parents=True)
    (folder() / "20260101-120000-D01.jsonl").write_text("{}\n")
    app = open_page()
    assert "damaged" in app.button(key="drill_open_20260101-120000-D01").label
    press(app, "drill_open_20260101-120000-D01")
    assert "is damaged" in app.error[0].value
    monkeypatch.setattr("app.debugger.pages.drill.LIBRARIES", ("fastapi", "no_such_library"))
    assert find_spec("no_such_library") is None
    assert "Drills need no_such_library, not installed here" in open_page().error[0].value


def test_columns_of_two_runs_are_the_same_and_gaps_stay_empty() -> None:
    healthy, load = DRILL.changed()
    faulty, _ = DRILL.changed(DRILL.fault)
    today, yesterday = (run(stage, load, lambda text: None) for stage in (faulty, healthy))
    for name in LOOKS:
        charts = charts_of(name, today, yesterday)
        assert all(len(pair.today) == len(pair.yesterday) == charts.num_columns for pair in charts.pairs)
    queue = {pair.title: pair for pair in charts_of("queue", today, yesterday).pairs}
    assert set(queue["Preempted"].today) == {40.0} and set(queue["Preempted"].yesterday) == {0.0}
    clients = {pair.title: pair for pair in charts_of("clients", today, yesterday).pairs}
    ttft = [value for value in clients["TTFT"].today if not isnan(value)]
    assert ttft == pytest.approx([400.0] * len(ttft)) and len(ttft) < len(clients["TTFT"].today)
    rows = request_rows(today)
    assert len(rows) == len(today.due) and [row["at, s"] for row in rows] == sorted(
        row["at, s"] for row in rows
    )


def servers(of: psutil.Process) -> list[psutil.Process]:
    return [
        child for child in of.children(recursive=True) if "interview.drills.faulty_server" in child.cmdline()
    ]


@pytest.mark.slow
def test_stopping_a_real_run_leaves_no_process_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    held = drills.begin(DRILL, 15, "no tab")
    found = wait_until(lambda: servers(psutil.Process()))
    job = held.job
    assert job is not None and list(tmp_path.glob("prep-drill-*"))
    drills.release(held)
    assert job.is_done and str(job.error) == "the drill was stopped"
    assert not psutil.wait_procs(found, 20)[1]
    assert not list(tmp_path.glob("prep-drill-*")) and not HELD.held
