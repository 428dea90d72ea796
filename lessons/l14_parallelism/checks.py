"""Checks of lesson 14."""

from __future__ import annotations

import math
from random import Random

import torch
from torch import Tensor

from lessons.course.checking import Failed, Learner, check, refused, smallest

SIZES = ((2, 1), (2, 2), (4, 2), (6, 3), (8, 4))


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@check("14.1")
def columns_are_outputs(learner: Learner) -> None:
    """column_shard returns the rank's outputs: rows of the matrix as torch stores it."""

    def run(case: tuple[int, int]) -> None:
        width, size = case
        weight = numbers(width, 3)
        part = width // size
        for rank in range(size):
            found = learner.call("column_shard", weight, rank, size)
            if found.tolist() != weight.tolist()[rank * part : (rank + 1) * part]:
                raise Failed(
                    f"rank {rank} of {size} got {list(found.shape)}, expected outputs "
                    f"{rank * part} to {rank * part + part - 1} of [{width}, 3]"
                )

    smallest(SIZES, run)


@check("14.1")
def rows_are_inputs(learner: Learner) -> None:
    """row_shard returns the rank's inputs: columns of the matrix as torch stores it."""

    def run(case: tuple[int, int]) -> None:
        width, size = case
        weight = numbers(3, width)
        part = width // size
        for rank in range(size):
            found = learner.call("row_shard", weight, rank, size)
            expected = [row[rank * part : (rank + 1) * part] for row in weight.tolist()]
            if found.tolist() != expected:
                raise Failed(
                    f"rank {rank} of {size} got {list(found.shape)} of [3, {width}], or other inputs"
                )

    smallest(SIZES, run)


@check("14.1")
def uneven_parts_are_refused(learner: Learner) -> None:
    """A width that size does not divide raises ValueError."""
    for name, shape in (("column_shard", (5, 4)), ("row_shard", (4, 5))):
        refused(f"{name} {shape}, size 2", learner.call, name, numbers(*shape), 0, 2)


def ranks_of_mlp(learner: Learner, size: int) -> tuple[list[Tensor], list[list[Tensor]], Tensor, Tensor]:
    """Return the results, what each rank gave to all_reduce, the exact result and what all_reduce returned."""
    hidden, inner, tokens = 6, 8, 3
    x = numbers(tokens, hidden)
    gate, up, down = (
        numbers(inner, hidden, seed=1),
        numbers(inner, hidden, seed=2),
        numbers(hidden, inner, seed=3),
    )
    g, u = x @ gate.T, x @ up.T
    exact = (g / (1 + (-g).exp()) * u) @ down.T
    answer = numbers(tokens, hidden, seed=9)
    results, given = [], []
    part = inner // size
    for rank in range(size):
        said: list[Tensor] = []

        def all_reduce(tensor: Tensor, said: list[Tensor] = said) -> Tensor:
            said.append(tensor.clone())
            return answer.clone()

        cut = slice(rank * part, (rank + 1) * part)
        shards = gate[cut].clone(), up[cut].clone(), down[:, cut].clone()
        results.append(learner.call("parallel_mlp", x, *shards, learner.callback(all_reduce)))
        given.append(said)
    return results, given, exact, answer


@check("14.1")
def one_all_reduce_is_enough(learner: Learner) -> None:
    """Each rank calls all_reduce exactly once."""
    for size in (1, 2, 4):
        _, given, _, _ = ranks_of_mlp(learner, size)
        for rank, said in enumerate(given):
            if len(said) != 1:
                raise Failed(f"rank {rank} called all_reduce {len(said)} times", example=f"{size} ranks")


@check("14.1")
def the_parts_add_up(learner: Learner) -> None:
    """The sum of what the ranks give to all_reduce is the MLP of the whole matrices."""
    for size in (1, 2, 4):
        _, given, exact, _ = ranks_of_mlp(learner, size)
        shapes = [list(said[0].shape) for said in given if said]
        if len(shapes) < size or any(shape != list(exact.shape) for shape in shapes):
            raise Failed(
                f"all_reduce got {shapes}, expected {list(exact.shape)} from each", example=f"{size} ranks"
            )
        total = torch.stack([said[0].double() for said in given]).sum(0)
        if not torch.allclose(total, exact, atol=1e-6):
            off = float((total - exact).abs().max())
            raise Failed(f"the sum is off by up to {off:.3f}", example=f"{size} ranks")


@check("14.1")
def the_sum_is_the_result(learner: Learner) -> None:
    """parallel_mlp returns what all_reduce returned."""
    results, _, _, answer = ranks_of_mlp(learner, 2)
    for rank, result in enumerate(results):
        if not torch.equal(result, answer):
            raise Failed(f"rank {rank} returned something else than the sum", example="2 ranks")


Case = tuple[list[bytes], list[int], dict[bytes, set[int]], float]


def name(*parts: int) -> list[bytes]:
    """Chained block hashes of a prompt."""
    return [bytes(parts[: end + 1]) for end in range(len(parts))]


def expected_replica(case: Case) -> int:
    """The rule, from the replicas' side: each replica's hit length, no walk over the blocks."""
    hashes, loads, holders, imbalance = case
    limit = math.ceil(imbalance * (sum(loads) + 1) / len(loads))
    best: tuple[int, int, int] | None = None
    for replica, load in enumerate(loads):
        held = [index + 1 for index, each in enumerate(hashes) if replica in holders.get(each, set())]
        length = max(held, default=0)
        if length and load < limit:
            key = (-length, load, replica)
            best = key if best is None or key < best else best
    return best[2] if best is not None else min((load, replica) for replica, load in enumerate(loads))[1]


def cases() -> list[Case]:
    ab = name(1, 2)
    small: list[Case] = [
        ([], [0], {}, 1.25),
        ([], [1, 0], {}, 1.25),
        (ab, [0, 0], {ab[0]: {1}}, 1.25),
        (ab, [1, 0], {ab[0]: {0, 1}, ab[1]: {0}}, 2.0),
        (ab, [3, 0], {ab[0]: {0, 1}, ab[1]: {0}}, 1.25),
        (ab, [4, 0, 0], {ab[1]: {0}}, 1.25),
    ]
    rng = Random(14)
    for _ in range(200):
        replicas = rng.randint(1, 5)
        hashes = name(*(rng.randint(0, 1) for _ in range(rng.randint(0, 4))))
        known = [h for h in hashes if rng.random() < 0.8]
        holders = {h: {r for r in range(replicas) if rng.random() < 0.4} for h in known}
        loads = [rng.randint(0, 6) for _ in range(replicas)]
        small.append((hashes, loads, holders, rng.choice([1.0, 1.25, 1.5, 4.0])))
    return small


def matches_rule(learner: Learner, chosen: list[Case]) -> None:
    def run(case: Case) -> None:
        found, expected = learner.call("route", *case), expected_replica(case)
        if type(found) is not int or found != expected:
            raise Failed(f"chose {found!r}, expected replica {expected}")

    smallest(chosen, run)


@check("14.2")
def unknown_prompts_go_to_the_least_loaded(learner: Learner) -> None:
    """Without a known prefix the least loaded replica is chosen, of equals the first."""
    matches_rule(learner, [([], [1, 0], {}, 1.25), ([], [2, 1, 1], {}, 1.25), (name(7), [0, 0], {}, 1.25)])


@check("14.2")
def the_longest_prefix_wins(learner: Learner) -> None:
    """The longest known prefix decides among the replicas with room, though another has less to do."""
    ab = name(1, 2)
    matches_rule(
        learner,
        [
            (ab, [0, 0], {ab[0]: {1}}, 1.25),
            (ab, [2, 1], {ab[0]: {0, 1}, ab[1]: {0}}, 4.0),
            (ab, [1, 2], {ab[0]: {0}, ab[1]: {1}}, 4.0),
        ],
    )


@check("14.2")
def an_overloaded_replica_is_passed_over(learner: Learner) -> None:
    """A replica at the limit is not chosen for its prefix; the limit counts the new request and rounds up."""
    a, ab = name(1), name(1, 2)
    matches_rule(
        learner,
        [
            (a, [1, 0], {a[0]: {0}}, 1.0),
            (a, [2, 0], {a[0]: {0}}, 1.25),
            (a, [1, 1], {a[0]: {1}}, 1.0),
            (a, [3, 2], {a[0]: {0}}, 1.25),
            (a, [9, 0, 0], {a[0]: {0}}, 1.25),
        ],
    )
    matches_rule(learner, [(ab, [0, 6], {ab[0]: {0}, ab[1]: {1}}, 1.25)])


@check("14.2")
def a_shorter_prefix_with_room_is_used(learner: Learner) -> None:
    """If every holder of the longest prefix is overloaded, holders of a shorter one are asked."""
    abc = name(1, 2, 3)
    matches_rule(
        learner,
        [
            (abc, [9, 2, 0], {abc[0]: {0, 1}, abc[2]: {0}}, 1.25),
            (abc, [9, 1, 0], {abc[1]: {1}, abc[2]: {0}}, 1.25),
        ],
    )


@check("14.2")
def random_fleets_agree(learner: Learner) -> None:
    """200 random fleets: the choice follows the rule."""
    matches_rule(learner, cases())


@check("14.3")
def a_transfer_takes_bytes_over_rate(learner: Learner) -> None:
    """transfer_seconds is the latency and the bytes over the rate."""

    def run(case: tuple[int, int, float, float]) -> None:
        tokens, size, rate, latency = case
        expected = latency + sum(size / rate for _ in range(tokens))
        found = learner.call("transfer_seconds", *case)
        if not math.isclose(found, expected, rel_tol=1e-9):
            raise Failed(f"returned {found:.6g} s, expected {expected:.6g} s")

    smallest([(1, 100, 100.0, 0.0), (10, 1000, 1e6, 0.5), (4000, 131_072, 50e9, 12e-6)], run)


def arrival(prefill: float, transfer: float, layers: int) -> float:
    """Seconds after the prefill, from a walk over the layers."""
    link_free = 0.0
    for layer in range(layers):
        computed = (layer + 1) * prefill / layers
        link_free = max(link_free, computed) + transfer / layers
    return link_free - prefill


FAST, SLOW = (8.0, 4.0, 4), (4.0, 8.0, 4)


def exposed(learner: Learner, case: tuple[float, float, int]) -> None:
    expected = arrival(*case)
    found = learner.call("exposed_seconds", *case, True)
    if not math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12):
        raise Failed(f"returned {found:.6g} s, expected {expected:.6g} s")


@check("14.3")
def in_one_piece_all_is_exposed(learner: Learner) -> None:
    """Sent in one piece, the whole transfer comes after the prefill."""
    for case in (FAST, SLOW):
        found = learner.call("exposed_seconds", *case, False)
        if found != case[1]:
            raise Failed(f"returned {found!r}, expected {case[1]}", example=case)


@check("14.3")
def a_fast_link_exposes_one_layer(learner: Learner) -> None:
    """If a layer is sent faster than the next is computed, only the last layer's KV comes after the prefill."""
    smallest([(2.0, 1.0, 1), (2.0, 1.0, 2), FAST, (0.26, 0.008, 80)], lambda case: exposed(learner, case))


@check("14.3")
def a_slow_link_queues(learner: Learner) -> None:
    """If the link is slower than the layers, KV queues at the link, and its whole backlog is exposed."""
    smallest([(1.0, 2.0, 1), (1.0, 2.0, 2), SLOW, (0.2, 3.0, 32)], lambda case: exposed(learner, case))


@check("14.3")
def random_links_agree(learner: Learner) -> None:
    """300 random prompts and links agree with a walk over the layers."""
    rng = Random(3)
    for _ in range(300):
        case = (rng.uniform(0.01, 2), rng.uniform(0.001, 4), rng.randint(1, 80))
        smallest([case], lambda case: exposed(learner, case))
