"""State slots and input tensors, checked against a row-by-row construction in plain Python."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from engine.core.sched_output import RequestInit, Scheduled
from engine.engine_core import EngineCore
from engine.sampling_params import SamplingParams
from engine.worker.batch_state import BatchState
from engine.worker.model_input import build_model_input
from tests.engine.harness import request, run, tokens

CPU = torch.device("cpu")
BLOCK = 4


def init(token_ids: list[int], num_prompt_tokens: int | None = None) -> RequestInit:
    return RequestInit(token_ids, num_prompt_tokens or len(token_ids), SamplingParams(), frozenset(), 0)


def test_a_request_keeps_its_slot_whoever_comes_and_goes() -> None:
    state = BatchState(4, 32, BLOCK)
    slots = {name: state.add(name, init([1, 2])) for name in "abcd"}
    assert sorted(slots.values()) == [0, 1, 2, 3]
    state.remove("b")
    assert state.add("e", init([3])) == slots["b"]
    assert {name: state.slot_of[name] for name in "acd"} == {name: slots[name] for name in "acd"}
    assert state.remove("unknown") is None and state.remove("b") is None


def test_a_reused_slot_shows_nothing_of_its_last_owner() -> None:
    state = BatchState(1, 32, BLOCK)
    slot = state.add("old", init(list(range(20))))
    state.append_blocks([Scheduled("old", 0, 20, [9, 8, 7, 6, 5])])
    state.remove("old")
    assert state.add("new", init([11, 12, 13])) == slot
    state.append_blocks([Scheduled("new", 0, 3, [2])])
    batch = build_model_input([Scheduled("new", 0, 3, [2])], state, CPU)
    assert batch.input_ids.tolist() == [11, 12, 13]
    assert batch.metadata.slot_mapping.tolist() == [8, 9, 10]
    assert batch.metadata.block_table.tolist() == [[2]]


def test_a_sampled_token_past_the_last_position_is_dropped() -> None:
    state = BatchState(2, 4, BLOCK)
    slots = np.array([state.add("full", init([1, 2, 3])), state.add("short", init([1]))])
    for token in (7, 8):
        state.append_tokens(slots, np.array([token, token]))
    assert state.token_ids.tolist() == [[1, 2, 3, 7], [1, 7, 8, 0]]


@pytest.mark.parametrize("seed", range(20))
def test_the_packed_batch_is_what_the_rows_say(seed: int) -> None:
    rng = random.Random(seed)
    state = BatchState(12, 64, BLOCK)
    known: dict[str, list[int]] = {}
    tables: dict[str, list[int]] = {}
    rows = []
    for index in range(rng.randint(1, 12)):
        name = str(index)
        known[name] = [rng.randrange(100) for _ in range(rng.randint(1, 60))]
        num_tokens = 1 if rng.random() < 0.5 else rng.randint(1, len(known[name]))
        start = (
            len(known[name]) - num_tokens
            if rng.random() < 0.6
            else rng.randint(0, len(known[name]) - num_tokens)
        )
        tables[name] = rng.sample(range(1, 500), -(-(start + num_tokens) // BLOCK))
        cut = rng.randint(0, len(tables[name]))
        state.add(name, init(known[name]))
        state.append_blocks([Scheduled(name, 0, 0, tables[name][:cut])])
        rows.append(Scheduled(name, start, num_tokens, tables[name][cut:]))
    state.append_blocks(rows)
    batch = build_model_input(rows, state, CPU)

    ordered = sorted(rows, key=lambda row: row.num_tokens != 1)
    assert batch.rows == ordered
    metadata = batch.metadata
    assert metadata.num_decode_rows == sum(row.num_tokens == 1 for row in rows)
    ids, positions, mapping, starts, logits_rows = [], [], [], [0], []
    for row in ordered:
        for position in range(row.start, row.start + row.num_tokens):
            ids.append(known[row.request_id][position])
            positions.append(position)
            mapping.append(tables[row.request_id][position // BLOCK] * BLOCK + position % BLOCK)
        starts.append(len(ids))
        if row.start + row.num_tokens == len(known[row.request_id]):
            logits_rows.append(len(ids) - 1)
    assert batch.input_ids.tolist() == ids and batch.positions.tolist() == positions
    assert metadata.slot_mapping.tolist() == mapping
    assert metadata.query_start_loc.tolist() == metadata.query_start_loc_cpu == starts
    ends = [row.start + row.num_tokens for row in ordered]
    assert metadata.seq_lens.tolist() == metadata.seq_lens_cpu == ends
    assert metadata.max_seq_len == max(ends) and metadata.max_query_len == max(r.num_tokens for r in rows)
    for table, row in zip(metadata.block_table.tolist(), ordered, strict=True):
        assert table[: len(tables[row.request_id])] == tables[row.request_id]
    assert batch.logits_rows.tolist() == logits_rows
    assert [ordered[i].request_id for i in batch.sampled_rows] == [
        row.request_id for row in ordered if row.start + row.num_tokens == len(known[row.request_id])
    ]
    assert {t.dtype for t in (batch.input_ids, batch.positions, metadata.slot_mapping)} == {torch.int64}
    assert {t.dtype for t in (metadata.query_start_loc, metadata.seq_lens, metadata.block_table)} == {
        torch.int32
    }


def test_the_largest_step_runs_without_a_request(make_engine: Callable[..., EngineCore]) -> None:
    """On a GPU it measures the memory of activations; here it must run, and leave the cache alone."""
    engine = make_engine(max_num_batched_tokens=100)
    worker = engine.executor.worker
    worker._largest_step(engine.config.scheduler)
    assert not worker.runner.kv_cache.any()
    assert tokens(run(engine, [request("a", [5, 6])])) == tokens(run(make_engine(), [request("a", [5, 6])]))
