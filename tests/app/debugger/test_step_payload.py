"""The messages to the browser of the page Step, unpacked again and held against the reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from app.debugger.runs import open_run
from app.debugger.step_view import details, parts
from app.debugger.step_view.block_texts import MAX_BLOCKS, block_texts
from app.debugger.step_view.envelope import envelope, pack
from app.debugger.step_view.map_data import EVENT_BITS
from app.debugger.trace_columns import CACHED, FREE, SHARED, USED
from app.debugger.views.contents import Contents
from engine.core.sched_output import Reason
from engine.trace.reader import TraceReader
from tests.app.debugger.step_messages import open_envelope, unpack
from tests.trace.trace_workloads import random_run

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
NUMBERS = arrays.arrays(
    st.sampled_from([np.dtype("u1"), np.dtype("<u4"), np.dtype("<i4"), np.dtype("<f8")]),
    st.integers(0, 9),
    elements={"allow_nan": False},
)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text(max_size=4).map("m".__add__), JSON, max_size=4),
    st.dictionaries(st.text(max_size=4), NUMBERS),
)
def test_a_part_unpacks_to_what_was_packed(meta: dict, columns: dict) -> None:
    found, numbers = unpack(pack(meta, columns))
    assert found == meta
    assert {name: (column.dtype, column.tolist()) for name, column in numbers.items()} == {
        name: (column.dtype, column.tolist()) for name, column in columns.items()
    }


@given(st.dictionaries(st.text(max_size=6), st.binary(max_size=20), max_size=4))
def test_an_envelope_opens_to_its_parts(contents: dict[str, bytes]) -> None:
    assert open_envelope(envelope({"run": "é"}, contents)) == ({"run": "é"}, contents)


@pytest.mark.parametrize("seed", range(12))
def test_the_window_plays_to_the_state_of_every_block_at_every_step(tmp_path: Path, seed: int) -> None:
    run = open_run(f"file:{random_run(tmp_path / 'run.itrace', seed).path}")
    reader, num_steps = run.reader(0), run.index.num_steps
    cut = parts.Sizes(window=37, chunk=16)
    for first in range(0, num_steps, cut.window):
        meta, columns = unpack(parts.make(run, cut, f"w:{first}"))
        states = columns["base"].copy()
        for step in range(first, meta["last"]):
            at = slice(*columns["offsets"][step - first : step - first + 2])
            states[columns["block"][at]] = columns["state"][at]
            blocks = reader.blocks_at(step)
            expected = [
                SHARED if ref > 1 else USED if ref else CACHED if content else FREE
                for ref, content in zip(blocks.ref, blocks.hash, strict=True)
            ]
            assert states.tolist() == expected


@pytest.mark.parametrize("seed", range(12))
def test_figures_and_events_of_every_step_are_those_of_the_reader(tmp_path: Path, seed: int) -> None:
    run = open_run(f"file:{random_run(tmp_path / 'run.itrace', seed).path}")
    reader = run.reader(0)
    meta, columns = unpack(parts.make(run, parts.sizes(run), "o"))
    assert (meta["first"], meta["last"]) == (0, reader.num_steps)
    for step in range(reader.num_steps):
        record = reader.step(step)
        shown = [
            int(columns[name][step]) for name in ("tokens", "running", "waiting", "free", "hashed", "kv")
        ]
        counts = (record.num_running, record.num_waiting, record.num_free_blocks, record.num_cached_blocks)
        assert shown == [record.num_tokens, *counts, record.num_kv_tokens]
        kinds = {event.kind for event in reader.block_events_at(step)}
        kinds |= {"preempt"} if record.preempted else set()
        kinds |= {"resume"} if record.resumed else set()
        kinds |= {"finish"} if record.finished else set()
        kinds |= {"abort"} if record.aborted else set()
        kinds |= {"add"} if record.added else set()
        kinds |= {"oom"} if any(entry.reason is Reason.NO_BLOCKS for entry in record.not_scheduled) else set()
        kinds |= (
            {"hit"}
            if any(
                reader.find(name, step).last_stay(step).start for name in (*record.admitted, *record.resumed)
            )
            else set()
        )
        assert {
            kind for bit, kind in enumerate(EVENT_BITS) if columns["events"][step] >> bit & 1
        } == kinds & set(EVENT_BITS)


@pytest.mark.parametrize("seed", range(12))
def test_details_hold_the_tables_rows_and_queue_of_the_reader(tmp_path: Path, seed: int) -> None:
    run = open_run(f"file:{random_run(tmp_path / 'run.itrace', seed).path}")
    reader = run.reader(0)
    for first in range(0, reader.num_steps, 16):
        chunk, _ = unpack(parts.make(run, parts.Sizes(5000, 16), f"d:{first}"))
        for step in range(first, chunk["last"]):
            entry, state = chunk["steps"][step - first], reader.state_at(step)
            assert tables(chunk, step) == state.block_tables
            assert entry.get("order", []) == state.running
            assert entry.get("queue", []) == state.waiting
            figures = {row[0]: (row[4], row[5]) for row in entry.get("rows", [])}
            figures |= {name: (computed, total) for name, computed, total in entry.get("idle", [])}
            for name in state.running:
                assert figures[name] == (state.num_computed[name], state.num_tokens[name])


@pytest.mark.parametrize("seed", range(12))
def test_the_tokens_of_each_block_are_those_whose_kv_it_holds(tmp_path: Path, seed: int) -> None:
    run = open_run(f"file:{random_run(tmp_path / 'run.itrace', seed).path}")
    reader, compared = run.reader(0), 0
    for first in range(0, reader.num_steps, 16):
        chunk, _ = unpack(parts.make(run, parts.Sizes(5000, 16), f"d:{first}"))
        for step in range(first, chunk["last"]):
            contents = Contents(reader, step)
            for block in range(1, reader.num_blocks):
                place = contents.place(block)
                if place is not None:
                    assert tokens_in(chunk, step, block, reader.block_size) == contents.tokens(place)
                    compared += 1
    assert compared > 100


def test_a_run_with_many_blocks_sends_no_texts(tmp_path: Path) -> None:
    reader = TraceReader(random_run(tmp_path / "run.itrace", 3).path)
    assert block_texts(reader, 0, 8)["places"]
    reader.header["blocks"] = MAX_BLOCKS + 1
    assert block_texts(reader, 0, 8) == {"places": {}, "tokens": {}}


def tokens_in(chunk: dict, step: int, block: int, size: int) -> list[int]:
    """As `step_state.js` finds them."""
    _, name, number, index = [entry for entry in chunk["places"].get(str(block), []) if entry[0] <= step][-1]
    table, end = tables(chunk, step).get(name, []), (index + 1) * size
    if index < len(table) and table[index] == block:
        entry = chunk["steps"][step - chunk["first"]]
        computed = {row[0]: row[4] for row in entry.get("rows", [])}
        computed |= {idle: count for idle, count, _ in entry.get("idle", [])}
        end = min(end, computed[name])
    return chunk["tokens"][str(number)][index * size : end]


def tables(chunk: dict, step: int) -> dict[str, list[int]]:
    """As `step_state.js` makes them."""
    found = {}
    for name, admitted, left, blocks, growth, behind in chunk["stays"]:
        if admitted <= step and (left is None or step < left):
            length = max((count for when, count in growth if when <= step), default=0)
            gone = max((count for when, count in behind if when <= step), default=0)
            found[name] = [0] * min(gone, length) + blocks[:length][gone:]
    return found


def test_a_blocks_history_ends_with_the_hash_that_it_has(tmp_path: Path) -> None:
    run = open_run(f"file:{random_run(tmp_path / 'run.itrace', 3).path}")
    reader = run.reader(0)
    last = reader.num_steps - 1
    for block in range(1, reader.num_blocks):
        meta, _ = unpack(parts.make(run, parts.sizes(run), f"b:{block}:0"))
        history = [entry for entry in meta["hashes"] if entry[0] <= last]
        assert (history[-1][1] if history else None) == reader.blocks_at(last).hash_hex(block)
        assert len(meta["events"]) == len(meta["hashes"])


@pytest.mark.parametrize("key", ["", "x:1", "w:", "w:abc", "d:99999", "b:1", "y:0:r-none", "d:-5", "w:-1"])
def test_a_part_that_does_not_exist_is_none_and_no_error(tmp_path: Path, key: str) -> None:
    run = open_run(f"file:{random_run(tmp_path / 'run.itrace', 3).path}")
    assert parts.make(run, parts.sizes(run), key) is None


def test_chunks_get_smaller_as_batches_grow() -> None:
    sizes = [details.chunk_steps(rows) for rows in (1, 15, 16, 60, 125, 256, 10_000)]
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1]) == (details.MAX_CHUNK, details.MIN_CHUNK)


def test_new_tokens_are_text_where_the_tokenizer_is_at_hand(tmp_path: Path) -> None:
    run = open_run("memory-pressure")
    reader = run.reader(0)
    found = details.chunk(reader, run.index, 0, reader.num_steps)
    made = [token for request in reader.requests for token in request.tokens]
    prompts = [token for request in reader.requests for token in request.record["prompt"]]
    assert found["text"].keys() == {*made, *prompts}
    assert "·is·by·" in "".join(found["text"][token] for token in made)
