"""Prompt lookup: what followed the last time the text ended like this.

    ... Silver Harbor costs 620 yen . ... | How much is Silver Harbor ? | Silver Harbor
                      `-----------.                                       `-----------'
                 drafts: costs 620 yen .         the longest known ending of the text, looked up in the text itself

It costs no model, and where answers repeat their context it is right most of the time.

Source: Saxena, "Prompt Lookup Decoding", 2023; vLLM v1/spec_decode/ngram_proposer.py. Both take the first place at
which the ending occurred, we the last, where the search from behind is done sooner; as many drafts are right.
"""

from __future__ import annotations

import numpy as np

from engine.core.sched_output import RequestInit
from engine.spec.base import DrafterContext, DraftStep

_ITEM_BYTES = 4


class NgramDrafter:
    """Looks the ending of every request up in its own tokens."""

    def __init__(self, context: DrafterContext) -> None:
        self.shortest = context.config.prompt_lookup_min
        self.longest = context.config.prompt_lookup_max

    def add_request(self, slot: int, init: RequestInit, start: int) -> None:
        pass

    def remove_request(self, slot: int) -> None:
        pass

    def propose(self, step: DraftStep) -> list[list[int]]:
        rows = zip(step.slots.tolist(), step.lengths.tolist(), step.max_drafts, strict=True)
        return [
            continuation(step.token_ids[slot, :length], self.shortest, self.longest, count) if count else []
            for slot, length, count in rows
        ]


def continuation(token_ids: np.ndarray, shortest: int, longest: int, count: int) -> list[int]:
    """Up to `count` tokens behind the last earlier occurrence of the longest ending that occurred before.

    token_ids: contiguous int32 [n]; endings of `longest` down to `shortest` tokens are tried.
    """
    text = token_ids.tobytes()  # bytes.rfind is the fastest search for a sequence that Python has
    for size in range(min(longest, len(token_ids) - 1), shortest - 1, -1):
        place = _last_place(text, size)
        if place >= 0:
            return token_ids[place + size : place + size + count].tolist()
    return []


def _last_place(text: bytes, size: int) -> int:
    """Where the last `size` tokens occurred last before their own place, as a token index; -1 if nowhere."""
    ending = text[-size * _ITEM_BYTES :]
    at = text.rfind(ending, 0, len(text) - _ITEM_BYTES)
    while at > 0 and at % _ITEM_BYTES:  # found across the borders of tokens
        at = text.rfind(ending, 0, at + len(ending) - 1)
    return -1 if at < 0 else at // _ITEM_BYTES
