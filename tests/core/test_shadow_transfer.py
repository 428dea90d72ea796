"""Random workloads over a network that delays, drops, cuts and reorders. See shadow_transfer.py."""

from __future__ import annotations

import pytest

from tests.core.mutants import TRANSFER_MUTATIONS, Mutation, load_core
from tests.core.shadow_transfer import TransferSimulation, failure_with_network, transfer_workload
from tests.seeds import seeds

CHUNK = 250
"""Workloads of one test: enough to reach every corner."""
WITHIN = 250
"""Workloads in which every mutant must be caught."""


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(CHUNK, 5 * CHUNK, CHUNK))]
)
def test_whatever_the_network_does_each_request_gives_what_it_gives_alone(first: int) -> None:
    loads = short = sends = waits = preempted = aborted = 0
    for seed in seeds(CHUNK, first):
        simulation = TransferSimulation(transfer_workload(seed))
        try:
            summary = simulation.run()
        except Exception as error:
            pytest.fail(f"transfer_workload({seed}) breaks the core: {error}", pytrace=False)
        loads += simulation.network.num_loads
        short += simulation.network.num_short_loads
        sends += simulation.network.num_sends
        waits += summary.reasons["kv_transfer"]
        preempted += summary.preemptions
        aborted += summary.aborted
    assert min(loads, short, loads - short, sends, waits, preempted, aborted) > 50


@pytest.mark.parametrize("mutation", TRANSFER_MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_network_catches(mutation: Mutation) -> None:
    scheduler = load_core(mutation)
    assert any(failure_with_network(transfer_workload(seed), scheduler) for seed in range(WITHIN)), (
        f"{mutation.name} survives {WITHIN} workloads"
    )


def test_an_unchanged_copy_of_the_core_survives() -> None:
    scheduler = load_core()
    assert not any(failure_with_network(transfer_workload(seed), scheduler) for seed in range(30))
