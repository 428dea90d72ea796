"""A vocabulary with everything that is awkward: split characters, doubles, padding, special tokens."""

from __future__ import annotations

import numpy as np

from engine.core.grammar_protocol import Grammar
from engine.grammar.vocabulary import Vocabulary

EOS = 3
WORDS = (
    ["", "", "", ""]  # ids 0 to 3 are special: they say nothing
    + [chr(byte) for byte in range(32, 127)]
    + [
        "\n",
        "\t",
        "true",
        "false",
        "null",
        '"a"',
        '"a":',
        '": ',
        ", ",
        "{}",
        "[]",
        "12",
        "0.5",
        "ab",
        "abc",
        "ab",
        "é東",
    ]
)
BYTES = [word.encode() for word in WORDS] + [
    b"\xe6",
    b"\x9d",
    b"\xb1",
    b"\xb1a",
    b"\xc3",
    b"\xa9",
    b"\xf0\x9f",
    b"\x98\x80",
]
VOCABULARY = Vocabulary([*BYTES, b"", b"", b""], frozenset({EOS}))  # the last three are padding


def allowed(grammar: Grammar, vocabulary: Vocabulary = VOCABULARY) -> set[int]:
    """The tokens that a mask allows; fails if a bit past the vocabulary is set or left as it was."""
    words = np.full(vocabulary.num_words, 0x5A5A5A5A, np.int32)
    grammar.fill_bitmask(words)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    assert not bits[len(vocabulary) :].any(), "a bit past the vocabulary is set"
    return set(np.flatnonzero(bits).tolist())


def said(token_ids: list[int], vocabulary: Vocabulary = VOCABULARY) -> bytes:
    return b"".join(vocabulary.token_bytes[token_id] for token_id in token_ids)
