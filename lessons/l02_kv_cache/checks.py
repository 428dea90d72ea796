"""Checks of lesson 02. The oracles keep lists and compute attention in Python's floats, one head at a time."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lessons.course.checking import Failed, Learner, check, refused, smallest


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(name: str, found: Any, wanted: Tensor, within: float = 0.0) -> None:
    if not isinstance(found, Tensor):
        raise Failed(f"{name} is a {type(found).__name__}; expected a tensor")
    if found.shape != wanted.shape:
        raise Failed(f"{name} has the shape {list(found.shape)}; expected {list(wanted.shape)}")
    error = float((found.double() - wanted.double()).abs().max())
    if not error <= within:
        raise Failed(f"{name} differs from the expected tensor by up to {error:.3g}")


@check("02.1")
def append_returns_all_tokens(learner: Learner) -> None:
    """append returns the keys and values of all tokens so far, oldest first, however many come at once."""

    def run(counts: list[int]) -> None:
        cache = learner.new("KVCache", 1, 2, 4, 16)
        k, v = random(sum(counts), 2, 4, seed=1), random(sum(counts), 2, 4, seed=2)
        end = 0
        for count in counts:
            start, end = end, end + count
            found = cache.append(0, k[start:end].clone(), v[start:end].clone())
            if len(found) != 2:
                raise Failed(f"append returned {len(found)} values; expected keys and values")
            same(f"the keys after {end} tokens", found[0], k[:end])
            same(f"the values after {end} tokens", found[1], v[:end])

    smallest([[1], [1, 1], [3], [3, 1, 1], [2, 3, 1, 4], [1] * 16], run)


@check("02.1")
def keys_and_values_differ(learner: Learner) -> None:
    """Keys come back as keys, values as values."""
    cache = learner.new("KVCache", 1, 1, 2, 4)
    keys, values = cache.append(0, torch.full((1, 1, 2), 1.0), torch.full((1, 1, 2), 2.0))
    for name, found, wanted in (("key", keys, 1.0), ("value", values, 2.0)):
        if found.tolist() != [[[wanted, wanted]]]:
            raise Failed(f"the {name} is {found.tolist()}", example="append(0, [[[1, 1]]], [[[2, 2]]])")


@check("02.1")
def layers_are_separate(learner: Learner) -> None:
    """Storing in one layer neither moves nor overwrites the entries of another."""
    cache = learner.new("KVCache", 3, 1, 2, 8)
    held: dict[int, list[Tensor]] = {0: [], 1: [], 2: []}
    for step, count in enumerate([3, 1, 2]):
        for layer in range(3):
            new = random(count, 1, 2, seed=10 * step + layer)
            held[layer].append(new)
            keys, values = cache.append(layer, new, -new)
            same(f"the keys of layer {layer} in step {step}", keys, torch.cat(held[layer]))
            same(f"the values of layer {layer} in step {step}", values, -torch.cat(held[layer]))


@check("02.1")
def length_is_what_every_layer_holds(learner: Learner) -> None:
    """length counts tokens, and counts a token only when every layer holds it."""
    cache = learner.new("KVCache", 2, 1, 2, 8)
    new = torch.ones(3, 1, 2)
    found = [cache.get("length")]
    for layer in (0, 1):
        cache.append(layer, new, new)
        found.append(cache.get("length"))
    if found != [0, 0, 3]:
        raise Failed(
            f"length is {found[0]}, {found[1]}, {found[2]}; expected 0, 0, 3",
            example="2 layers: before, after append(0, 3 tokens), after append(1, 3 tokens)",
        )


@check("02.1")
def the_last_slot_is_used(learner: Learner) -> None:
    """A cache of max_len tokens holds max_len tokens."""
    for count in (1, 4):
        cache = learner.new("KVCache", 1, 1, 2, count)
        new = random(count, 1, 2)
        try:
            keys, _ = cache.append(0, new, new)
        except Exception as error:
            raise Failed(f"raised {error}", example=f"max_len {count}, append of {count} tokens") from None
        same("the keys", keys, new)


@check("02.1")
def a_full_cache_refuses(learner: Learner) -> None:
    """One token too many raises ValueError and changes nothing."""
    cache = learner.new("KVCache", 1, 1, 2, 4)
    first = random(3, 1, 2)
    cache.append(0, first, first)
    case = "max_len 4; append of 3 tokens; append of 2 tokens"
    refused(case, cache.append, 0, torch.ones(2, 1, 2), torch.ones(2, 1, 2))
    if (length := cache.get("length")) != 3:
        raise Failed(f"after the refusal length is {length}; expected 3", example=case)
    keys, _ = cache.append(0, torch.zeros(1, 1, 2), torch.zeros(1, 1, 2))
    same("the keys after the refusal and one more token", keys, torch.cat((first, torch.zeros(1, 1, 2))))


def slow_attention(q: Tensor, k: Tensor, v: Tensor, first: int) -> Tensor:
    """Attention of one query and head after the other, in double precision."""
    result = torch.zeros(q.shape, dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    for i in range(len(q)):
        seen = first + i + 1
        for head in range(q.shape[1]):
            scores = [
                math.fsum(
                    a * b for a, b in zip(q[i, head].tolist(), k[j, head // group].tolist(), strict=True)
                )
                / math.sqrt(q.shape[2])
                for j in range(seen)
            ]
            powers = [math.exp(score - max(scores)) for score in scores]
            for j, power in enumerate(powers):
                result[i, head] += power / math.fsum(powers) * v[j, head // group].double()
    return result


def compare(learner: Learner, n: int, heads: int, kv_heads: int, dim: int, first: int) -> None:
    q = 2 * random(n, heads, dim, seed=n)
    k, v = random(first + n, kv_heads, dim, seed=20), random(first + n, kv_heads, dim, seed=21)
    found = learner.call("attend", q, k, v, first)
    same("the result", found, slow_attention(q, k, v, first), within=1e-4)


@check("02.2")
def a_query_sees_itself(learner: Learner) -> None:
    """The newest token attends to its own key: with one strong key of its own it returns its own value."""
    q = torch.full((1, 1, 4), 8.0)
    k, v = torch.zeros(3, 1, 4), torch.zeros(3, 1, 4)
    k[2], v[2] = 8.0, 1.0
    found = learner.call("attend", q, k, v, 2)
    same("the result", found, torch.ones(1, 1, 4), within=1e-4)


@check("02.2")
def weights_are_a_scaled_softmax(learner: Learner) -> None:
    """Weights are the softmax of q k / sqrt(head_dim) over the keys."""
    smallest(
        [(1, 1, 1, 4, 0), (1, 1, 1, 4, 1), (1, 2, 2, 8, 5), (1, 4, 4, 16, 9)],
        lambda case: compare(learner, *case),
    )


@check("02.2")
def the_future_is_hidden(learner: Learner) -> None:
    """In a prompt of 4 tokens no result changes when later keys and values change."""
    q, k, v = random(4, 2, 8, seed=1), random(4, 2, 8, seed=2), random(4, 2, 8, seed=3)
    before = learner.call("attend", q, k, v, 0)
    for position in range(1, 4):
        other_k, other_v = k.clone(), v.clone()
        other_k[position:] += 3
        other_v[position:] -= 5
        after = learner.call("attend", q, other_k, other_v, 0)
        same(
            f"row {position - 1}, with new keys from {position} on,",
            after[position - 1],
            before[position - 1],
        )


@check("02.2")
def positions_start_at_first_position(learner: Learner) -> None:
    """Rows computed in two calls equal the rows of one call over the whole sequence."""

    def run(case: tuple[int, int]) -> None:
        first, n = case
        compare(learner, n, 2, 2, 8, first)

    smallest([(1, 1), (1, 2), (4, 1), (3, 4)], run)


@check("02.2")
def neighbouring_heads_share(learner: Learner) -> None:
    """Query head h reads key head h // g if there are g query heads per key head."""
    smallest(
        [(1, 2, 1, 4, 0), (1, 4, 2, 4, 2), (3, 8, 4, 8, 2), (2, 6, 2, 8, 3), (2, 4, 1, 8, 3)],
        lambda case: compare(learner, *case),
    )


@check("02.2")
def large_scores_stay_finite(learner: Learner) -> None:
    """Scores of some thousands give weights, not NaN."""
    q, k = torch.full((2, 1, 4), 60.0), torch.full((2, 1, 4), 60.0)
    v = torch.tensor([[[0.0] * 4], [[1.0] * 4]])
    found = learner.call("attend", q, k, v, 0)
    same("the result for equal scores of 7,200", found, torch.tensor([[[0.0] * 4], [[0.5] * 4]]), within=1e-4)


def counted(learner: Learner, *shape: int) -> None:
    layers, heads, dim, size = shape
    wanted = 0
    for _layer in range(layers):
        for _kind in ("keys", "values"):
            wanted += heads * dim * size
    found = learner.call("kv_bytes_per_token", *shape)
    if type(found) is not int or found != wanted:
        raise Failed(f"kv_bytes_per_token{shape} returned {found!r}; expected {wanted}")


@check("02.3")
def keys_and_values_are_counted(learner: Learner) -> None:
    """A layer keeps a key and a value for each KV head."""
    smallest([(1, 1, 1, 1), (1, 1, 8, 1), (1, 4, 8, 1)], lambda case: counted(learner, *case))


@check("02.3")
def every_layer_counts(learner: Learner) -> None:
    """Every layer keeps its own."""
    smallest([(2, 1, 1, 2), (6, 4, 32, 2), (80, 8, 128, 2)], lambda case: counted(learner, *case))


@check("02.3")
def bytes_follow_the_type(learner: Learner) -> None:
    """fp32 takes four bytes, bf16 two, fp8 one."""
    smallest([(1, 1, 1, size) for size in (1, 2, 4)], lambda case: counted(learner, *case))


def fitting(learner: Learner, case: tuple[int, int, int]) -> None:
    memory, weights, each = case
    wanted, left = 0, memory - weights
    while left >= each:
        wanted, left = wanted + 1, left - each
    found = learner.call("tokens_that_fit", *case)
    if type(found) is not int or found != wanted:
        raise Failed(f"tokens_that_fit{case} returned {found!r}; expected {wanted}")


@check("02.3")
def only_whole_tokens_fit(learner: Learner) -> None:
    """Tokens share what the weights leave; a part of a token does not count."""
    cases = [(10, 0, 10), (10, 4, 3), (10, 5, 3), (1_000, 300, 128)]
    smallest(cases, lambda case: fitting(learner, case))


@check("02.3")
def weights_may_not_fit(learner: Learner) -> None:
    """If the weights alone do not fit, no token does."""
    smallest([(10, 10, 3), (10, 14, 3), (10, 400, 3)], lambda case: fitting(learner, case))
