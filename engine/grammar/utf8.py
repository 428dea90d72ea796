"""UTF-8 encodings of ranges of characters."""

from __future__ import annotations

from collections.abc import Iterator

Chain = tuple[tuple[int, int], ...]
"""First and last of each byte."""


def utf8_chains(first: int, last: int) -> Iterator[Chain]:
    """Return the UTF-8 encodings of a range of code points, as chains of byte ranges.

        U+00E9 .. U+07FF    [C3][A9-BF]   [C4-DF][80-BF]

    Surrogates (U+D800 to U+DFFF) have no encoding and are left out. Source: the Rust crate utf8-ranges.
    """
    for border in (0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF):
        if first <= border < last:
            yield from utf8_chains(first, border)
            yield from utf8_chains(border + 1, last)
            return
    if 0xD800 <= first <= 0xDFFF:
        return
    # All encodings have one length now. Where the last bytes do not run over their whole range, split.
    for shift in (6, 12, 18):
        below = (1 << shift) - 1
        if first >> shift == last >> shift or last <= 0x7F:
            continue
        if first & below:
            yield from utf8_chains(first, first | below)
            yield from utf8_chains((first | below) + 1, last)
            return
        if last & below != below:
            yield from utf8_chains(first, (last & ~below) - 1)
            yield from utf8_chains(last & ~below, last)
            return
    yield tuple(zip(chr(first).encode(), chr(last).encode(), strict=True))
