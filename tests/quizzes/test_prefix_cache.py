"""Prefix-cache experiments against oracles on random workloads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quizzes.experiments import registry
from quizzes.experiments.prefix_cache.chats import Budgeter, TokenTree, WholePromptCache
from quizzes.experiments.prefix_cache.prompts import canonical
from quizzes.experiments.prefix_cache.response_cache import ResponseCache, likeness, normalise
from quizzes.experiments.prefix_cache.routing import Sticky, WeightedRoundRobin
from quizzes.experiments.prefix_cache.tenants import TokenQuota
from quizzes.oracles import prefix_cache as oracle
from tests.quizzes.runs import runner

run = runner("prefix_cache")


lengths = st.integers(1, 130)
block_sizes = st.sampled_from([1, 4, 16, 24])
quick = settings(max_examples=25, deadline=None)


@quick
@given(lengths, lengths, st.integers(1, 60), st.integers(1, 6), block_sizes)
def test_a_turn_hits_what_the_turn_before_has_written(
    system: int, user: int, answer: int, turns: int, block_size: int
) -> None:
    shape = {"system": system, "user": user, "answer": answer, "turns": turns, "block_size": block_size}
    result = run("conversation", **shape)
    assert result.cached_tokens[-1] == oracle.chat_hit_last(**shape)
    assert result.prefill_with_cache == oracle.chat_computed(**shape)
    assert result.prefill_without_cache == oracle.chat_without(system, user, answer, turns)


@quick
@given(st.integers(1, 6), st.integers(0, 100), lengths, st.integers(3, 40), block_sizes)
def test_a_shared_prefix_is_computed_once_and_never_written_again(
    requests: int, shared: int, own: int, output: int, block_size: int
) -> None:
    result = run(
        "shared_prefix", requests=requests, shared=shared, own=own, output=output, block_size=block_size
    )
    assert result.prefill_tokens == oracle.shared_prefill(requests, shared, own, block_size)
    assert result.writes_to_shared == 0
    if (shared + own + output - 2) % block_size:  # else the last block comes when the first request has gone
        assert result.blocks == oracle.shared_peak(requests, shared, own, output, block_size)


@quick
@given(st.integers(2, 300), st.integers(0, 310), block_sizes)
def test_only_blocks_before_a_volatile_token_are_hit(prompt: int, position: int, block_size: int) -> None:
    result = run("volatile_token", prompt=prompt, position=position, block_size=block_size, requests=3)
    assert result.hit_tokens == oracle.volatile_hit(prompt, position, block_size)
    assert result.lost_tokens == oracle.volatile_lost(prompt, position, block_size)


@quick
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.lists(st.integers(0, 4), max_size=4),
    st.integers(0, 30),
)
def test_blocks_are_reused_least_recently_used_chain_first_and_tail_first(
    chains: list[int], touched: list[int], take: int
) -> None:
    touched = [index for index in touched if index < len(chains)]
    result = run("eviction_order", chains=chains, touched=touched, take=take)
    assert result.order == oracle.reuse_order(chains, touched, take)
    assert sum(result.left) == sum(chains) - len(result.order)
    assert result.cached_before == sum(chains)
    assert result.free_before == sum(chains) + 1


@quick
@given(st.integers(1, 8), st.integers(1, 5), st.integers(6, 40), st.sampled_from(["cyclic", "random"]))
def test_the_hit_rate_of_a_working_set_is_that_of_lru(
    prefixes: int, blocks: int, pool: int, visits: str
) -> None:
    shape = {
        "prefixes": prefixes,
        "blocks_each": blocks,
        "pool": pool,
        "rounds": 3,
        "visits": visits,
        "seed": 5,
    }
    assert 100 * run("working_set", **shape).hit_rate == pytest.approx(oracle.lru_hit_percent(**shape))


@quick
@given(st.integers(1, 6), st.integers(1, 90), st.integers(1, 60), block_sizes)
def test_samples_of_a_prompt_share_its_full_blocks(
    samples: int, prompt: int, generated: int, block_size: int
) -> None:
    shape = {"samples": samples, "prompt": prompt, "generated": generated, "block_size": block_size}
    result = run("parallel_sampling", **shape)
    assert result.fork_end == oracle.forked_blocks(**shape)
    assert result.fork_copies == oracle.fork_copies(samples, prompt, block_size)
    assert result.hashed_end == oracle.hashed_blocks(**shape)


@quick
@given(st.integers(1, 5), st.integers(1, 60), st.integers(1, 50), block_sizes)
def test_beams_of_one_parent_copy_whenever_a_block_is_part_full(
    beams: int, prompt: int, generated: int, block_size: int
) -> None:
    shape = {"beams": beams, "prompt": prompt, "generated": generated, "block_size": block_size}
    assert run("beam_search", parents="one_parent", **shape).copies == oracle.one_parent_copies(**shape)
    apart = run("beam_search", parents="independent", **shape)
    assert apart.at_end == oracle.forked_blocks(beams, prompt, generated, block_size)


@quick
@given(
    st.integers(1, 5), st.integers(1, 40), st.lists(st.integers(0, 4), min_size=1, max_size=30), block_sizes
)
def test_only_a_part_full_block_with_two_owners_is_copied(
    sequences: int, prompt: int, writers: list[int], block_size: int
) -> None:
    shape = {"sequences": sequences, "prompt": prompt, "writers": writers, "block_size": block_size}
    result = run("copy_on_write", **shape)
    assert result.copies == oracle.write_copies(**shape)
    assert all(
        owners > 1 for owners, copied in zip(result.owners_before, result.copied, strict=True) if copied
    )


def test_only_inputs_of_keys_and_values_separate_requests() -> None:
    result = run("isolation_keys", prompt=100, image_at=40)
    assert (result.nothing, result.sampling, result.same_salt, result.same_adapter) == (96, 96, 96, 96)
    assert (result.salt, result.adapter, result.reloaded_adapter, result.model, result.kv_dtype) == (0,) * 5
    assert result.image == 32


@quick
@given(st.integers(1, 5), st.integers(1, 4), lengths, lengths)
def test_with_a_salt_every_tenant_computes_the_system_prompt_once(
    tenants: int, requests: int, system: int, own: int
) -> None:
    result = run("salted_tenants", tenants=tenants, requests=requests, system=system, own=own)
    extra = oracle.salted_extra(tenants, system, own, 16)
    assert result.salted_computed - result.shared_computed == extra
    assert result.probe_hit_salted == 0
    assert result.probe_hit_shared == oracle.repeat_hit(system + own, 16)


@quick
@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 5), st.integers(1, 12), st.integers(24, 80))
def test_hits_lost_to_a_neighbour_equal_an_lru_oracle(
    sessions: int, blocks: int, documents: int, document_blocks: int, pool: int
) -> None:
    result = run(
        "noisy_neighbour",
        sessions=sessions,
        session_blocks=blocks,
        documents=documents,
        document_blocks=document_blocks,
        pool=pool,
        rounds=4,
    )
    expected = oracle.chat_beside_scan_percent(sessions, blocks, documents, document_blocks, pool, 4)
    assert 100 * result.shared == pytest.approx(expected)
    assert result.salted == result.shared, "a salt keeps secrets, not blocks"
    assert result.quota_backlog == 4 * max(0, documents - 1)


@quick
@given(st.integers(1, 12), st.integers(0, 40), st.integers(4, 30))
def test_a_host_tier_restores_evicted_blocks(prompt: int, others: int, pool: int) -> None:
    pool = max(pool, prompt + 1)
    result = run("host_tier", prompt_blocks=prompt, others_blocks=others, pool=pool, host_blocks=200)
    assert result.host_tokens == oracle.tiered_host_tokens(prompt, others, pool)
    assert result.device_tokens + result.host_tokens == 16 * prompt


@quick
@given(st.integers(1, 100), st.integers(2, 200), st.integers(3, 40), st.integers(1, 64), block_sizes)
def test_a_window_bounds_the_blocks_that_are_held(
    window: int, prompt: int, output: int, chunk: int, block_size: int
) -> None:
    result = run(
        "window_blocks",
        window=window,
        prompt=prompt,
        output=output,
        chunk=chunk,
        block_size=block_size,
        scan=0,
    )
    assert result.most_held == oracle.window_most(window, prompt, output, chunk, block_size)


@pytest.mark.slow
@quick
@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 5))
def test_round_robin_pays_for_a_session_on_every_replica(replicas: int, sessions: int, turns: int) -> None:
    sizes = {"prompt": 200, "prefix": 120, "pool": 1000}  # enough for all blocks, so that nothing is evicted
    result = run("router_lab", replicas=replicas, sessions=sessions, turns=turns, **sizes)
    expected = oracle.round_robin_hit_percent(replicas, sessions, turns, 200, 120, 16)
    assert 100 * result.hit_rate["round_robin"] == pytest.approx(expected)
    expected = oracle.affinity_hit_percent(sessions, turns, 200, 120, 16)
    assert 100 * result.hit_rate["consistent_hash"] == pytest.approx(expected)


def test_only_a_router_with_kv_events_notices_a_restart() -> None:
    result = run("kv_event_router", restart=True)
    assert result.guessed_by_prefix > result.guessed_hits
    assert result.told_by_prefix == result.told_hits


def test_a_tree_finds_the_rest_of_the_block_and_a_whole_prompt_key_only_repeats() -> None:
    result = run("lookups", system=200, user=30, answer=50, chats=1, turns=4, retry=False)
    assert result.token_tree[-1] == oracle.tree_hit_last(200, 30, 50, 4)
    assert result.whole_prompt_total == 0
    for tree, blocks in zip(result.token_tree, result.block_hashes, strict=True):
        assert 0 <= tree - blocks < 16


def test_a_sliding_history_keeps_only_the_system_prompt() -> None:
    result = run("prompt_budget", turns=20)
    assert result.largest_slide <= 1200 < result.largest_none
    assert result.hits_slide[-1] == oracle.full_blocks(200, 16)
    assert result.computed_bulk < result.computed_slide


@pytest.mark.parametrize("change", ["none", "edited", "volatile"])
@pytest.mark.parametrize("position", [10, 255, 256, 400])
def test_a_gate_sees_as_far_as_it_looks(change: str, position: int) -> None:
    result = run("template_gate", change=change, position=position, gate=256)
    assert result.stopped == oracle.gated(change, position, 256)
    assert result.stopped_by_two_renders == (change == "volatile" and position < 256)
    assert (result.hit_after == result.hit_before) == (change != "volatile")


def test_a_warm_prefix_saves_time_in_proportion_to_its_tokens() -> None:
    small, large = (run("prefill_saving", prompt=4000, prefix=prefix) for prefix in (1000, 2000))
    assert large.saved_ms > 1.7 * small.saved_ms


def test_hashes_of_prompts_that_share_nothing_are_all_that_caching_adds() -> None:
    result = run("hash_work", requests=10, prompt=100)
    assert result.digests == 10 * (1 + 100 // 16)
    assert (result.hits, result.computed_with, result.steps_with) == (
        0,
        result.computed_without,
        result.steps_without,
    )


# -- helpers of the application layer


def test_a_quota_admits_its_tokens_in_order() -> None:
    quota = TokenQuota(10)
    for length in (4, 5, 3, 2):
        quota.offer([length] * length)
    assert [len(prompt) for prompt in quota.admit()] == [4, 5]
    assert [len(prompt) for prompt in quota.admit()] == [3, 2]
    assert quota.num_waiting == 0


def test_turns_come_in_proportion_to_weights_and_a_session_stays() -> None:
    balance = WeightedRoundRobin([3, 1])
    assert [balance.choose() for _ in range(8)].count(0) == 6
    homes = Sticky(balance.choose)
    assert len({homes.choose("s") for _ in range(5)}) == 1


def test_a_budgeter_never_cuts_the_system_prompt_or_the_question() -> None:
    chat = Budgeter([1, 2, 3], 6, "slide")
    for _ in range(5):
        chat.turns.append([9, 9])
    assert chat.prompt([7]) == [1, 2, 3, 9, 9, 7]


def test_a_canonical_prompt_does_not_depend_on_order_or_blanks() -> None:
    parts = {"tools": [{"name": "b", "x": 1}, {"name": "a"}], "date": "d", "request": "r", "question": "q"}
    other = {"tools": [{"name": "a"}, {"x": 1, "name": "b"}], "date": "d", "request": "r", "question": "q"}
    first = canonical({**parts, "instructions": "Be  brief. "})
    assert first == canonical({**other, "instructions": "Be brief.\n"})
    assert first.endswith(b"q")


def test_whole_prompt_and_token_tree_lookups() -> None:
    whole, tree = WholePromptCache(), TokenTree()
    assert (whole.hit([1, 2, 3]), whole.hit([1, 2, 3]), whole.hit([1, 2, 3, 4])) == (0, 2, 0)
    tree.add([1, 2, 3])
    assert (tree.hit([1, 2, 9]), tree.hit([1, 2, 3]), tree.hit([5, 6])) == (2, 2, 0)


def test_response_caches_match_exact_normalised_and_similar_texts() -> None:
    exact, similar = ResponseCache(normalise), ResponseCache(threshold=0.5)
    for cache in (exact, similar):
        cache.put("Price of Fox?", "12")
    assert (exact.get("price of fox"), exact.get("price of the fox")) == ("12", None)
    assert similar.get("price of bell") == "12", "a false hit: two of four words are enough"
    assert likeness("a b", "b a") == 1


def test_an_answer_expires_when_its_lifetime_has_passed() -> None:
    cache = ResponseCache(normalise, ttl=10)
    cache.put("Price of Fox?", "12", now=5)
    assert (cache.get("price of fox", now=14.9), cache.get("price of fox", now=15)) == ("12", None)


@pytest.mark.parametrize("seed", range(6))
def test_staleness_is_bounded_by_the_ttl_and_absent_with_versions(seed: int) -> None:
    found = run("response_staleness", seed=seed, ttl=150, change_every=40)
    never, ttl, catalogue, title = range(4)
    assert found.stale[never] > found.stale[ttl] > 0 == found.stale[catalogue] == found.stale[title]
    assert found.oldest_stale[ttl] < 150 < found.oldest_stale[never]
    assert found.hits[never] > found.hits[title] > found.hits[catalogue]
    unchanged = run("response_staleness", seed=seed, ttl=150, change_every=100_000)
    assert unchanged.changes == 0 and sum(unchanged.stale) == 0


def test_personal_questions_that_bypass_the_cache_get_no_other_customers_answer() -> None:
    plain = run("response_cache", personal=1.0)
    excluded = run("response_cache", personal=1.0, exclude_personal=True)
    assert plain.false_similar > 0 == excluded.similar == excluded.false_similar


# -- with a model


def test_a_hit_changes_no_token_and_saves_the_prefix() -> None:
    result = run("cached_ttft", prompt=200, answer=4)
    assert result.tokens_equal
    assert result.computed_warm == oracle.repeat_computed(200, 16)


def test_images_are_told_apart_by_content() -> None:
    same, other = run("image_hits"), run("image_hits", same_image=False)
    for result, is_same in ((same, True), (other, False)):
        assert result.cached_tokens == oracle.image_hit(result.image_at, result.prompt_tokens, 16, is_same)
        assert result.encoder_runs == 2 - is_same
        assert result.same_token_ids


def test_a_folder_of_blocks_serves_another_engine() -> None:
    result = run("disk_tier", prompt=100)
    assert (result.own_hit, result.other_hit, result.shared_hit) == (96, 0, 96)
    assert result.tokens_equal and result.shared_source == "disk"
    assert result.bytes_read == 6 * result.block_bytes


def test_a_window_changes_a_model_that_was_trained_without_one() -> None:
    result = run("window_on_full_model", window=32, prompt=100, answer=4)
    assert result.logprob_change > 0.1
    assert result.window_blocks < result.full_blocks


@pytest.mark.parametrize("name", ["conversation", "prompt_budget", "router_lab", "noisy_neighbour"])
def test_a_chart_shows_every_figure_of_the_result(name: str) -> None:
    result = run(name)
    found = registry.get(f"prefix_cache.{name}")
    spec = found.chart(result)
    rows = spec["data"]["values"]
    expected = {
        "conversation": 2 * len(getattr(result, "prompt_tokens", [])),
        "prompt_budget": 60,
        "router_lab": 7,
        "noisy_neighbour": 5,
    }
    assert len(rows) == expected[name]
    fields = {channel["field"] for channel in spec["encoding"].values()}
    assert all(fields <= set(row) for row in rows)
