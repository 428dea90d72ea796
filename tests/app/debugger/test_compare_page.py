"""The page Compare: what stands on it is what the diff found, and its form runs a real fork."""

from __future__ import annotations

import itertools
import shutil
import zlib
from base64 import b64decode
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from app.debugger.catalogue import load_catalogue
from app.debugger.pages.paired_lives import Frame, chart, flag
from app.debugger.runs import RECORDED, path_of
from app.debugger.trace_columns import CACHED, FREE, SHARED, USED
from app.debugger.trace_index import TraceIndex
from app.debugger.views import compare as view
from app.debugger.views.paired import Pair, fitting, pairs, stretches
from app.debugger.views.phases import PhaseSpan
from engine.core.sched_output import Reason
from engine.trace.diff import Figure, RequestDelta, TraceDiff, diff
from engine.trace.fork import fork
from engine.trace.reader import TraceReader
from engine.trace.records import accepted_tokens
from engine.trace.run_totals import keys_of
from tests.app.debugger.pages import Opener, said
from tests.trace.trace_workloads import random_run


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[TraceReader, TraceReader]:
    """A run and its fork with a smaller budget."""
    folder = tmp_path_factory.mktemp("pair")
    reader = TraceReader(random_run(folder / "a.itrace", 6, num_requests=20).path)
    fork(reader, folder / "b.itrace", at=12, changes={"max_num_batched_tokens": 3})
    return reader, TraceReader(folder / "b.itrace")


def ids(pair: tuple[TraceReader, TraceReader]) -> dict[str, str]:
    return {"run": f"file:{pair[0].path}", "other": f"file:{pair[1].path}"}


# ---------------------------------------------------------------------- the page


def test_a_pair_opens_at_its_first_difference_with_both_reasons(
    open_page: Opener, pair: tuple[TraceReader, TraceReader]
) -> None:
    app = open_page("compare", **ids(pair))
    assert not app.exception and not app.error
    found = diff(*pair)
    assert found.first is not None
    text = said(app)
    assert f"The first different decision is in step {found.first.step}." in text
    for side in (found.first.a, found.first.b):
        assert side.decided in text
        assert all(reason in text for reason in side.reasons)
    assert "max_num_batched_tokens: A " in text and "a fork has no wall clock" in text
    frame = app.dataframe[0].value
    assert dict(zip(frame["figure"], frame["B"], strict=True))["steps"] == pair[1].num_steps


def test_next_goes_to_the_next_place_where_they_part(
    open_page: Opener, pair: tuple[TraceReader, TraceReader]
) -> None:
    found = diff(*pair)
    app = open_page("compare", **ids(pair))
    app.button(key="compare_Next ▶").click().run()
    assert f"Step **{found.divergences[1]:,}**" in said(app) and not app.exception
    app.button(key="compare_First").click().run()
    assert f"Step **{found.divergences[0]:,}**" in said(app)


def test_swap_changes_the_sides(open_page: Opener, pair: tuple[TraceReader, TraceReader]) -> None:
    app = open_page("compare", **ids(pair))
    app.button(key="compare_swap").click().run()
    frame = app.dataframe[0].value
    assert dict(zip(frame["figure"], frame["A"], strict=True))["steps"] == pair[1].num_steps
    assert app.query_params["run"] == f"file:{pair[1].path}" and not app.exception


def test_only_what_differs_is_listed_unless_the_switch_asks_for_all(
    open_page: Opener, pair: tuple[TraceReader, TraceReader]
) -> None:
    found = diff(*pair)
    unlike = [delta.request_id for delta in found.requests if not delta.is_equal]
    assert 0 < len(unlike) < len(found.requests), "a request of each kind"
    app = open_page("compare", **ids(pair))
    figures, requests = (frame.value for frame in app.dataframe)
    assert list(figures["figure"]) == [figure.name for figure in found.figures if figure.a != figure.b]
    assert list(requests["request"]) == unlike
    app.toggle(key="compare_equal").set_value(True).run()
    figures, requests = (frame.value for frame in app.dataframe)
    assert len(figures) == len(found.figures)
    assert list(requests["request"]) == [delta.request_id for delta in found.requests]
    assert list(requests["last step B"]) == [delta.end_step[1] for delta in found.requests]


def test_maps_are_aligned_by_the_token_of_a_request(
    open_page: Opener, pair: tuple[TraceReader, TraceReader]
) -> None:
    app = open_page("compare", **ids(pair))
    app.button_group(key="compare_align").set_value("token").run()
    assert not app.exception
    name = app.selectbox(key="compare_request").value
    step = diff(*pair).divergences[0]
    assert view.aligned_step("token", step, *pair, name)[1] in said(app)


def test_compare_begins_with_the_run_to_watch_first_and_lists_own_runs_above_the_shipped_ones(
    open_page: Opener, pair: tuple[TraceReader, TraceReader], tmp_path: Path
) -> None:
    (tmp_path / "runs").mkdir()
    shutil.copy(pair[0].path, tmp_path / "runs" / "friday.itrace")
    box = next(box for box in open_page("compare").selectbox if box.label == "Run A")
    assert box.value == "memory-pressure"
    assert box.options[0] == "mine:friday" and len(box.options) == 1 + len(load_catalogue())


def test_without_a_second_run_the_form_is_there(
    open_page: Opener, pair: tuple[TraceReader, TraceReader]
) -> None:
    app = open_page("compare", run=f"file:{pair[0].path}", fork=7)
    assert not app.exception and "Choose a second run as B" in said(app)
    at = next(box for box in app.number_input if box.label.startswith("Fork at step"))
    assert at.value == 7
    names = {box.label for box in [*app.number_input, *app.selectbox]}
    assert {"max_num_batched_tokens", "num_blocks", "block_size"} <= names
    blocks = next(box for box in app.number_input if box.label == "num_blocks")
    assert blocks.disabled and "fork at step 0" in blocks.help, "memory changes at step 0 only"
    at.set_value(0).run()
    assert not next(box for box in app.number_input if box.label == "num_blocks").disabled


def test_the_form_runs_a_fork_and_shows_it_as_b(
    open_page: Opener, pair: tuple[TraceReader, TraceReader], tmp_path: Path
) -> None:
    app = open_page("compare", run=f"file:{pair[0].path}", fork=12)
    box = next(box for box in app.number_input if box.label == "max_num_batched_tokens")
    box.set_value(3)  # a form sends its fields with the button
    app = next(b for b in app.button if b.label == "Run the fork").click().run()
    app = until_done(app)
    (made,) = (tmp_path / "runs").glob("*.itrace")
    assert app.query_params["other"] == f"mine:{made.stem}"
    assert "The first different decision" in said(app)
    assert diff(pair[1], TraceReader(made)).first is None, "the same as the fork that was made here"


def test_a_fork_that_equals_a_kept_run_opens_that_run_and_says_so(
    open_page: Opener, pair: tuple[TraceReader, TraceReader], tmp_path: Path
) -> None:
    kept = tmp_path / "runs" / "kept.itrace"
    kept.parent.mkdir()
    shutil.copy(pair[1].path, kept)
    app = open_page("compare", run=f"file:{pair[0].path}", fork=12)
    next(box for box in app.number_input if box.label == "max_num_batched_tokens").set_value(3)
    app = until_done(next(b for b in app.button if b.label == "Run the fork").click().run())
    assert app.query_params["other"] == "mine:kept"
    assert "This fork equals kept, which is kept already." in said(app)
    assert list(kept.parent.iterdir()) == [kept]


def test_a_class_that_cannot_be_imported_is_said_on_the_page(
    open_page: Opener, pair: tuple[TraceReader, TraceReader], tmp_path: Path
) -> None:
    app = open_page("compare", run=f"file:{pair[0].path}", fork=0)
    app = app.selectbox(key="fork_class").set_value("another class").run()
    app = app.text_input(key="fork_own").set_value("nowhere:Nothing").run()
    app = next(b for b in app.button if b.label == "Run the fork").click().run()
    app = until_done(app)
    assert "nowhere:Nothing cannot be imported" in said(app)
    assert list((tmp_path / "runs").iterdir()) == []


def until_done(app: AppTest) -> AppTest:
    process = app.session_state["fork_process"] if "fork_process" in app.session_state else None
    if process is not None:
        process._child.exit_code(60)
        app = app.run()
    assert not app.exception
    return app


def test_what_cannot_be_compared_is_said(
    open_page: Opener, pair: tuple[TraceReader, TraceReader], tmp_path: Path
) -> None:
    app = open_page("compare", run=f"file:{pair[0].path}", other="mine:gone")
    assert "there is no run 'mine:gone'" in said(app) and not app.exception
    (tmp_path / "no.itrace").write_text("no")
    app = open_page("compare", run=f"file:{tmp_path / 'no.itrace'}")
    assert "is not a trace" in said(app) and not app.exception


# ---------------------------------------------------------------------- the pure parts


def test_a_map_has_one_pixel_a_block_in_the_colour_of_its_state(
    pair: tuple[TraceReader, TraceReader],
) -> None:
    index = TraceIndex(pair[0])
    step = 15
    states = index.block_states(step)
    found = view.block_map(index, step)
    pixels = decode(found.png, found.width, found.height)
    for block, state in enumerate(states):
        colour = "#" + pixels[block // found.width, block % found.width].tobytes().hex()
        assert colour.lower() == view.COLOURS[state].lower()
    assert sum(found.counts.values()) == index.num_blocks - 1
    free = np.frombuffer(pair[0].blocks_at(step).ref, np.int32)[1:] == 0
    assert found.counts["free"] + found.counts["cached"] == int(free.sum())
    assert len(view.COLOURS) == len({FREE, CACHED, USED, SHARED})


def decode(url: str, width: int, height: int) -> np.ndarray:
    """Pixels of a PNG without filters: the one IDAT chunk, a zero byte before each line."""
    data = b64decode(url.partition(",")[2])
    start = data.index(b"IDAT") + 4
    lines = np.frombuffer(zlib.decompress(data[start:]), np.uint8).reshape(height, 1 + 3 * width)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 3)


def test_cells_that_are_alike_are_dimmed(pair: tuple[TraceReader, TraceReader]) -> None:
    index = TraceIndex(pair[0])
    states = index.block_states(15)
    other = states.copy()
    other[3] = (states[3] + 1) % 4
    bright, dim = (view.block_map(index, 15, beside) for beside in (None, other))
    one, two = (decode(found.png, found.width, found.height).reshape(-1, 3) for found in (bright, dim))
    same = [block for block in range(len(states)) if (one[block] == two[block]).all()]
    assert same[0] == 3 and view.num_different(states, other) == 1


def test_a_request_that_a_run_lacks_has_no_figures_for_it() -> None:
    a, b = (TraceReader(path_of(name)) for name in ("memory-pressure", "full-cache"))
    [eve] = [row for row in view.request_table(diff(a, b).requests) if row["request"] == "eve"]
    assert eve["output"] == "missing in b"
    assert {eve[f"{name} B"] for name in view.FIGURES.values()} == {None}
    assert None not in {eve[f"{name} A"] for name in view.FIGURES.values()}


def test_steps_are_aligned_by_token(pair: tuple[TraceReader, TraceReader]) -> None:
    a, b = pair
    request = next(r for r in a.requests if len(r.tokens) > 5 and r.finish_reason == "length")
    together = zip(a.tokens(request.request_id), b.tokens(request.request_id), strict=True)
    last = {step: there for (step, _), (there, _) in together}  # a step may give several tokens
    for step, there in last.items():
        assert view.aligned_step("token", step, a, b, request.request_id)[0] == there
    assert view.aligned_step("token", 0, a, b, "r-none") == (None, "r-none is not in B")
    assert view.aligned_step("step", 3, a, b, None)[0] == 3
    assert view.aligned_step("step", b.num_steps, b, b, None)[0] is None


def random_pair(folder: Path, seed: int) -> tuple[TraceReader, TraceReader]:
    """A run and a fork that differs in its budget, its seats or its preemption."""
    reader = TraceReader(random_run(folder / "a.itrace", seed).path)
    changes = [{"max_num_batched_tokens": 5}, {"max_num_seqs": 2}, {"scheduling_policy": "priority"}]
    fork(reader, folder / "b.itrace", at=seed, changes=changes[seed % 3])
    return reader, TraceReader(folder / "b.itrace")


def states(reader: TraceReader) -> dict[tuple[str, int], str]:
    """(request key, step) -> phase: queues after each step and rows, not the spans that the chart uses."""
    found, keys = {}, keys_of(reader)
    tokens: dict[int, int] = {}
    for step in range(reader.num_steps):
        state, record = reader.state_at(step), reader.record(step)
        tokens |= {number: 0 for name in ("new", "res") for number, *_ in record.get(name, ())}
        for name in state.waiting:
            request = reader.find(name, step)
            preempted = any(at <= step for at in request.preempted)
            found[keys[request.number], step] = "preempted" if preempted else "waiting"
        ended = [number for number, _ in record.get("fin", ())]
        for number in [*(reader.find(name, step).number for name in state.running), *ended]:
            found[keys[number], step] = "decode" if tokens[number] else "prefill"
        for number, made in zip(record.get("q", ()), record.get("tok", ()), strict=True):
            tokens[number] += len(accepted_tokens(made))
    return found


def acts(reader: TraceReader) -> dict[tuple[str, int], tuple[int, int]]:
    """(request key, step) -> start and length of its row, or of a victim the blocks copied to the host."""
    found, keys = {}, keys_of(reader)
    for step in range(reader.num_steps):
        record = reader.record(step)
        swapped = record.get("cnt", {}).get("num_blocks_swapped_out", 0)
        found |= {(keys[number], step): (-1, swapped) for number in record.get("pre", ())}
        for number, count in zip(record.get("q", ()), record.get("n", ()), strict=True):
            found[keys[number], step] = reader.requests[number].position_before(step), count
    return found


@pytest.mark.parametrize("seed", range(9))
def test_stretches_are_the_steps_in_which_the_traces_have_other_states(tmp_path: Path, seed: int) -> None:
    a, b = random_pair(tmp_path, seed)
    found = diff(a, b)
    lives = pairs(found.requests, ((a, TraceIndex(a)), (b, TraceIndex(b))))
    last = max(a.num_steps, b.num_steps)
    rects = chart(Frame(lives, 0, last - 1))
    keys = [pair.delta.request_id for pair in lives]
    drawn: list[dict[tuple[str, int], str]] = [{}, {}]
    shaded = {}
    for rect in rects:
        for step in range(rect.left, rect.right):
            if rect.bottom - rect.top == 2:
                shaded[keys[rect.top // 2], step] = rect.style
            else:
                assert (keys[rect.top // 2], step) not in drawn[rect.top % 2]
                drawn[rect.top % 2][keys[rect.top // 2], step] = rect.style
    one, other = states(a), states(b)
    assert drawn == [one, other]
    rows_a, rows_b = acts(a), acts(b)
    expected = {}
    for place in itertools.product(keys, range(last)):
        if one.get(place) != other.get(place):
            expected[place] = "phase"
        elif rows_a.get(place) != rows_b.get(place):
            expected[place] = "work"
    assert shaded == expected
    if found.first is not None and found.first.kinds != ["end"]:
        assert min(step for _, step in shaded) == found.first.step
        assert {(key, found.first.step) for key in found.first.requests} <= set(shaded)


def test_a_swap_out_is_marked_where_it_happens(open_page: Opener) -> None:
    app = open_page("compare", run="recompute", other="swap")
    text = said(app)
    assert "The first different decision is in step 31." in text and "Step **31**" in text
    assert "Swapped 12 blocks of request dan to the host." in text
    a, b = (TraceReader(RECORDED / f"{name}.itrace") for name in ("recompute", "swap"))
    first = diff(a, b).first
    assert first is not None and flag(first) == "▼ first different decision: swap-out"


def test_pairs_beyond_the_most_bars_of_a_chart_are_left_out() -> None:
    spans = [PhaseSpan("decode", step, step) for step in range(10)]
    delta = RequestDelta(
        "r", (0, 0), (9, 9), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), "same", ("length", "length"), []
    )
    pair = Pair(delta, 0, (spans, spans), stretches(spans, spans, []))
    assert not pair.stretches and len(fitting([pair] * 9, 100)) == 5 and len(fitting([pair], 3)) == 1


def test_verdicts_are_words_and_know_which_way_is_better() -> None:
    figures = [
        Figure("steps", "steps", 10, 12, "lower"),
        Figure("hits", "tokens", 10, 12, "higher"),
        Figure("running", "", 1, 2, ""),
        Figure("same", "", 1, 1, "lower"),
        Figure("unknown", "", None, 1, "lower"),
    ]
    words = [row["B is"] for row in view.figure_rows(figures)]
    assert words == ["▼ worse", "▲ better", "more", "same", ""]


def test_the_summary_counts_in_words(pair: tuple[TraceReader, TraceReader]) -> None:
    found: TraceDiff = diff(*pair)
    text = view.summary(found)
    steps = next(figure for figure in found.figures if figure.name == "steps with rows")
    assert steps.delta is not None and f"{round(abs(steps.delta)):,}" in text
    same = "The runs are identical: every decision and every block id."
    assert view.summary(diff(pair[0], pair[0])) == same


def test_identical_runs_with_other_settings_say_what_limited_them_instead(tmp_path: Path) -> None:
    """More budget, where blocks are short, changes nothing. The recording is older than some settings."""
    recorded = TraceReader(path_of("memory-pressure"))
    fork(recorded, tmp_path / "b.itrace", at=20, changes={"max_num_batched_tokens": 512})
    found = diff(recorded, TraceReader(tmp_path / "b.itrace"))
    assert found.settings == [("max_num_batched_tokens", 96, 512), ("changed from step", None, 20)]
    text = view.summary(found)
    assert "identical" in text and "Another max_num_batched_tokens changed nothing" in text
    assert f"too few free blocks ({len(recorded.steps_with(Reason.NO_BLOCKS))} steps)" in text
