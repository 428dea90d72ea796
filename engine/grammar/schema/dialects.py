r"""Dialects of `pattern`.

Validators differ: \s has Unicode spaces in ECMAScript and Python, but not the same ones; \d and \w are ASCII in
ECMAScript only. NARROW keeps to what all of them match, WIDE to what any of them matches, for patterns under `not`.
"""

from __future__ import annotations

from engine.grammar.regex import ASCII, Dialect, complement, literal, merged, optional

_COMMON_SPACES = merged(
    [(9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)]
    + [(0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)]
)
_ALL_SPACES = merged([*_COMMON_SPACES, (0x1C, 0x1F), (0x85, 0x85), (0xFEFF, 0xFEFF)])
_BEYOND_ASCII = (0x80, 0x10FFFF)
_DIGITS, _WORD = ASCII.classes["d"], ASCII.classes["w"]
_WIDE_DIGITS, _WIDE_WORD = merged([*_DIGITS, _BEYOND_ASCII]), merged([*_WORD, _BEYOND_ASCII])
_NARROW = {"d": _DIGITS, "w": _WORD, "s": _COMMON_SPACES}
_WIDE = {"d": _WIDE_DIGITS, "w": _WIDE_WORD, "s": _ALL_SPACES}
_ALL_NARROW = _NARROW | {name.upper(): complement(ranges) for name, ranges in _WIDE.items()}
_ALL_WIDE = _WIDE | {name.upper(): complement(ranges) for name, ranges in _NARROW.items()}
_LINE_ENDS = merged([(10, 10), (13, 13), (0x2028, 0x2029)])
NARROW = Dialect(_ALL_NARROW, _ALL_WIDE, complement(_LINE_ENDS))
WIDE = Dialect(_ALL_WIDE, _ALL_NARROW, complement(((10, 10),)), optional(literal("\n")))
