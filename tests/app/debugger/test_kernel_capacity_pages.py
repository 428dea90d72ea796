"""The pages Kernel view and Capacity, run without a browser."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from app.debugger.kernel_walk.client import Job
from app.debugger.kernel_walk.question import Question
from app.debugger.pages import kernel
from engine.trace import format, reader
from engine.trace.reader import TraceReader
from tests.app.debugger.pages import Opener, said

# ---------------------------------------------------------------------- kernel view


def moment(trace: Path) -> tuple[int, str, list[int]]:
    """A step, a request that runs after it, and its block table."""
    state = TraceReader(trace).state_at(40)
    request = max(state.block_tables, key=lambda name: len(state.block_tables[name]))
    return 40, request, state.block_tables[request]


def test_a_run_without_a_model_shows_what_is_exact_and_says_what_is_missing(
    open_page: Opener, trace: Path
) -> None:
    step, request, blocks = moment(trace)
    app = open_page("kernel", run=f"file:{trace}", step=step, request=request)
    assert not app.exception and not app.error
    assert "No scores" in said(app) and "comes from the trace alone and is exact" in said(app)
    app.toggle(key="kernel table").set_value(True).run()
    frame = app.dataframe[0].value
    assert frame["block"].fillna(0).tolist() == blocks, "0 stands for those behind the window"


def test_a_request_without_blocks_has_a_way_to_a_step_where_it_has_some(
    open_page: Opener, trace: Path
) -> None:
    reader = TraceReader(trace)
    late = reader.requests[-1]
    app = open_page("kernel", run=f"file:{trace}", step=0, request=late.request_id)
    assert not app.exception and "has no blocks" in said(app)
    app.button(key="kernel jump").click().run()
    assert not app.exception
    step = app.session_state["selection"].step
    assert late.request_id in reader.state_at(step).block_tables


class Answers:
    """A client in place of the worker."""

    def __init__(self, **job: Any) -> None:
        self.asked: list[Question] = []
        self.job = Job(time.monotonic())
        self.job.progress = "Loading shop …"
        if job:
            self.job.end(job.get("answer"), job.get("error", ""))

    def forget(self, question: Question) -> None:
        self.job = Job(time.monotonic())
        self.job.progress = "Asking the model …"

    def ask(self, question: Question) -> Job:
        self.asked.append(question)
        return self.job

    def check_time(self, job: Job) -> None: ...


def with_model(trace: Path, monkeypatch: pytest.MonkeyPatch, client: Answers) -> None:
    """The run as if `shop` had made it, and the client in place of the worker."""

    def read_header(line: bytes, path: Path) -> dict[str, Any]:
        header = format.read_header(line, path)
        return {**header, "model": "shop", "config": {**header.get("config", {}), "args": {"model": "shop"}}}

    monkeypatch.setattr(reader, "read_header", read_header)
    monkeypatch.setattr(kernel, "_client", lambda: client)
    import streamlit as st

    st.cache_resource.clear()


def an_answer(seq_len: int, blocks: list[int], block_size: int) -> dict[str, Any]:
    pages = [
        {
            "page": page, "block_id": block, "first": page * block_size,
            "end": min(seq_len, (page + 1) * block_size), "score_max": 1.0 + page, "m": 1.0 + page, "rescale": 0.5,
            "added": 1.5, "mass": 2.0, "share": 1 / len(blocks),
            "scores": [0.5] * (min(seq_len, (page + 1) * block_size) - page * block_size), "acc": [0.1, -0.2],
            "bytes": 512,
        }
        for page, block in enumerate(blocks)
        if page * block_size < seq_len
    ]  # fmt: skip
    return {
        "model": "shop", "dtype": "float32", "kv_dtype": "float32", "num_layers": 6, "num_heads": 8, "num_kv_heads": 4,
        "head_dim": 32, "sliding_window": None, "scale": 0.2, "layer": 2, "head": 5, "position": seq_len - 1,
        "row_start": seq_len - 1, "difference": 1e-6, "largest": 2.5, "pages": pages, "output": [0.1, 0.2],
        "bytes_read": 512 * len(pages), "shares": [[1 / len(pages)] * len(pages)] * 8,
    }  # fmt: skip


def test_layer_and_head_come_from_the_link_and_are_asked_for(
    open_page: Opener, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, request, blocks = moment(trace)
    reader = TraceReader(trace)
    seq_len = reader.state_at(step).num_computed[request]
    client = Answers(answer=an_answer(seq_len, blocks, reader.block_size))
    with_model(trace, monkeypatch, client)
    app = open_page("kernel", run=f"file:{trace}", step=step, request=request, layer=2, head=5)
    assert not app.exception and "No scores" not in said(app)
    assert (client.asked[-1].layer, client.asked[-1].head) == (2, 5)
    assert client.asked[-1].table == blocks[: -(-seq_len // reader.block_size)]
    history = reader.find(request, step)
    outputs = history.tokens[: history.num_outputs_at(step)].tolist()
    assert client.asked[-1].tokens == [*history.record["prompt"], *outputs][:seq_len]
    assert "Head 5 reads kv head 2 of 4" in said(app)
    app.number_input(key="kernel layer").set_value(4).run()
    assert client.asked[-1].layer == 4 and app.query_params["layer"] == "4"


def test_a_failed_worker_is_a_sentence_and_a_slow_one_shows_what_it_does(
    open_page: Opener, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, request, _ = moment(trace)
    with_model(trace, monkeypatch, Answers(error="shop here has other weights"))
    app = open_page("kernel", run=f"file:{trace}", step=step, request=request)
    assert not app.exception and "No scores: shop here has other weights" in said(app)
    app.button(key="kernel again").click().run()
    assert not app.exception and "Asking the model …" in said(app)
    with_model(trace, monkeypatch, Answers())
    app = open_page("kernel", run=f"file:{trace}", step=step, request=request)
    assert "Loading shop …" in said(app)


# ---------------------------------------------------------------------- capacity


def test_capacity_opens_with_figures_and_its_address_says_what_was_changed(open_page: Opener) -> None:
    app = open_page("capacity")
    assert not app.exception and not app.error and "$0.42" in said(app)
    app.select_slider(key="capacity:rate").set_value(20).run()
    app.selectbox(key="capacity:gpu").set_value("h200").run()
    assert not app.exception
    assert app.query_params["rate"] == "20" and app.query_params["gpu"] == "h200"
    assert app.number_input(key="capacity:price").value == 4.0, "the assumed price follows the GPU"
    app.toggle(key="capacity table").set_value(True).run()
    assert "engine/sim/memory.py:" in " ".join(app.dataframe[0].value["source"])


def test_a_link_restores_the_inputs_and_a_broken_one_is_said(open_page: Opener) -> None:
    app = open_page("capacity", model="qwen3-8b", rate="3.5", tp="2", price="9.99")
    assert not app.exception and not app.error
    assert app.selectbox(key="capacity:model").value == "qwen3-8b"
    assert app.select_slider(key="capacity:rate").value == 3.5 and app.selectbox(key="capacity:tp").value == 2
    unknown = open_page("capacity", model="llama-9", tp=3)
    assert "llama-9 is not available here" in said(unknown) and "3 is not available here" in said(unknown)
    broken = open_page("capacity", rate="fast")
    assert not broken.exception and "rate cannot be 'fast'" in broken.error[0].value
    assert broken.select_slider(key="capacity:rate").value == 10


def test_what_does_not_fit_is_an_error_with_help_and_has_nothing_to_run(open_page: Opener) -> None:
    app = open_page("capacity", model="llama-3.1-405b")
    assert not app.exception and "short by" in app.error[0].value and "What helps" in said(app)
    assert not [button for button in app.button if button.key == "capacity run"]


def test_a_run_is_compared_with_the_formula_and_other_inputs_make_it_old(open_page: Opener) -> None:
    app = open_page("capacity", rate=2)
    app.button(key="capacity run").click().run()
    app.session_state["capacity check"].wait()
    app.run()
    assert not app.exception and "run / formula" in said(app) and "They agree to" in said(app)
    app.select_slider(key="capacity:output").set_value(100).run()
    assert "run the simulation again" in said(app)


def test_a_scenario_is_saved_and_opened_again(open_page: Opener) -> None:
    app = open_page("capacity", rate=5)
    app.text_input(key="capacity name").set_value("night").run()
    next(button for button in app.button if button.label == "Save").click().run()
    assert "Saved as" in said(app)
    app.select_slider(key="capacity:rate").set_value(50).run()
    next(button for button in app.button if button.label == "Open").click().run()
    assert not app.exception and app.select_slider(key="capacity:rate").value == 5


def test_the_kernel_view_opens_on_the_head_with_the_most_to_see() -> None:
    from app.debugger.pages.kernel import most_spread

    assert most_spread([[1.0, 0.0, 0.0], [0.4, 0.3, 0.3], [0.5, 0.5, 0.0]]) == 1
    assert most_spread([[1.0]]) == 0
