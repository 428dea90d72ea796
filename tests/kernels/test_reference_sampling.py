"""The specification of `sample` against the engine's sampler, and against the distribution that it promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.sample import rng
from engine.sampling_params import SamplingParams
from kernels.reference.sampling import floor_of, gumbel_from_bits, gumbel_noise, noise_bits, sample
from tests.sample import harness, oracle

VOCAB = 40
SETTINGS = (
    {},
    {"temperature": 0.0},
    {"temperature": 0.3, "top_k": 3},
    {"temperature": 1.7, "top_p": 0.6},
    {"min_p": 0.2},
    {"temperature": 0.7, "min_p": 0.05, "top_k": 8, "top_p": 0.9},
    {"temperature": 1e-5, "top_p": 0.5},
    {"temperature": 3.0, "top_k": VOCAB, "top_p": 0.05},
)


def call(logits: Tensor, settings: list[dict], keys: Tensor) -> Tensor:
    """The token ids for rows of sampling parameters, as a sampler would hand them over."""
    off = {"temperature": 1.0, "top_k": logits.shape[1], "top_p": 1.0, "min_p": 0.0}
    columns = {name: torch.tensor([row.get(name, value) for row in settings]) for name, value in off.items()}
    return sample(logits, **columns, keys=keys)[0]


def keys_of(seeds: np.ndarray, positions: np.ndarray) -> Tensor:
    return torch.from_numpy(rng.row_keys(seeds, positions).view(np.int32))


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
def test_the_tokens_are_those_of_the_engine_s_sampler(ties: bool) -> None:
    settings = [SETTINGS[row % len(SETTINGS)] for row in range(160)]
    logits = torch.randn(160, VOCAB, generator=torch.Generator().manual_seed(4)) * 2
    if ties:
        logits = logits.round()
    logits[:, 30:] = float("-inf")
    rows = [harness.Row(SamplingParams(**each), seed=seed) for seed, each in enumerate(settings)]
    wanted = harness.sample(logits, rows).token_ids
    keys = keys_of(np.arange(160), np.ones(160, np.int64))
    assert call(logits, settings, keys).tolist() == wanted.tolist()


def hashed(first: int, second: int, token: int) -> int:
    """The hash once more, in Python's integers."""
    low = 0xFFFFFFFF
    bits = first ^ (token * 0x9E3779B1 & low)
    bits = (bits ^ bits >> 16) * 0x85EBCA6B & low
    bits = ((bits ^ bits >> 13) + second) & low
    bits = bits * 0xC2B2AE35 & low
    return bits ^ bits >> 16


def test_the_noise_is_gumbel_of_the_hash_of_key_and_token() -> None:
    signed = keys_of(np.arange(-3, 3), np.arange(6))
    unsigned = signed.numpy().view(np.uint32).tolist()
    bits = noise_bits(signed, 500)
    assert bits.tolist() == [[hashed(*key, token) for token in range(500)] for key in unsigned]
    wanted = -(-(-(bits.double() + 0.5) / 2**32).log1p()).log()
    torch.testing.assert_close(gumbel_noise(signed, 500).double(), wanted, rtol=1e-4, atol=1e-4)


def test_the_noise_is_finite_for_every_hash() -> None:
    extremes = gumbel_from_bits(torch.tensor([0, 1, 2**31, 2**32 - 2, 2**32 - 1]))
    assert extremes.isfinite().all()
    assert extremes[0] > 22.8 and extremes[-1] < -2.8


def test_keys_may_be_signed_or_unsigned() -> None:
    keys = torch.tensor([[-1, 5], [7, -(2**31)]], dtype=torch.int32)
    assert torch.equal(gumbel_noise(keys, 9), gumbel_noise(keys.view(torch.uint32), 9))


@pytest.mark.parametrize("settings", SETTINGS[2:6], ids=str)
def test_50000_draws_follow_the_distribution(settings: dict) -> None:
    logits = torch.randn(16, generator=torch.Generator().manual_seed(5)) * 2
    draws = 50_000
    keys = keys_of(np.full(draws, 11), np.arange(draws))
    said = call(logits.expand(draws, 16), [settings] * draws, keys)
    probs = oracle.distribution(logits.tolist(), SamplingParams(**settings))
    harness.assert_distributed_as(np.bincount(said.numpy(), minlength=16), probs)


def test_equal_logits_share_their_fate_at_every_floor() -> None:
    x = torch.tensor([[0.0, -1.0, -1.0, -1.0, -2.0]])
    one, off = torch.ones(1), torch.zeros(1)
    for top_k, top_p, min_p in ((2, one, off), (5, one * 0.5, off), (5, one, torch.exp(-one) * 0.999)):
        floor = floor_of(x, torch.tensor([top_k]), top_p, min_p)
        assert (x >= floor).sum() == 4


def test_a_nan_or_a_forbidden_row_leaves_the_others_alone() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(6))
    settings, keys = [SETTINGS[5]] * 3, keys_of(np.arange(3), np.arange(3))
    before = call(logits, settings, keys)
    spoilt = logits.clone()
    spoilt[0, 3], spoilt[1] = float("nan"), float("-inf")
    columns = torch.ones(3), torch.full((3,), VOCAB), torch.ones(3), torch.zeros(3)
    _, peaks = sample(spoilt, *columns, keys)
    assert peaks[0].isnan() and peaks[1] == float("-inf")
    assert call(spoilt, settings, keys)[2] == before[2]
