"""Prefill here, decode there: the same tokens, counted bytes, and blocks that are free again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.engine_core import EngineCore
from engine.trace.reader import TraceReader
from tests.engine.harness import free_slots
from tests.transfer.pairs import Totals, ask, prefill, run, settle

PROMPT = [(7 * position) % 120 + 2 for position in range(23)]
BLOCK_SIZE = 4
NUM_FULL = len(PROMPT) // BLOCK_SIZE
Pair = tuple[EngineCore, EngineCore]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 5}], ids=["greedy", "seeded"])
def test_a_handed_over_request_gives_the_tokens_of_a_local_one(
    pair: Pair, make_engine: Callable[..., EngineCore], sampling: dict[str, Any]
) -> None:
    producer, consumer = pair
    local = run(make_engine(), ask("a", PROMPT, max_tokens=12, **sampling))["a"]
    params = prefill(producer, PROMPT)
    totals = Totals(consumer)
    remote = run(consumer, ask("a", PROMPT, params, max_tokens=12, **sampling))["a"]
    assert remote.token_ids == local.token_ids
    assert remote.last is not None and remote.last.num_cached_tokens == NUM_FULL * BLOCK_SIZE
    assert totals.external_prefix_cache_hits == NUM_FULL * BLOCK_SIZE
    assert totals.external_prefix_cache_queries == len(PROMPT)
    assert totals.prefix_cache_hits == 0 and totals.num_kv_load_failures == 0
    settle(producer, consumer)


def test_the_bytes_moved_are_those_of_the_formula(pair: Pair) -> None:
    producer, consumer = pair
    sent, received = Totals(producer), Totals(consumer)
    run(consumer, ask("a", PROMPT, prefill(producer, PROMPT)))
    settle(producer, consumer)
    model = producer.config.model
    per_token = 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim * 4  # float32
    assert sent.kv_bytes_sent == received.kv_bytes_received == NUM_FULL * BLOCK_SIZE * per_token


def test_the_traces_of_both_engines_replay_exactly(
    make_engine: Callable[..., EngineCore], transport: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    paths = [tmp_path / "prefill.itrace", tmp_path / "decode.itrace"]
    producer = make_engine(kv_transfer_config=transport("kv_producer"), trace=str(paths[0]))
    consumer = make_engine(kv_transfer_config=transport("kv_consumer"), trace=str(paths[1]))
    run(consumer, ask("a", PROMPT, prefill(producer, PROMPT)), ask("b", PROMPT))
    settle(producer, consumer)
    moved = {}
    for engine, path in ((producer, paths[0]), (consumer, paths[1])):
        engine.shutdown()
        reader = TraceReader(path)
        assert not reader.problems and not reader.warnings
        for name in ("kv_bytes_sent", "kv_bytes_received"):
            counters = [reader.step(step).counters.get(name, 0) for step in range(reader.num_steps)]
            moved[name] = moved.get(name, 0) + sum(counters)
    assert moved["kv_bytes_sent"] == moved["kv_bytes_received"] > 0


def test_requests_with_one_prefix_fetch_it_once(pair: Pair, make_engine: Callable[..., EngineCore]) -> None:
    producer, consumer = pair
    params = prefill(producer, PROMPT)
    totals = Totals(consumer)
    answers = run(consumer, *(ask(name, PROMPT, params) for name in "abc"))
    local = run(make_engine(), ask("a", PROMPT))["a"].token_ids
    assert [answer.token_ids for answer in answers.values()] == [local] * 3
    assert totals.external_prefix_cache_hits == NUM_FULL * BLOCK_SIZE
    settle(producer, consumer)


def test_a_prompt_without_a_full_block_is_not_handed_over(pair: Pair) -> None:
    producer, consumer = pair
    short = ask("p", PROMPT[: BLOCK_SIZE - 1], {"do_remote_decode": True}, max_tokens=1)
    last = run(producer, short)["p"].last
    assert last is not None and last.kv_transfer_params is None
    settle(producer, consumer)


def test_many_handovers_leave_both_engines_as_they_were(
    pair: Pair, make_engine: Callable[..., EngineCore]
) -> None:
    producer, consumer = pair
    plain = make_engine()
    prompts = [[(seed * 31 + 7 * i) % 120 + 2 for i in range(5 + seed)] for seed in range(12)]
    for seed, prompt in enumerate(prompts):
        params = prefill(producer, prompt)
        local = run(plain, ask("a", prompt, temperature=1.0, seed=seed))["a"].token_ids
        assert run(consumer, ask("a", prompt, params, temperature=1.0, seed=seed))["a"].token_ids == local
    settle(producer, consumer)
    for engine in pair:
        engine.step()  # tells the worker who has finished
        assert free_slots(engine) == 64
        assert engine.reset_prefix_cache() and not engine.scheduler.kv.pool.cached
