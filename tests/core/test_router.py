"""Requests go where their prefix is, unless that replica has too much to do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import ConfigError
from engine.core.router import PrefixRouter


def blocks(text: str) -> list[bytes]:
    """One chained hash per letter: equal prefixes, equal hashes."""
    return [text[: end + 1].encode() for end in range(len(text))]


def test_requests_without_a_known_prefix_go_to_the_least_loaded_in_turn() -> None:
    router = PrefixRouter(3)
    assert [router.route(blocks(text)) for text in ("a", "b", "c", "d")] == [0, 1, 2, 0]
    router.finish(1)
    assert router.route(blocks("e")) == 1


def test_a_request_follows_the_longest_prefix_that_anybody_has() -> None:
    router = PrefixRouter(2, max_imbalance=100)
    assert router.route(blocks("system")) == 0
    assert router.route(blocks("other")) == 1
    assert router.route(blocks("system + question")) == 0
    assert router.route(blocks("others")) == 1
    assert router.num_by_prefix == [1, 1]


def test_a_prefix_does_not_draw_more_than_its_share() -> None:
    router = PrefixRouter(2)
    replicas = [router.route(blocks("the same for all" + str(number))) for number in range(40)]
    assert abs(replicas.count(0) - replicas.count(1)) <= 12
    assert sum(router.num_by_prefix) >= 36, "after the first of each replica all find the prefix"


def test_prompts_shorter_than_a_block_have_no_prefix_to_follow() -> None:
    router = PrefixRouter(2)
    assert [router.route([]) for _ in range(4)] == [0, 1, 0, 1]


def test_a_replica_that_is_gone_gets_nothing_though_it_had_the_prefix() -> None:
    router = PrefixRouter(2)
    assert router.route(blocks("abc")) == 0
    router.remove(0)
    assert {router.route(blocks("abc")) for _ in range(5)} == {1}
    assert router.alive == [1]


def test_old_prefixes_are_forgotten() -> None:
    router = PrefixRouter(2, remembered_blocks=3, max_imbalance=100)
    router.route(blocks("abc"))
    router.route(blocks("xyz"))
    router.route(blocks("abc"))
    assert router.num_by_prefix == [0, 0]


def test_there_must_be_a_replica() -> None:
    with pytest.raises(ConfigError, match="num_replicas must be at least 1"):
        PrefixRouter(0)


@given(
    st.integers(1, 5),
    st.floats(1.0, 4.0),
    st.lists(st.tuples(st.text("ab", max_size=6), st.booleans()), max_size=80),
)
def test_loads_are_the_requests_that_are_there_and_never_far_above_the_mean(
    num_replicas: int, max_imbalance: float, events: list[tuple[str, bool]]
) -> None:
    router = PrefixRouter(num_replicas, max_imbalance=max_imbalance)
    present: list[int] = []
    for text, leaves in events:
        if leaves and present:
            router.finish(present.pop(0))
        else:
            before = list(router.loads)
            replica = router.route(blocks(text))
            mean = (sum(before) + 1) / num_replicas
            assert before[replica] == min(before) or before[replica] < max_imbalance * mean + 1
            present.append(replica)
        assert router.loads == [present.count(replica) for replica in range(num_replicas)]
