"""Threads that share the work of a C++ kernel: more of them than cores, several callers, changing numbers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kernels import ops
from tests.kernels.cpu_mutants import threads


@pytest.fixture(scope="module")
def work() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(512, 2048, generator=generator)
    return x, torch.ones(2048)


@pytest.fixture(scope="module")
def alone(work: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    with threads(1):
        return ops.rms_norm(*work, 1e-5)


@pytest.mark.parametrize("count", (2, 3, 16, 5, 40))
def test_a_helper_without_a_core_changes_nothing(
    work: tuple[torch.Tensor, torch.Tensor], alone: torch.Tensor, count: int
) -> None:
    with threads(count):
        for _ in range(200):
            assert torch.equal(ops.rms_norm(*work, 1e-5), alone)


def test_kernels_called_at_the_same_time_do_not_mix_their_pieces(
    work: tuple[torch.Tensor, torch.Tensor], alone: torch.Tensor
) -> None:
    def many(_: int) -> bool:
        torch.set_num_threads(3)
        return all(torch.equal(ops.rms_norm(*work, 1e-5), alone) for _ in range(100))

    with threads(3), ThreadPoolExecutor(4) as callers:
        assert all(callers.map(many, range(4)))
