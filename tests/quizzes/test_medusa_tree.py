"""Medusa's tree: its paths and steps against brute force, and the offline chain against the live engine."""

from __future__ import annotations

import random
from itertools import product
from math import prod

import pytest

from quizzes.experiments.context import Context
from quizzes.experiments.speculation.medusa import best_tree, medusa_tree, num_steps


@pytest.mark.parametrize("seed", range(4))
def test_the_tree_holds_the_paths_with_the_largest_products(seed: int) -> None:
    rng = random.Random(seed)
    accuracy = [sorted((rng.random() for _ in range(16)), reverse=True) for _ in range(3)]
    paths = [path for depth in (1, 2, 3) for path in product(range(16), repeat=depth)]
    value = {path: prod(accuracy[head][rank] for head, rank in enumerate(path)) for path in paths}
    tree = best_tree(accuracy, 20)
    assert sorted(value[path] for path in tree) == sorted(value.values())[-20:]
    assert all(path[:-1] in tree for path in tree if len(path) > 1)


def test_each_step_takes_the_longest_path_and_one_token_more() -> None:
    chain = {(0,), (0, 0)}
    assert num_steps([[0, 0]] * 7, chain) == 3  # 3 + 3 + 1 tokens
    assert num_steps([[1, 0]] * 7, chain) == 7  # the first draft is wrong: one token a step
    assert num_steps([[1, 0]] * 7, chain | {(1,), (1, 0)}) == 3
    assert num_steps([[0, 1], [9, 9], [0, 0]], chain) == 2  # the second step starts behind an accepted draft
    assert num_steps([], chain) == 0


def test_more_candidates_never_need_more_positions_than_asked_and_the_chain_is_the_engines() -> None:
    found = medusa_tree(Context(), requests=4)
    assert found.chain_tokens_per_step == pytest.approx(found.live_tokens_per_step, rel=0.02)
    assert found.tree_tokens_per_step > found.chain_tokens_per_step > 1.2
    assert found.tree_positions == 17 == 1 + sum(found.nodes_by_level)
    assert all(two >= one for one, two in zip(found.head_accuracy, found.best_two, strict=True))
