"""The oracle is worth something only if it notices mistakes: each mutant must be caught."""

from __future__ import annotations

import pytest

from tests.core.mutants import MUTATIONS, Mutation, load_core
from tests.core.shadow_kv import failure
from tests.core.workloads import Workload

WITHIN = 300
"""Workloads. The slowest mutant needs about 220."""


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_oracle_catches(mutation: Mutation) -> None:
    scheduler = load_core(mutation)
    assert any(failure(Workload.random(seed), scheduler) for seed in range(WITHIN)), (
        f"{mutation.name} survives {WITHIN} workloads"
    )


def test_an_unchanged_copy_of_the_core_survives() -> None:
    scheduler = load_core()
    assert not any(failure(Workload.random(seed), scheduler) for seed in range(30))
