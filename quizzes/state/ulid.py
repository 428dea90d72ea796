"""Unique keys that sort by creation time: 48 bits of milliseconds and 80 random bits, in base 32.

Source: the ULID specification, https://github.com/ulid/spec.
"""

from __future__ import annotations

import os
import time

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
LENGTH = 26
_RANDOM_BITS = 80
_last = 0


def new_id(milliseconds: int | None = None) -> str:
    """Return a key for the current time. Later calls in the same process return greater keys."""
    global _last
    now = time.time_ns() // 1_000_000 if milliseconds is None else milliseconds
    number = (now << _RANDOM_BITS) | int.from_bytes(os.urandom(10), "big")
    if milliseconds is None:
        number = max(number, _last + 1)  # the same millisecond, or a clock that was set back
        _last = number
    return _encode(number)


def is_id(text: object) -> bool:
    return isinstance(text, str) and len(text) == LENGTH and set(text) <= set(ALPHABET)


def _encode(number: int) -> str:
    digits = []
    for _ in range(LENGTH):
        number, digit = divmod(number, 32)
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))
