"""The engine writes its trace: real model, real steps, real interruptions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.engine_core import EngineCore
from engine.trace.format import TraceError
from engine.trace.reader import TraceReader
from tests.engine.harness import request, run, tokens

MakeEngine = Callable[..., EngineCore]


def test_a_traced_engine_replays_to_its_own_state_and_tokens(make_engine: MakeEngine, tmp_path: Path) -> None:
    path = tmp_path / "run.itrace"
    engine = make_engine(trace=str(path), num_gpu_blocks_override=20, max_num_batched_tokens=64)
    outputs = run(engine, [request(f"r{i}", [5, 6, 7, 8] * 3 + [i], max_tokens=20) for i in range(8)])
    engine.shutdown()
    reader = TraceReader(path)
    assert (reader.problems, reader.warnings) == ([], []) and reader.is_complete
    assert {name: [token for _, token in reader.tokens(name)] for name in outputs} == tokens(outputs)
    assert reader.events("preempt") and reader.events("hit")
    assert reader.header["config"]["scheduler"]["max_num_batched_tokens"] == 64
    assert reader.header["blocks"] == 20 and reader.header["seed"] == 0


def test_an_engine_says_the_same_with_and_without_a_trace(make_engine: MakeEngine, tmp_path: Path) -> None:
    said = []
    for trace in (None, str(tmp_path / "run.itrace")):
        engine = make_engine(trace=trace, num_gpu_blocks_override=20)
        requests = [request(f"r{i}", [i, 3, 4], temperature=1.0, seed=i) for i in range(6)]
        said.append(tokens(run(engine, requests)))
    assert said[0] == said[1]


def test_aborts_reach_the_trace_with_their_blocks(make_engine: MakeEngine, tmp_path: Path) -> None:
    path = tmp_path / "run.itrace"
    engine = make_engine(trace=str(path))
    for number in range(3):
        engine.add_request(request(f"r{number}", [1, 2, 3]))
    engine.step()
    engine.abort(["r1", "unknown"])
    engine.abort(["r1"])
    engine.step()
    engine.shutdown()
    reader = TraceReader(path)
    assert reader.problems == []
    assert [(event.step, event.request_id) for event in reader.events("abort")] == [(1, "r1")]
    assert reader.state_at(1).running == ["r0", "r2"]


def test_ctrl_c_in_a_step_leaves_a_trace_that_goes_on_with_the_next_request(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.itrace"
    engine = make_engine(trace=str(path))
    engine.add_request(request("r0", [1, 2, 3]))
    engine.step()

    def interrupt(*_step: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine.executor, "submit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    run(engine, [request("r1", [1, 2, 3])])
    engine.shutdown()
    reader = TraceReader(path)
    assert reader.problems == [] and reader.is_complete
    assert reader.warnings == ["the engine raised KeyboardInterrupt: "]
    assert reader.find("r0").aborted and len(reader.find("r1").tokens) == 8


def test_an_engine_that_dies_leaves_a_trace_that_says_why(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.itrace"
    engine = make_engine(trace=str(path))
    engine.add_request(request("r0", [1, 2, 3]))
    engine.step()

    def fail(*_step: object) -> None:
        raise RuntimeError("the worker fell over")

    monkeypatch.setattr(engine.executor, "submit", fail)
    engine.step()
    reader = TraceReader(path)
    assert reader.error == "RuntimeError: the worker fell over"
    assert reader.num_steps == 1 and reader.problems == []


def test_record_names_a_file_by_environment_and_a_second_engine_gets_its_own(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREP_TRACE", str(tmp_path / "run.itrace"))
    for _ in range(2):
        engine = make_engine()
        run(engine, [request("r0", [1, 2, 3])])
        engine.shutdown()
    for name in ("run.itrace", "run-2.itrace"):
        assert TraceReader(tmp_path / name).is_complete


def test_a_trace_into_nowhere_is_refused_before_the_engine_runs(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    with pytest.raises(TraceError, match="folder that exists"):
        make_engine(trace=str(tmp_path / "nowhere" / "run.itrace"))


def test_the_header_can_be_read_by_any_json_reader(make_engine: MakeEngine, tmp_path: Path) -> None:
    path = tmp_path / "run.itrace"
    make_engine(trace=str(path), hf_overrides={"rope_theta": 5.0}).shutdown()
    header = TraceReader(path).header
    assert header["config"]["args"]["hf_overrides"] == {"rope_theta": 5.0}
    assert json.loads(json.dumps(header)) == header
