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
from engine.worker.model_input import InputBuilder, ModelInput
from tests.engine.harness import request, run, tokens
from tests.seeds import seeds

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
    batch = InputBuilder(state, CPU).build([Scheduled("new", 0, 3, [2])])
    assert batch.input_ids.tolist() == [11, 12, 13]
    assert batch.metadata.slot_mapping.tolist() == [8, 9, 10]
    assert batch.metadata.block_table.tolist() == [[2]]


def test_a_sampled_token_past_the_last_position_is_dropped() -> None:
    state = BatchState(2, 4, BLOCK)
    slots = np.array([state.add("full", init([1, 2, 3])), state.add("short", init([1]))])
    for token in (7, 8):
        state.append_tokens(slots, np.array([token, token]))
    assert state.token_ids.tolist() == [[1, 2, 3, 7], [1, 7, 8, 0]]


@pytest.mark.parametrize("seed", seeds(20))
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
    batch = InputBuilder(state, CPU).build(rows)

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
    all_tokens = list(range(len(ids)))
    assert (all_tokens if batch.logits_rows is None else batch.logits_rows.tolist()) == logits_rows
    assert [ordered[i].request_id for i in batch.sampled_rows] == [
        row.request_id for row in ordered if row.start + row.num_tokens == len(known[row.request_id])
    ]
    assert {t.dtype for t in (batch.input_ids, batch.positions, metadata.slot_mapping)} == {torch.int64}
    assert {t.dtype for t in (metadata.query_start_loc, metadata.seq_lens, metadata.block_table)} == {
        torch.int32
    }


@pytest.mark.parametrize("seed", seeds(20))
def test_what_a_step_uses_again_is_what_a_fresh_start_would_compute(seed: int) -> None:
    """Requests decode together, sit a step out, go and come back under the same id, perhaps in another slot."""
    rng = random.Random(seed)
    state = BatchState(4, 64, BLOCK)
    builder = InputBuilder(state, CPU)
    running: list[str] = []
    for step in range(60):
        if step % 3 == 0:
            leaving = rng.sample(running, k=rng.randint(0, len(running)))
            for name in leaving:
                state.remove(name)
            running = [name for name in running if name not in leaving]
            free = [name for name in "abc" if name not in running]
            for name in rng.sample(free, k=rng.randint(0, len(free))):
                state.add(name, init([rng.randrange(100) for _ in range(rng.randint(1, 4))]))
                state.append_blocks([Scheduled(name, 0, 0, rng.sample(range(1, 500), 16))])
                running.append(name)
        scheduled = running if rng.random() < 0.7 else rng.sample(running, k=rng.randint(0, len(running)))
        rows = []
        for name in scheduled:
            num_tokens = int(state.num_tokens[state.slot_of[name]])
            num_new = 1 if rng.random() < 0.9 else min(3, num_tokens)
            rows.append(Scheduled(name, num_tokens - num_new, num_new, []))
        if not rows:
            continue
        batch, fresh = builder.build(rows), InputBuilder(state, CPU).build(rows)
        assert told(batch) == told(fresh)
        sampled = np.array([rng.randrange(100) for _ in batch.sampled_rows])
        state.append_tokens(batch.sample_batch.slots, sampled)


def told(batch: ModelInput) -> list[object]:
    """All that a batch says, as plain values."""
    values = [
        *(
            getattr(batch, name)
            for name in ("rows", "slots", "input_ids", "positions", "logits_rows", "sampled_rows")
        ),
        *(getattr(batch.metadata, name) for name in batch.metadata.__slots__),
        *(getattr(batch.sample_batch, name) for name in ("slots", "lengths", "num_prompt_tokens")),
    ]
    return [value.tolist() if isinstance(value, np.ndarray | torch.Tensor) else value for value in values]


def test_the_largest_step_runs_without_a_request(make_engine: Callable[..., EngineCore]) -> None:
    """On a GPU it measures the memory of activations; here it must run, and leave the cache alone."""
    engine = make_engine(max_num_batched_tokens=100)
    worker = engine.executor.worker
    worker._largest_step()
    assert not worker.runner.kv_cache.blocks.any()
    assert tokens(run(engine, [request("a", [5, 6])])) == tokens(run(make_engine(), [request("a", [5, 6])]))
