"""Judging drafts: the distribution of what is said is the target's, whatever the drafts are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.sample.draft_acceptance import DRAFT_NOISE, RejectionVerifier, num_agreeing, target_probabilities
from engine.sample.processors import SampleBatch
from engine.sample.sampler import Sampler
from engine.sampling_params import SamplingParams
from tests.sample.harness import Row

VOCAB, TRIALS = 12, 6000
CHI2_999 = {11: 31.26, 10: 29.59, 8: 26.12, 5: 20.52, 4: 18.47, 3: 16.27}
"""The value that chi-square with so many degrees of freedom exceeds once in a thousand times."""


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> tuple[float, int]:
    possible = probabilities > 0
    assert counts[~possible].sum() == 0, "a token was said that the filters had ruled out"
    expected = probabilities[possible] * counts.sum()
    return float(((counts[possible] - expected) ** 2 / expected).sum()), int(possible.sum()) - 1


def judge(
    target: Tensor, drafted: Tensor, params: SamplingParams, *, greedy_drafts: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Two positions and one draft, in TRIALS requests: the token said first, and whether it was the draft.

    target, drafted: logits fp32 [V] of the target and of the drafter.
    """
    sampler = Sampler(VOCAB, TRIALS)
    for slot in range(TRIALS):
        sampler.add_request(slot, Row(params, seed=slot * 7919 + 1).init)
    slots = np.arange(TRIALS)
    plan = sampler.plan(slots)
    proposal = target_probabilities(drafted.expand(TRIALS, VOCAB), plan)
    if greedy_drafts:
        drafts, verifier = torch.full((TRIALS,), int(drafted.argmax())), RejectionVerifier()
    else:
        drafts = sampler.draft(drafted.repeat(TRIALS, 1), slots, np.full(TRIALS, 1), DRAFT_NOISE)
        verifier = RejectionVerifier(lambda slot: proposal[slot : slot + 1])
    table = np.zeros((TRIALS, 4), np.int32)
    table[:, 1] = drafts.numpy()
    batch = SampleBatch(
        slots=np.repeat(slots, 2),
        lengths=np.tile([1, 2], TRIALS),
        num_prompt_tokens=np.ones(2 * TRIALS, np.int64),
        token_ids=table,
        num_drafts=np.tile([0, 1], TRIALS),
    )
    chosen = sampler(target.repeat(2 * TRIALS, 1), batch, verifier=verifier).token_ids[::2]
    return chosen, chosen == table[:, 1]


@pytest.mark.parametrize("greedy_drafts", [False, True], ids=["drawn", "certain"])
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0},
        {"temperature": 0.6},
        {"temperature": 1.3, "top_k": 6},
        {"temperature": 1.0, "top_p": 0.8},
    ],
    ids=str,
)
@pytest.mark.parametrize("distance", [0.0, 0.5, 2.0])
def test_rejection_keeps_the_targets_distribution(
    settings: dict[str, float], greedy_drafts: bool, distance: float
) -> None:
    rng = torch.Generator().manual_seed(3)
    target = 1.5 * torch.randn(VOCAB, generator=rng)
    drafted = target + distance * torch.randn(VOCAB, generator=rng)
    params = SamplingParams(**settings)
    chosen, _ = judge(target, drafted, params, greedy_drafts=greedy_drafts)
    one = Sampler(VOCAB, 1)
    one.add_request(0, Row(params).init)
    probabilities = target_probabilities(target[None], one.plan(np.array([0])))[0].double().numpy()
    value, freedom = chi_square(np.bincount(chosen, minlength=VOCAB), probabilities)
    limit = CHI2_999.get(freedom, freedom + 4.5 * (2 * freedom) ** 0.5)
    assert value < limit, f"chi-square {value:.1f} with {freedom} degrees of freedom, limit {limit:.1f}"


def test_rejection_accepts_as_often_as_the_distributions_overlap() -> None:
    """Sum of min(p, q): no scheme accepts more (Leviathan et al. 2023, theorem 3.5)."""
    rng = torch.Generator().manual_seed(5)
    target, drafted = torch.randn(VOCAB, generator=rng), torch.randn(VOCAB, generator=rng)
    _, accepted = judge(target, drafted, SamplingParams(temperature=1.0))
    overlap = torch.minimum(target.softmax(-1), drafted.softmax(-1)).sum().item()
    assert abs(accepted.mean() - overlap) < 4 * (overlap * (1 - overlap) / TRIALS) ** 0.5


def test_a_verifier_that_always_accepts_fails_the_chi_square() -> None:
    """The test above can fail."""
    rng = torch.Generator().manual_seed(5)
    target, drafted = torch.randn(VOCAB, generator=rng), torch.randn(VOCAB, generator=rng)
    sampler = Sampler(VOCAB, TRIALS)
    for slot in range(TRIALS):
        sampler.add_request(slot, Row(SamplingParams(temperature=1.0), seed=slot).init)
    drafts = sampler.draft(drafted.repeat(TRIALS, 1), np.arange(TRIALS), np.full(TRIALS, 1), DRAFT_NOISE)
    value, freedom = chi_square(np.bincount(drafts, minlength=VOCAB), target.softmax(-1).double().numpy())
    assert value > 3 * CHI2_999[freedom]


def test_a_greedy_row_accepts_its_best_token_and_nothing_else() -> None:
    target = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1))
    params = SamplingParams(temperature=0)
    chosen, accepted = judge(target, target, params)
    assert accepted.all() and (chosen == int(target.argmax())).all()
    chosen, accepted = judge(target, -target, params)
    assert not accepted.any() and (chosen == int(target.argmax())).all()


@pytest.mark.parametrize(
    ("chosen", "drafts", "kept"),
    [([5], [], 0), ([5, 6, 7], [5, 6], 2), ([5, 6, 7], [5, 9], 1), ([5, 6, 7], [9, 6], 0)],
)
def test_drafts_stay_up_to_the_first_that_is_wrong(chosen: list[int], drafts: list[int], kept: int) -> None:
    assert num_agreeing(chosen, drafts) == kept
