"""The oracle is worth something only if it notices mistakes: each mutant must be caught."""

from __future__ import annotations

import pytest

from tests.core.mutants import MUTATIONS, Mutation, load_core
from tests.core.shadow_kv import failure
from tests.core.workloads import Workload

WITHIN = 300
"""Workloads. The slowest mutant needs 295."""
TELLING = (0, 1, 2, 100, 34, 18, 10, 21, 41, 46, 55, 78, 131, 216, 256, 294)
"""Seeds that together catch every mutant. They come first, so that a mutant costs a few workloads."""


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_oracle_catches(mutation: Mutation) -> None:
    scheduler = load_core(mutation)
    tries = dict.fromkeys([*TELLING, *range(WITHIN)])
    assert any(failure(Workload.random(seed), scheduler) for seed in tries), (
        f"{mutation.name} survives {WITHIN} workloads"
    )


def test_an_unchanged_copy_of_the_core_survives() -> None:
    scheduler = load_core()
    assert not any(failure(Workload.random(seed), scheduler) for seed in range(30))
