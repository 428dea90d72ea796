"""Sampling without a sort, interpreted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.reference.sampling import sample as reference
from kernels.triton_ops import sampling
from tests.kernels.triton.mutants import faulty

FAULTS = {
    "another shift in the hash": ("bits >> 13", "bits >> 14"),
    "the second half of the key is forgotten": (") + second) *", ")) *"),
    "a ceiling keeps one token more": ("tl.sum(reached, 0) >= target", "tl.sum(reached, 0) > target"),
    "the ceiling itself is out": ("(bits <= ceiling) & (score", "(bits < ceiling) & (score"),
    "top_p counts tokens": ("if MASS else 1.0", "if not MASS else 1.0"),
    "top_p of all tokens instead of those that top_k keeps": ("top_p * mass, True", "top_p, True"),
    "min_p without its logarithm": ("0.0 - tl.log(tl.load(min_ps + index))", "0.0 - tl.load(min_ps + index)"),
    "the last of equals": (
        "tl.min(tl.where(best == peak, best_id, vocab_size)",
        "tl.max(tl.where(best == peak, best_id, 0)",
    ),
}


def rows(logits: torch.Tensor, **settings: list[float]) -> tuple[torch.Tensor, ...]:
    """Arguments of `sample`, everything off that is not given."""
    number, vocab_size = logits.shape
    off = {"temperature": 1.0, "top_k": vocab_size, "top_p": 1.0, "min_p": 0.0}
    columns = [torch.tensor(settings.get(name, [value] * number)) for name, value in off.items()]
    columns[1] = columns[1].int()
    generator = torch.Generator().manual_seed(0)
    return logits, *columns, torch.randint(-(2**31), 2**31, (number, 2), generator=generator).int()


def test_rows_without_a_number_at_their_peak_end_and_leave_the_others_alone() -> None:
    """Three rows that a search could spin on, between two ordinary ones."""
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    logits[1] = float("nan")
    logits[2] = float("-inf")
    logits[3, 7] = float("inf")
    args = rows(logits, top_p=[0.5] * 5, top_k=[4] * 5)
    token_ids, peaks = sampling.sample(*args)
    assert ((token_ids >= 0) & (token_ids < 40)).all()
    assert peaks[1].isnan() and peaks[2] == float("-inf") and peaks[3] == float("inf")
    assert token_ids[[0, 4]].tolist() == reference(*args)[0][[0, 4]].tolist()


@pytest.mark.parametrize("temperature", [1e-6, 1e-3, 1.0, 1e3, 1e30])
def test_the_histogram_s_bins_may_miss_every_depth_without_a_wrong_token(temperature: float) -> None:
    """At 1e-6 all depths but one lie beyond the last bin, at 1e30 all within the first."""
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(2))
    args = rows(logits, temperature=[temperature] * 2, top_k=[3, 50], top_p=[1.0, 0.6])
    assert sampling.sample(*args)[0].tolist() == reference(*args)[0].tolist()


def test_a_program_takes_several_rows_and_a_row_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(5, 150, generator=torch.Generator().manual_seed(3))
    args = rows(logits, top_k=[150, 40, 5, 150, 100], top_p=[0.9, 0.5, 1.0, 0.99, 0.8])
    monkeypatch.setattr(sampling, "MAX_PROGRAMS", 2)
    monkeypatch.setattr(sampling, "MAX_BLOCK", 64)
    assert sampling.sample(*args)[0].tolist() == reference(*args)[0].tolist()


def wrong_rows(function: Callable[..., Any]) -> list[int]:
    """Rows that differ from the reference. Depths are so small that one bin holds them all: bisection alone decides."""
    logits = torch.randn(24, 30, generator=torch.Generator().manual_seed(4)) / 2000
    logits[20:] = 1.0
    args = rows(
        logits,
        temperature=[1.0] * 20 + [0.0] * 4,
        top_k=[1, 2, 3, 4, 5] + [30] * 10 + [4] * 9,
        top_p=[1.0] * 5 + [0.05, 0.1, 0.15, 0.2, 0.25] + [1.0] * 5 + [0.4, 0.5, 0.6, 0.7, 0.8] + [1.0] * 4,
        min_p=[0.0] * 10 + [0.9999, 0.9998, 0.9996, 0.9994, 0.999] + [0.0] * 9,
    )
    return (function(*args)[0] != reference(*args)[0]).nonzero().flatten().tolist()


def test_where_the_histogram_says_nothing_bisection_ends_at_the_very_token() -> None:
    assert wrong_rows(sampling.sample) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault: str, tmp_path: Path) -> None:
    assert wrong_rows(faulty("sample", "sampling.py", *FAULTS[fault], tmp_path))
