"""Threads that share the work of a C++ kernel: more of them than cores, several callers, changing numbers."""

from __future__ import annotations

import subprocess
import sys
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


TOO_MANY = """
import resource
import torch
from kernels import ops

x, weight = torch.randn(64, 512), torch.ones(512)
torch.set_num_threads(1)
alone = ops.rms_norm(x, weight, 1e-5)
used = 1024 * int(next(line for line in open("/proc/self/status") if "VmSize" in line).split()[1])
resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20),) * 2)  # room for the stacks of a few threads
torch.set_num_threads(100)
found = [ops.rms_norm(x, weight, 1e-5) for _ in range(20)]
torch.set_num_threads(1)  # torch itself ends the process if it gets no threads
print(all(torch.equal(each, alone) for each in found))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_threads_that_the_system_refuses_are_done_without() -> None:
    command = [sys.executable, "-c", TOO_MANY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
