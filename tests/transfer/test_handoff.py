"""Prefill here, decode there: the same tokens, counted bytes, and blocks that are free again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.engine_core import EngineCore
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
