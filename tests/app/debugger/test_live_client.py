"""Following an engine over its debug port: what a view shows is the engine's state, whatever happens to the engine."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.debugger.column_reader import read_columns
from app.debugger.live import registry
from app.debugger.live.client import GOES_ON, LiveError, LiveRun, LiveView, Port
from engine.trace.reader import TraceReader
from tests.core.debug_engine import SmallEngine, while_stepping
from tests.trace.trace_workloads import Snapshot


@pytest.fixture
def engine() -> Iterator[SmallEngine]:
    engine = SmallEngine(num_blocks=24)
    yield engine
    engine.close()


def follow(engine: SmallEngine) -> tuple[LiveRun, LiveView]:
    run = LiveRun("live:1", "test", Port(engine.debug.url))
    return run, LiveView(run)


def caught_up(view: LiveView, engine: SmallEngine) -> LiveView:
    """The view when all lines that the engine has written have arrived."""
    while view.live.lines.num_lines < engine.debug.feed.num_lines and view.live.end is None:
        view.live.lines.read(view.live.lines.num_lines, 1.0)
    return view.catch_up()


@pytest.mark.parametrize("attach_at", [0, 1, 150])
def test_a_view_shows_the_engines_state_after_every_step_however_late_one_attaches(
    engine: SmallEngine, attach_at: int
) -> None:
    for number in range(12):
        engine.add(f"r{number}", num_prompt=5 + 7 * (number % 4), max_tokens=20 + number)
    states = []
    run = view = None
    while engine.scheduler.has_unfinished():
        if len(states) == attach_at:
            run, view = follow(engine)
        if len(states) == 60:
            engine.abort(["r3", "r11"])
        assert engine.step()
        states.append(Snapshot.of(engine.scheduler))
        if view is not None and len(states) % 40 == 0:
            assert caught_up(view, engine).index.num_steps == len(states)
    if view is None or run is None:
        run, view = follow(engine)
    caught_up(view, engine)
    reader = view.reader(0)
    assert reader.num_steps == len(states) and not reader.problems and not view.warnings
    for step, state in enumerate(states):
        shown = reader.state_at(step)
        assert (shown.running, shown.block_tables) == (state.running, state.tables)
        assert (list(shown.blocks.ref), shown.num_computed) == (state.refs, state.num_computed)
    run.leave("over")


def test_two_views_of_one_run_grow_apart(engine: SmallEngine) -> None:
    run, first = follow(engine)
    second = LiveView(run)
    engine.add("a")
    engine.step()
    assert caught_up(first, engine).index.num_steps == 1
    engine.step()
    assert first.index.num_steps == 1, "only its own tab makes it grow"
    assert caught_up(second, engine).index.num_steps == 2
    run.leave("over")


def test_a_run_is_told_and_tells_what_the_engine_refuses(engine: SmallEngine) -> None:
    run, view = follow(engine)
    assert run.tell("pause")["paused"]
    assert while_stepping(engine, lambda: run.tell("inject", prompt_token_ids=[1, 2])) == {
        "request_ids": ["injected-1"]
    }
    with pytest.raises(LiveError, match="the whole KV cache has 23"):
        while_stepping(engine, lambda: run.tell("inject", prompt_token_ids=[1] * 90, max_tokens=9))
    with pytest.raises(LiveError, match="no unfinished request 'b'"):
        while_stepping(engine, lambda: run.tell("abort", request_id="b"))
    run.leave("over")


def test_a_run_that_is_saved_while_its_engine_lives_is_no_run_of_a_killed_engine(
    engine: SmallEngine, tmp_path: Path
) -> None:
    engine.add("a")
    run, view = follow(engine)
    for _ in range(3):
        engine.step()
    caught_up(view, engine)
    run.save(tmp_path / "so-far.itrace")
    saved = TraceReader(tmp_path / "so-far.itrace")
    assert saved.num_steps == 3 and saved.is_complete and saved.notes == [GOES_ON]
    assert not saved.warnings and not saved.problems, "its checksum is that of a writer"
    assert read_columns(tmp_path / "so-far.itrace").notes == [GOES_ON]
    run.leave("over")


def test_what_was_seen_of_an_engine_that_died_stays_and_can_be_saved(
    engine: SmallEngine, tmp_path: Path
) -> None:
    engine.add("a")
    engine.step()
    run, view = follow(engine)
    engine.step()
    engine.tracer.error(ValueError("a page too far"))
    run.wait(10)
    assert run.end is not None and "ValueError: a page too far" in run.end
    assert view.catch_up().index.num_steps == 2
    assert any("a page too far" in warning for warning in view.warnings)
    with pytest.raises(LiveError, match="has ended"):
        run.tell("pause")
    run.save(tmp_path / "died.itrace")
    saved = TraceReader(tmp_path / "died.itrace")
    assert saved.num_steps == 2 and saved.error == "ValueError: a page too far" and not saved.problems


def test_an_engine_that_is_shut_down_while_attached_hands_over_its_last_lines(engine: SmallEngine) -> None:
    run, view = follow(engine)
    engine.add("a", max_tokens=3)
    while engine.scheduler.has_unfinished():
        engine.step()
    engine.close()
    run.wait(10)
    assert run.end == "the engine was shut down"
    assert view.catch_up().reader(0).is_complete


def test_nobody_there_a_wrong_token_and_addresses_of_something_else(engine: SmallEngine) -> None:
    address, _, _ = engine.debug.url.partition("?")
    for url, words in [
        ("", "is not the address of a debug port"),
        ("http://192.168.0.1:80/?token=x", "on this machine"),
        ("http://127.0.0.1:1/?token=x", "no answer from"),
        (f"{address}?token=wrong", "the token is not this engine's"),
        (address, "the token is missing"),
    ]:
        with pytest.raises(LiveError, match=words):
            registry.attach(url)
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    server.RequestHandlerClass.log_message = lambda *_: None
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    with pytest.raises(LiveError, match="is not a debug port"):
        registry.attach(f"http://127.0.0.1:{server.server_port}/?token=x")
    server.shutdown()
    server.server_close()


def test_attaching_twice_is_one_run_and_leaving_it_leaves_the_engine_alone(engine: SmallEngine) -> None:
    run = registry.attach(engine.debug.url)
    assert registry.attach(engine.debug.url) is run
    with pytest.raises(LiveError, match="cannot be rewound"):
        registry.rewind(run.run_id, 0)
    registry.stop(run.run_id)
    assert run.end is not None and "the engine continues" in run.end
    assert registry.attach(engine.debug.url) is not run
    assert Port(engine.debug.url).info()["model"] == "random"
