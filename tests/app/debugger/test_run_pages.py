"""The pages Requests, Blocks & prefix tree and Metrics, run without a browser."""

from __future__ import annotations

import gzip
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app.debugger.trace_index import TraceIndex
from app.debugger.views.waits import WORDS
from engine.core.request import Request
from engine.sampling_params import SamplingParams
from engine.trace.reader import TraceReader
from engine.trace.writer import TraceWriter
from tests.app.debugger.pages import MAIN, Opener, said
from tests.trace.trace_workloads import header, make_scheduler, sample

PAGES = ("requests", "blocks", "metrics")


@pytest.fixture
def open_page(open_page: Opener) -> Opener:
    return lambda *args, **parameters: sound(open_page(*args, **parameters))


def sound(app: AppTest) -> AppTest:
    assert not app.exception, [(error.message, error.stack_trace) for error in app.exception]
    assert not app.error, [error.value for error in app.error]
    return app


def few_steps(path: Path, steps: int, abort: bool = False, requests: int = 1) -> Path:
    """A run that stops in the middle."""
    scheduler = make_scheduler()
    rng = random.Random(0)
    with TraceWriter(path, header(), scheduler) as tracer:
        for number in range(requests):
            request = Request(f"r{number}", list(range(9)), SamplingParams(max_tokens=30), number)
            scheduler.add(request)
            tracer.add(request)
        for _ in range(steps):
            out = scheduler.schedule()
            result = sample(scheduler, out, rng)
            tracer.step(out, result, scheduler.update(out, result), 0.0)
        if abort:
            tracer.abort([output.request_id for output in scheduler.abort(["r0"])])
    return path


@pytest.mark.parametrize("page", PAGES)
def test_without_a_run_the_page_says_where_to_choose_one(open_page: Opener, page: str) -> None:
    app = open_page(page, None)
    assert "No run is open" in app.info[0].value


@pytest.mark.parametrize("page", PAGES)
def test_a_run_that_is_gone_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    monkeypatch.setenv("PREP_APP_PAGE", page)
    app = AppTest.from_file(str(MAIN), default_timeout=30)
    app.query_params["run"] = "file:/nowhere/run.itrace"
    app.run()
    assert not app.exception and "no file run.itrace" in app.error[0].value


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(
    ("steps", "abort", "requests"),
    [(0, False, 0), (0, False, 1), (4, False, 0), (5, False, 1), (5, True, 1), (0, True, 1)],
)
def test_runs_without_steps_requests_or_ends_are_shown(
    open_page: Opener, tmp_path: Path, page: str, steps: int, abort: bool, requests: int
) -> None:
    open_page(
        page, few_steps(tmp_path / "run.itrace", steps, abort, requests), step=99, request="r0", block=1
    )


def test_the_table_of_requests_has_a_row_each_and_says_where_it_has_no_clock(
    open_page: Opener, trace: Path, tmp_path: Path
) -> None:
    frame = open_page("requests", trace).dataframe[0].value
    assert len(frame) == 24 and frame["preemptions"].sum() > 0
    app = open_page("requests", few_steps(tmp_path / "run.itrace", 5))
    assert app.dataframe[0].value.loc[0, "finish"] == "running"
    assert "ttft_ms" not in app.dataframe[0].proto.column_order


def test_a_row_of_the_table_opens_its_request(open_page: Opener, trace: Path) -> None:
    app = open_page("requests", trace)
    app.session_state["requests_table"] = {"selection": {"rows": [4], "columns": [], "cells": []}}
    sound(app.run())
    assert app.session_state["selection"].request == "r4"
    assert app.header[0].value == "Request r4"
    assert "**Preempted in step" in said(app) and "recomputed" in said(app)


def test_up_and_down_move_the_selection_along_the_list(open_page: Opener, trace: Path) -> None:
    app = open_page("requests", trace, request="r4")
    app = sound(app.button(key="requests_down").click().run())
    assert app.session_state["selection"].request == "r5" and app.header[0].value == "Request r5"
    app = sound(app.button(key="requests_up").click().run())
    assert app.session_state["selection"].request == "r4"
    first = open_page("requests", trace, request="r0")
    assert first.button(key="requests_up").disabled and not first.button(key="requests_down").disabled


def test_a_bar_sets_request_and_step_and_the_second_bearer_of_a_name_is_not_the_first(
    open_page: Opener, trace: Path
) -> None:
    app = open_page("requests", trace)
    names = app.dataframe[0].value["request"].tolist()
    second = max(number for number, name in enumerate(names) if names.count(name) > 1)
    app.session_state["requests_gantt"] = {"picked": {"id": second, "x": 50}}
    sound(app.run())
    chosen = app.session_state["selection"]
    assert (chosen.request, chosen.step) == (names[second], 50)
    assert app.session_state["request_number"] == second


def test_bars_can_be_read_as_a_table(open_page: Opener, trace: Path) -> None:
    app = open_page("requests", trace)
    app.session_state["requests_gantt_table"] = True
    bars = next(each.value for each in sound(app.run()).dataframe if "phase" in each.value.columns)
    waits = bars[bars["phase"].isin(["waiting", "preempted"])]
    assert set(waits["reason"]) <= set(WORDS.values()) and not set(bars["reason"]) <= set(WORDS.values())
    assert set(bars["phase"]) == {"waiting", "prefill", "decode", "preempted"}
    assert (bars["to step"] - bars["from step"] + 1 == bars["steps"]).all()


def test_filters_leave_those_who_were_preempted(open_page: Opener, trace: Path) -> None:
    app = open_page("requests", trace)
    app.session_state["requests_show"] = "preempted"
    frame = sound(app.run()).dataframe[0].value
    assert 0 < len(frame) < 24 and (frame["preemptions"] > 0).all()


def test_a_request_that_the_run_does_not_have_is_named(open_page: Opener, trace: Path) -> None:
    assert "no request 'r-none'" in said(open_page("requests", trace, request="r-none"))


def test_a_block_is_told_in_sentences_with_chain_and_history(open_page: Opener, trace: Path) -> None:
    app = open_page("blocks", trace, step=40, block=2)
    assert "**Block 2** is" in said(app) and "Last used in step" in said(app)
    assert any("event" in frame.value.columns for frame in app.dataframe)
    assert "There is no block 9999" in said(open_page("blocks", trace, step=40, block=9999))
    assert "null block" in said(open_page("blocks", trace, step=40, block=0))


def test_a_node_of_the_tree_opens_its_block_and_names_its_owners(open_page: Opener, trace: Path) -> None:
    app = open_page("blocks", trace, step=40)
    app.session_state["blocks_tree_table"] = True
    nodes = next(each.value for each in sound(app.run()).dataframe if "owners" in each.value.columns)
    node = int(nodes[nodes["owners"] != ""].index[0])
    app = open_page("blocks", trace, step=40)
    app.session_state["blocks_tree"] = {"picked": {"id": node, "x": int(nodes.loc[node, "from entry"])}}
    sound(app.run())
    assert app.session_state["selection"].block == nodes.loc[node, "first block"]
    assert f"held by {nodes.loc[node, 'owners']}" in said(app)


def test_a_row_of_the_eviction_order_opens_its_block(open_page: Opener, trace: Path) -> None:
    app = open_page("blocks", trace, step=40)
    queue = app.dataframe[-1].value["block"].tolist()
    app.session_state["blocks_queue_40_False"] = {"selection": {"rows": [1], "columns": [], "cells": []}}
    sound(app.run())
    assert app.session_state["selection"].block == queue[1]


@pytest.mark.parametrize("kind", ["held", "shared", "cached and free"])
def test_the_tree_can_be_narrowed_and_read_as_a_table(open_page: Opener, trace: Path, kind: str) -> None:
    app = open_page("blocks", trace, step=40)
    app.session_state["blocks_tree_kind"] = kind
    app.session_state["blocks_tree_table"] = True
    tables = [frame.value for frame in sound(app.run()).dataframe if "owners" in frame.value.columns]
    states = set(tables[0]["state"]) if tables else set()
    wanted = {"held": {"used", "shared"}, "shared": {"shared"}, "cached and free": {"cached"}}[kind]
    assert not tables or states & wanted


def test_a_brushed_range_is_kept_and_narrows_the_page_requests(
    open_page: Opener, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page("metrics", trace)
    app.session_state["metrics_lines"] = {"brushed": [10, 30]}
    sound(app.run())
    assert app.session_state["range"][1:] == (10, 30)
    assert "21 steps, 10 to 30" in said(app)
    app.session_state["metrics_lines"] = {"picked": 33}
    assert sound(app.run()).session_state["selection"].step == 33


def test_metrics_can_be_read_as_a_table_of_all_steps(open_page: Opener, trace: Path) -> None:
    app = open_page("metrics", trace)
    app.toggle(key="metrics_table").set_value(True)
    frame = sound(app.run()).dataframe[0].value
    assert len(frame) == 104 and list(frame)[:3] == ["step", "Running", "Waiting"]
    assert any(
        "Cached blocks reassigned to other tokens" in str(each.value.get("meaning", ""))
        for each in app.dataframe
    )


@dataclass
class GrowingRun:
    """A run that is read line by line while it goes on."""

    reader_: TraceReader
    run_id: str = "live:1"
    title: str = "an engine"
    is_live: bool = True
    warnings: tuple[str, ...] = ()

    @property
    def index(self) -> TraceIndex:
        return TraceIndex(self.reader_)

    def reader(self, step: int) -> TraceReader:
        return self.reader_


@pytest.mark.parametrize("page", PAGES)
def test_a_run_may_grow_between_two_looks(
    open_page: Opener, trace: Path, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    header_line, *lines = gzip.decompress(trace.read_bytes()).splitlines()
    run = GrowingRun(TraceReader.growing("an engine", header_line))
    monkeypatch.setattr("app.debugger.session.get_run", lambda run_id: run)
    app = open_page(page, trace, step=60, request="r4", block=3)
    while lines:
        for line in lines[:37]:
            run.reader_.feed(line)
        del lines[:37]
        sound(app.run())
    assert run.index.num_steps == 104
    sound(app.button(key=f"{page}_refresh").click().run())


def test_stepping_moves_the_state_that_is_shown(open_page: Opener, trace: Path) -> None:
    app = open_page("blocks", trace, step=40)
    app.button(key="blocks_after").click()
    sound(app.run())
    assert app.session_state["selection"].step == 41
    assert any(each.value == "Prefix tree after step 41" for each in app.header)
