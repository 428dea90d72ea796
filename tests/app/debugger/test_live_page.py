"""The page Live over a small engine in this process, and over what cannot be attached to or started."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import TextInput

from app.debugger.live import registry
from app.debugger.live.client import LiveRun, LiveView
from app.debugger.runs import open_run
from tests.core.debug_engine import SmallEngine
from tests.waiting import wait_until


def page() -> None:
    from app.debugger.pages import live

    live.show()


def compare_page() -> None:
    from app.debugger.pages import compare

    compare.show()


class RunningEngine(SmallEngine):
    """Stepped by a thread of its own, from pause to pause."""

    def __init__(self) -> None:
        super().__init__(num_blocks=24)
        self.debug.control.pause()
        for number in range(6):
            self.add(f"r{number}", num_prompt=12, max_tokens=40)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            self.step()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        super().close()


@pytest.fixture
def engine() -> Iterator[RunningEngine]:
    engine = RunningEngine()
    yield engine
    engine.close()


@pytest.fixture
def app() -> AppTest:
    return AppTest.from_function(page, default_timeout=30)


@pytest.fixture
def attached(app: AppTest, engine: RunningEngine) -> AppTest:
    app.query_params["attach"] = engine.debug.url
    app.run()
    assert not app.exception
    return app


def status(app: AppTest) -> str:
    """The page's status line."""
    return next(element.proto.body for element in app.get("html") if "live-status" in element.proto.body)


def run_of(engine: SmallEngine) -> LiveRun:
    return registry.attach(engine.debug.url)


def press(app: AppTest, label: str) -> AppTest:
    next(button for button in app.button if button.label == label).click()
    app.run()
    assert not app.exception
    return app


def until_step(engine: RunningEngine, step: int) -> None:
    wait_until(lambda: engine.debug.info()["step"] >= step and engine.debug.info()["paused"])
    lines = run_of(engine).lines
    while lines.num_lines < engine.debug.feed.num_lines:
        lines.read(lines.num_lines, 1.0)


def test_attach_pause_step_and_what_the_page_says_of_it(attached: AppTest, engine: RunningEngine) -> None:
    assert "attach" not in attached.query_params, "the token does not stay in the address"
    assert "before step 0" in status(attached) and "6 waiting" in status(attached)
    assert any("No step has run yet" in info.value for info in attached.info)
    press(attached, "Step 10")
    until_step(engine, 9)
    press(attached, "Step")
    until_step(engine, 10)
    attached.run()
    assert "after step 10" in status(attached) and "the requested steps have run" in status(attached)
    free = len(engine.scheduler.kv.pool.free)
    assert f"{free} of 23 blocks free" in status(attached)
    assert attached.get("bidi_component"), "the step view"
    press(attached, "Run")
    assert not engine.debug.info()["paused"]
    press(attached, "Pause")
    assert engine.debug.info()["paused"] and "a user asked for it" in status(attached)


def test_inject_abort_and_breakpoints_from_the_page(attached: AppTest, engine: RunningEngine) -> None:
    press(attached, "Step")
    until_step(engine, 0)
    attached.run()
    attached.text_area(key="inject prompt").input("3 4 5")
    press(attached, "Inject")
    assert "injected-1 waits" in attached.success[0].value
    assert engine.scheduler.requests["injected-1"].prompt_token_ids == [3, 4, 5]
    attached.text_area(key="inject prompt").input(" ".join(["7"] * 95))
    press(attached, "Inject")
    assert "whole KV cache has 23" in attached.error[0].value
    attached.selectbox(key="abort request").select("r3")
    press(attached, "Abort it")
    assert "r3 is aborted" in attached.success[0].value and "r3" not in engine.scheduler.requests
    of_request(attached).input("r5")
    press(attached, "Set")
    assert engine.debug.info()["breakpoints"] == [{"request": "r5"}]


def of_request(app: AppTest) -> TextInput:
    return next(box for box in app.text_input if box.label == "anything about request")


def test_the_engines_breakpoints_are_the_only_list_and_every_tab_shows_it(
    attached: AppTest, engine: RunningEngine
) -> None:
    run_of(engine).tell(
        "breakpoints", breakpoints=[{"event": "preempt"}, {"request": "r2"}, {"free_below": 4}]
    )
    attached.run()
    assert "stops at preempt, any event of r2, free &lt; 4" in status(attached)
    assert of_request(attached).value == "r2"
    of_request(attached).input("")
    press(attached, "Set")
    assert engine.debug.info()["breakpoints"] == [{"event": "preempt"}, {"free_below": 4}]
    assert of_request(attached).value == "" and "any event" not in status(attached)
    run_of(engine).tell("breakpoints", breakpoints=[])
    attached.run()
    assert "stops at" not in status(attached)


def test_the_status_line_counts_as_the_panels_do_and_tells_what_came_since(
    attached: AppTest, engine: RunningEngine
) -> None:
    press(attached, "Step")
    until_step(engine, 0)
    view = LiveView(run_of(engine)).catch_up()
    figures = (
        f"after step 0 · {view.index.series.running[0]} running · {view.index.series.waiting[0]} waiting · "
    )
    assert figures in status(attached.run()) and "since this step" not in status(attached)
    run_of(engine).tell("inject", prompt_token_ids=[3, 4, 5])
    run_of(engine).tell("abort", request_id="r3")
    until_step(engine, 0)
    assert "injected-1" in engine.scheduler.requests and "r3" not in engine.scheduler.requests
    assert figures in status(attached.run())
    assert status(attached).endswith("since this step: 1 added, 1 aborted</div>")
    press(attached, "Step")
    until_step(engine, 1)
    assert "after step 1" in status(attached.run()) and "since this step" not in status(attached)


def test_a_dead_engine_is_named_and_its_run_can_be_saved(
    attached: AppTest,
    engine: RunningEngine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("PREP_HOME", str(home))
    press(attached, "Step")
    until_step(engine, 0)
    run = run_of(engine)
    engine.tracer.error(RuntimeError("a leak"))
    run.wait(10)
    attached.run()
    assert "ended: the engine died: RuntimeError: a leak" in status(attached)
    assert not any(button.label in ("Run", "Pause", "Detach") for button in attached.button)
    attached.text_input(key="save name").input("it died")
    press(attached, "Save the run so far")
    assert "mine:it-died" in attached.success[0].value
    assert list(home.rglob("it-died.itrace"))


def test_a_live_run_is_saved_and_opened_for_a_fork_at_the_same_step_by_one_click(
    engine: RunningEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    run = run_of(engine)
    run.tell("step", n=10)
    until_step(engine, 9)
    compare = AppTest.from_function(compare_page, default_timeout=30)
    compare.query_params.update({"run": run.run_id, "step": "4"})
    press(compare.run(), "Save and fork")
    chosen = compare.session_state["selection"]
    assert chosen.run.startswith("mine:") and chosen.run.endswith("-to-step-9") and chosen.step == 4
    assert open_run(chosen.run).index.num_steps == 10
    box = next(box for box in compare.number_input if box.label == "Fork at step, 0 to 9")
    assert box.value == 4


def test_two_tabs_control_one_engine(attached: AppTest, engine: RunningEngine) -> None:
    other = AppTest.from_function(page, default_timeout=30)
    other.query_params["run"] = run_of(engine).run_id
    other.run()
    press(attached, "Step 10")
    until_step(engine, 9)
    other.run()
    assert "after step 9" in status(other) and status(other) == status(attached.run())


def test_what_cannot_be_attached_to_is_said_on_the_page(app: AppTest, engine: RunningEngine) -> None:
    app.query_params["attach"] = engine.debug.url.replace("token=", "token=x")
    app.run()
    assert "the token is not this engine's" in app.error[0].value and not app.exception
    app.text_input(key="attach url").input("http://127.0.0.1:9/?token=x")
    press(app, "Attach")
    assert "no answer from" in app.error[0].value


def test_a_live_run_of_an_earlier_server_is_gone_and_said_to_be(app: AppTest) -> None:
    app.query_params["run"] = "live:999"
    app.run()
    assert "live runs end with their workbench" in app.error[0].value
    assert any(button.label == "Start the engine" for button in app.button)


def test_an_engine_that_does_not_start_says_why(app: AppTest) -> None:
    app.run()
    app.text_input(key="scheduler").input("no.such.module:Scheduler")
    press(app, "Start the engine")
    assert "cannot be imported: No module named 'no'" in app.error[0].value
