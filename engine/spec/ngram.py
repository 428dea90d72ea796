"""Prompt lookup: draft the tokens that followed the last occurrence of the text's ending.

    ... Silver Harbor costs 620 yen . ... | How much is Silver Harbor ? | Silver Harbor
                      `-----------.                                       `-----------'
                 drafts: costs 620 yen .         the longest ending that occurred before in the text

It needs no model, and is mostly right where answers repeat their context.

Source: Saxena, "Prompt Lookup Decoding", 2023; vLLM v1/spec_decode/ngram_proposer.py. Both take the first occurrence;
we take the last, which a backward search finds sooner, with as many accepted drafts.
"""

from __future__ import annotations

import numpy as np

from engine.core.sched_output import RequestInit
from engine.spec.base import DrafterContext, DraftStep

_ITEM_BYTES = 4


class NgramDrafter:
    """Look up the ending of every request in its own tokens."""

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
    """Return up to `count` tokens after the last earlier occurrence of the longest ending that occurred before.

    token_ids: contiguous int32 [n]; endings of `longest` down to `shortest` tokens are tried.
    """
    text = token_ids.tobytes()  # bytes.rfind is Python's fastest search for a sequence
    for size in range(min(longest, len(token_ids) - 1), shortest - 1, -1):
        place = _last_place(text, size)
        if place >= 0:
            return token_ids[place + size : place + size + count].tolist()
    return []


def _last_place(text: bytes, size: int) -> int:
    """Return the index of the last earlier occurrence of the last `size` tokens; -1 if there is none."""
    ending = text[-size * _ITEM_BYTES :]
    at = text.rfind(ending, 0, len(text) - _ITEM_BYTES)
    while at > 0 and at % _ITEM_BYTES:  # not aligned to tokens
        at = text.rfind(ending, 0, at + len(ending) - 1)
    return -1 if at < 0 else at // _ITEM_BYTES
