"""Disaggregation experiments against arithmetic."""

from __future__ import annotations

import pytest

from quizzes.experiments.context import Context
from quizzes.experiments.disaggregation.pools import compare, handoff, transfer
from quizzes.oracles import disaggregation as oracle


@pytest.mark.parametrize("model", sorted(oracle.SHAPES))
def test_a_transfer_moves_the_kv_of_the_prompt(model: str) -> None:
    found = transfer(model=model, prompt=3000, tp=4, link="ib-ndr")
    assert found.kv_bytes == oracle.kv_bytes(model, 3000)
    assert found.transfer_ms == pytest.approx(oracle.transfer_ms(model, 3000, "ib-ndr", 4))


@pytest.mark.parametrize("prompt", [1, 15, 16, 17, 1000])
def test_a_decode_replica_gets_full_blocks_only(prompt: int) -> None:
    found = handoff(Context(), prompt=prompt)
    assert found.blocks_placed == oracle.placed_blocks(prompt, 16)
    assert found.first_step_tokens == oracle.first_step(prompt, 16)
    assert found.steps == 19


def test_a_cache_without_room_takes_fewer_blocks_and_computes_the_rest() -> None:
    tight = handoff(Context(), prompt=320, free_blocks=25)
    assert tight.recomputed_prompt_tokens == 0
    with pytest.raises(Exception, match="block|fit|room|long"):
        handoff(Context(), prompt=320, free_blocks=10)


def test_long_prompts_gain_in_the_gaps_and_short_ones_do_not() -> None:
    long, short = compare(prompt=6000), compare(prompt=64, rate=10)
    assert long.colocated_itl_p99_ms > 5 * long.split_itl_p99_ms
    assert short.colocated_itl_p99_ms == pytest.approx(short.split_itl_p99_ms, rel=0.1)
    assert not short.split_wins_e2e
    assert long.transfer_bytes == long.transfers * oracle.kv_bytes("llama-3.1-8b", 6000)
