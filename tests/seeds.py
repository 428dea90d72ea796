"""Seeds of randomised tests: the same in every run, or fresh ones that can be replayed.

A test of a claim about every input takes `seeds(count)`. A plain run repeats 0, 1, 2, ...; `prep test --all` sets
PREP_TEST_SEED to a number that it prints, and with it every such test gets seeds that belong to no other number.
A test whose bar some inputs would miss, such as a mutant that must be caught, keeps `range(count)`.
"""

from __future__ import annotations

import os

SEED = int(os.environ.get("PREP_TEST_SEED") or 0)
"""From 0. Up to 40,000 every seed fits into 32 bits."""
SEEDS_OF_A_RUN = 100_000


def seeds(count: int, first: int = 0) -> range:
    """Return `count` seeds of this run, from the one with index `first`."""
    start = SEED * SEEDS_OF_A_RUN + first
    return range(start, start + count)
