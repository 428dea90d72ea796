"""Number of drafts of each request: constant, adapted to its acceptance, or none in a large batch."""

from __future__ import annotations

import numpy as np
import pytest

from engine.config.features import SpeculativeConfig
from engine.spec.base import DraftLengths

SLOTS = np.arange(2)


def lengths(num_slots: int = 2, **settings: object) -> DraftLengths:
    config = {"method": "ngram", "num_speculative_tokens": 4, **settings}
    return DraftLengths(SpeculativeConfig(**config), num_slots)


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_a_step_of_the_limit_gets_drafts_and_one_of_a_request_more_gets_none(limit: int) -> None:
    made = lengths(num_slots=9, disable_by_batch_size=limit)
    assert made.wanted(SLOTS, limit) == [4, 4]
    assert made.wanted(SLOTS, limit + 1) == [0, 0]


def test_without_a_limit_every_slot_may_be_in_the_batch() -> None:
    assert lengths(num_slots=3).wanted(SLOTS, 3) == [4, 4]


def test_a_full_success_adds_two_drafts_up_to_the_maximum_and_a_failure_takes_one_down_to_one() -> None:
    made = lengths(adaptive=True)
    seen = []
    for accepted in (1, 0, 0, 0, 1, 1):
        made.observe(1, num_drafts=1, num_accepted=accepted)
        seen.append(made.wanted(SLOTS, 2)[1])
    assert seen == [4, 3, 2, 1, 3, 4]
    assert made.wanted(SLOTS, 2)[0] == 4, "the other slot"
    made.observe(1, num_drafts=4, num_accepted=3)
    made.reset(1)
    assert made.wanted(SLOTS, 2) == [4, 4]
