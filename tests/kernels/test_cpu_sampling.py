"""The C++ sampling pass against the sorting reference, and what may not change a row's token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.cpu import build
from kernels.reference import bitmask as bitmask_reference
from kernels.reference import sampling as reference

if problem := build.load_library().problem:
    pytest.skip(problem, allow_module_level=True)

from kernels.cpu import sampling
from tests.kernels.cpu_constants import constant
from tests.kernels.cpu_mutants import faulty, threads

SIZES = (1, 2, 15, 16, 17, 31, 64, 65, 500, 2051)
"""Vocabularies: less than a vector, whole vectors, one more and one less."""
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def inputs(seed: int, rows: int, vocab_size: int, *, rounded: bool = False) -> Inputs:
    """Rows of all kinds: greedy or not, any of the three filters. Rounded logits are full of ties."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(rows, generator=generator) * (high - low) + low

    logits = torch.randn(rows, vocab_size, generator=generator) * uniform(0, 6)[:, None]
    temperature = torch.where(uniform(0, 1) < 0.2, 0.0, uniform(0.01, 2))
    top_k = torch.where(uniform(0, 1) < 0.5, vocab_size, uniform(1, vocab_size + 1).int())
    top_p = torch.where(uniform(0, 1) < 0.5, 1.0, uniform(0, 1))
    min_p = torch.where(uniform(0, 1) < 0.5, 0.0, uniform(0, 0.3))
    return logits.round() if rounded else logits, temperature, top_k, top_p, min_p, keys(seed, rows)


def keys(seed: int, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (rows, 2), generator=generator, dtype=torch.int32)


def plain(rows: int, vocab_size: int, **settings: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """temperature, top_k, top_p, min_p, the same in all rows."""
    asked = {"temperature": 1.0, "top_k": vocab_size, "top_p": 1.0, "min_p": 0.0, **settings}
    columns = [torch.full((rows,), value) for value in asked.values()]
    return columns[0].float(), columns[1].int(), columns[2].float(), columns[3].float()


def scores(logits: Tensor, temperature: Tensor, *rest: Tensor) -> Tensor:
    """x + noise in float64, -inf for what the filters forbid: a row's token is where its score is highest."""
    top_k, top_p, min_p, row_keys = rest
    steps = torch.where(temperature > 0, temperature, 1.0)
    x = (logits - logits.amax(-1, keepdim=True)) / steps[:, None]
    floor = reference.floor_of(x.double(), top_k, top_p, min_p)
    allowed = x.masked_fill(x < floor, -torch.inf)
    return torch.where(
        temperature[:, None] > 0, allowed + reference.gumbel_noise(row_keys, logits.shape[1]), x
    )


def assert_chooses_the_best(sample: Callable[..., tuple[Tensor, Tensor]], case: Inputs) -> None:
    found, peaks = sample(*case)
    best = scores(*case)
    assert torch.equal(peaks, case[0].amax(-1))
    reached = best.gather(-1, found[:, None]).squeeze(-1)
    wrong = (reached < best.amax(-1) - 2e-6).nonzero().flatten().tolist()  # the noise is rounded
    assert not wrong, f"rows {wrong}: {[tuple(part[row] for part in case[1:]) for row in wrong[:3]]}"
    greedy = case[1] == 0
    assert torch.equal(found[greedy], case[0].argmax(-1)[greedy])


@pytest.mark.parametrize("rounded", [False, True], ids=["", "ties"])
@pytest.mark.parametrize("vocab_size", SIZES)
def test_every_row_of_a_mixture_gets_the_token_of_the_reference(vocab_size: int, rounded: bool) -> None:
    assert_chooses_the_best(sampling.sample, inputs(vocab_size, 200, vocab_size, rounded=rounded))


def test_a_large_vocabulary() -> None:
    assert_chooses_the_best(sampling.sample, inputs(1, 6, 128_256))


def test_more_rows_than_one_thread_takes() -> None:
    """Other rows each time: memory of the rows before would hide one that is left out."""
    rows = constant("sampling.cpp", "PARALLEL_TOKENS") // 500 + 3  # all of them greedy would be enough
    for count in (1, 2, 3):
        with threads(count):
            assert_chooses_the_best(sampling.sample, inputs(count, rows, 500))


def test_no_rows() -> None:
    token_ids, peaks = sampling.sample(*inputs(0, 0, 40))
    assert token_ids.shape == peaks.shape == (0,)


def test_the_hash_is_the_references_bit_for_bit() -> None:
    """Among equal logits the token with the lowest bits wins: its noise is the highest."""
    rows, vocab_size = 2000, 600
    row_keys = keys(3, rows)
    found, _ = sampling.sample(torch.zeros(rows, vocab_size), *plain(rows, vocab_size), row_keys)
    assert torch.equal(found, reference.noise_bits(row_keys, vocab_size).argmin(-1))


def test_the_noise_is_exact_to_two_millionths() -> None:
    """The second of two tokens wins exactly when its logit leads by more than its noise lags behind."""
    rows, slack = 4000, 2e-6
    row_keys = keys(4, rows)
    u = (reference.noise_bits(row_keys, 2).float() + 0.5) * reference.UNIFORM_SCALE
    noise = -(-(-u.double()).log1p()).log()
    lag = noise[:, 0] - noise[:, 1]
    for nudge, winner in ((-slack, 0), (slack, 1)):
        logits = torch.stack((torch.zeros(rows), (lag + nudge).float()), dim=-1)
        found, _ = sampling.sample(logits, *plain(rows, 2), row_keys)
        assert (found == winner).all()


@pytest.mark.parametrize("top_k", [1, 2, 3, 7, 40])
def test_top_k_keeps_exactly_the_highest_and_those_equal_to_the_last(top_k: int) -> None:
    rows, vocab_size = 3000, 40
    logits = inputs(5, 1, vocab_size)[0].mul(2).round()
    kept = (logits[0] >= logits[0].sort(descending=True).values[top_k - 1]).nonzero().flatten()
    found, _ = sampling.sample(
        logits.expand(rows, -1), *plain(rows, vocab_size, top_k=top_k, temperature=1e6), keys(5, rows)
    )
    assert found.unique().tolist() == kept.tolist()


def test_top_p_keeps_the_token_that_crosses_p() -> None:
    rows = 600
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(rows, -1)
    for top_p, kept in (
        (0.0, [0]),
        (0.49, [0]),
        (0.51, [0, 1]),
        (0.79, [0, 1]),
        (0.81, [0, 1, 2]),
        (0.96, [0, 1, 2, 3]),
    ):
        found, _ = sampling.sample(logits, *plain(rows, 4, top_p=top_p), keys(6, rows))
        assert found.unique().tolist() == kept, top_p


def test_the_search_ends_where_logits_differ_by_single_bits_or_by_orders_of_magnitude() -> None:
    rows, vocab_size = 64, 80
    neighbours = torch.arange(vocab_size, dtype=torch.int32).add(0x3F800000).view(torch.float32)
    magnitudes = -(2.0 ** -torch.arange(vocab_size, dtype=torch.float32))
    subnormal = torch.arange(vocab_size, dtype=torch.int32).view(torch.float32)
    for logits in (neighbours, magnitudes, subnormal, torch.zeros(vocab_size)):
        for settings in ({"top_k": 9}, {"top_p": 0.31}, {"top_k": 30, "top_p": 0.47, "min_p": 0.9}):
            case = (logits.expand(rows, -1), *plain(rows, vocab_size, **settings), keys(7, rows))
            assert_chooses_the_best(sampling.sample, case)


def test_extreme_temperatures_and_logits_do_not_overflow() -> None:
    for temperature in (1e-30, 1e-6, 1e30):
        for scale in (1e-30, 1.0, 1e38):
            logits = inputs(8, 50, 65)[0].clamp(-3, 3) * scale
            case = (logits, *plain(50, 65, temperature=temperature, top_p=0.9), keys(8, 50))
            assert_chooses_the_best(sampling.sample, case)


def test_a_forbidden_token_is_never_chosen() -> None:
    rows, vocab_size = 500, 100
    logits = torch.full((rows, vocab_size), -torch.inf)
    logits[:, [3, 98]] = torch.tensor([-1e30, -1e30])
    for settings in ({}, {"top_k": 50}, {"top_p": 0.99}, {"min_p": 0.5}, {"temperature": 1e30}):
        found, peaks = sampling.sample(logits, *plain(rows, vocab_size, **settings), keys(9, rows))
        assert found.unique().tolist() == [3, 98] and (peaks == logits[0, 3]).all()


@pytest.mark.parametrize("position", [0, 15, 64, 99])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_and_infinity_are_reported_and_stay_in_their_row(position: int, temperature: float) -> None:
    logits, _, *filters = inputs(10, 5, 100)
    expected, _ = sampling.sample(logits, torch.full((5,), temperature), *filters)
    poisoned = logits.clone()
    poisoned[1, position] = torch.nan
    poisoned[2, position] = torch.inf
    poisoned[3] = -torch.inf
    found, peaks = sampling.sample(poisoned, torch.full((5,), temperature), *filters)
    assert found[[0, 4]].tolist() == expected[[0, 4]].tolist()
    assert peaks[1].isnan() and peaks[2] == torch.inf and peaks[3] == -torch.inf
    assert ((found >= 0) & (found < 100)).all()


def test_a_row_gets_the_same_token_alone_and_in_any_batch() -> None:
    case = inputs(11, 300, 2051)  # enough for all threads
    together, peaks = sampling.sample(*case)
    for row in range(0, 300, 7):
        alone, peak = sampling.sample(*(part[row : row + 1] for part in case))
        assert alone[0] == together[row] and peak[0] == peaks[row]


def test_rows_of_a_wider_matrix_are_sampled_in_place_and_not_modified() -> None:
    logits, *rest = inputs(12, 20, 130)
    wide = torch.full((20, 200), torch.inf)
    wide[:, 3:133] = logits
    before = wide.clone()
    assert torch.equal(sampling.sample(wide[:, 3:133], *rest)[0], sampling.sample(logits, *rest)[0])
    assert torch.equal(wide, before)


# --- the bitmask -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 64, 500, 2051])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_bitmask_forbids_what_the_reference_forbids_and_touches_nothing_else(
    rows: int, vocab_size: int
) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    words = torch.randint(
        -(2**31), 2**31, (rows, vocab_size // 32 + 3), generator=generator, dtype=torch.int32
    )
    words[:, ::3], words[:, 1::3] = -1, 0
    if rows:
        words[0, 0] = -(2**31)  # the sign bit is a token like any other
    wide = torch.randn(rows, vocab_size + 9, generator=generator)
    wide[:, 2] = torch.nan
    mask = words[:, : -(-vocab_size // 32)]
    expected = wide.clone()
    bitmask_reference.apply_token_bitmask(expected[:, 4 : 4 + vocab_size], mask)
    sampling.apply_token_bitmask(wide[:, 4 : 4 + vocab_size], mask)
    assert torch.equal(wide.view(torch.int32), expected.view(torch.int32))


# --- would the tests notice? -------------------------------------------------------------------------------

MUTATIONS = {
    "the end of a row is not looked at": (
        "for (int64_t token = 0; token < vocab_size; token += 4 * LANES)",
        "for (int64_t token = 0; token + 4 * LANES <= vocab_size; token += 4 * LANES)",
    ),
    "greedy takes a later one of equals": (
        "while (logits[token] != peak) token++;",
        "while (logits[token] != peak) token++;"
        "for (int64_t i = token; i < vocab_size; i++) token = logits[i] == peak ? i : token;",
    ),
    "temperature multiplies": ("- peak) / temperature;", "- peak) * temperature;"),
    "top_k keeps one more": ("floor, filters.top_k)", "floor, filters.top_k + 1)"),
    "top_k keeps one less": ("parts.weight >= target", "parts.weight > target"),
    "top_p of all tokens, not of the survivors": (
        "part_at<false>(row, floor).weight",
        "part_at<false>(row, -INFINITY).weight",
    ),
    "the floor itself is forbidden": ("(x >= floor) &", "(x > floor) &"),
    "tokens are left without noise too early": ("HIGHEST_NOISE = 23.0f", "HIGHEST_NOISE = 3.0f"),
    "a shift in the hash": ("bits >> 13", "bits >> 14"),
    "the halves of the key swapped": ("key[0], key[1])", "key[1], key[0])"),
    "the low bits of a small u are lost": ("-(natural_log(rest) + lost)", "-natural_log(rest)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", MUTATIONS)
def test_a_faulty_kernel_is_noticed(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = faulty("sampling.cpp", *MUTATIONS[fault], tmp_path)["sample"]
    mutant.argtypes = sampling._sample.argtypes
    monkeypatch.setattr(sampling, "_sample", mutant)
    with pytest.raises(AssertionError):
        for seed in range(3):
            assert_chooses_the_best(sampling.sample, inputs(seed, 300, 2051))
            assert_chooses_the_best(sampling.sample, inputs(seed, 300, 500, rounded=True))
        test_the_hash_is_the_references_bit_for_bit()
        test_the_noise_is_exact_to_two_millionths()
