"""The noise: a pure function, well mixed, and Gumbel distributed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.sample.rng import row_keys
from kernels.reference.sampling import gumbel_from_bits, gumbel_noise
from tests.sample.harness import assert_distributed_as

VOCAB = 4096


def noise(seeds: list[int], positions: list[int], vocab_size: int = VOCAB) -> np.ndarray:
    keys = row_keys(np.array(seeds), np.array(positions))
    return gumbel_noise(torch.from_numpy(keys), vocab_size).numpy()


def test_a_rows_bits_do_not_depend_on_the_batch() -> None:
    seeds, positions = list(range(37)), list(range(100, 137))
    together = noise(seeds, positions, 1003)
    for index in (0, 1, 20, 36):
        assert np.array_equal(
            noise(seeds[index : index + 1], positions[index : index + 1], 1003)[0], together[index]
        )


def test_a_tokens_noise_does_not_depend_on_the_vocabulary_size() -> None:
    assert np.array_equal(noise([5], [9], 1000)[0], noise([5], [9], 4000)[0, :1000])


def test_seed_and_position_matter_in_every_bit() -> None:
    seeds = [0, 1, 2, -1, 2**62, -(2**63), 0, 0, 0]
    positions = [0, 0, 0, 0, 0, 0, 1, 2, 131071]
    rows = noise(seeds, positions)
    for one in range(len(seeds)):
        for other in range(one):
            assert (rows[one] == rows[other]).mean() < 0.01


def test_the_noise_is_gumbel_distributed_over_tokens_positions_and_seeds() -> None:
    edges = np.linspace(-2, 8, 41)
    cdf = np.exp(-np.exp(-edges))
    probs = np.diff(cdf, prepend=0.0, append=1.0)
    for seeds, positions in (([1] * 25, list(range(25))), (list(range(25)), [1] * 25)):
        values = noise(seeds, positions)
        counts = np.bincount(np.searchsorted(edges, values.ravel()), minlength=len(probs))
        assert_distributed_as(counts, probs)
    by_token = noise(list(range(5000)), [3] * 5000, vocab_size=20)
    for token in range(20):
        counts = np.bincount(np.searchsorted(edges, by_token[:, token]), minlength=len(probs))
        assert_distributed_as(counts, probs)


@pytest.mark.parametrize("axis", ["token", "position", "seed"])
def test_neighbours_are_uncorrelated(axis: str) -> None:
    if axis == "token":
        rows = noise(list(range(100)), [0] * 100).T
    elif axis == "position":
        rows = noise([0] * 400, list(range(400)))
    else:
        rows = noise(list(range(400)), [0] * 400)
    for lag in (1, 2, 3, 4, 8, 16, 32):
        first, second = rows[:-lag].ravel(), rows[lag:].ravel()
        correlation = np.corrcoef(first, second)[0, 1]
        assert abs(correlation) < 5 / len(first) ** 0.5, f"lag {lag}: {correlation}"


def test_no_value_is_infinite_even_at_the_ends_of_the_hash() -> None:
    noise = gumbel_from_bits(torch.tensor([0, 1, 2**31, 2**32 - 129, 2**32 - 1])).numpy()
    assert np.isfinite(noise).all()
    assert 22 < noise[0] < 24 and -3 < noise[-1] < -2.5
    assert (np.diff(noise) <= 0).all()
