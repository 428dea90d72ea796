"""Units of questions and answers.

A unit is a factor and a kind: 1 GiB is 2**30 of kind "bytes", 1 tok/s is 1 of kind "tokens/time". Units of one kind
convert into each other; decimal and binary prefixes differ (GB = 10**9 bytes, GiB = 2**30). A word outside the table
is its own kind, so that a question can ask for "3 GPUs" without an entry for GPUs.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

BITS = Fraction(1, 8)
ONE = Fraction(1)
DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
NAMED = {"kilo": 10**3, "mega": 10**6, "giga": 10**9, "tera": 10**12, "peta": 10**15}
NAMED |= {"kibi": 2**10, "mebi": 2**20, "gibi": 2**30, "tebi": 2**40}
LOWER = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def _prefixed(spellings: str, prefixes: dict[str, int], size: Fraction = ONE) -> dict[str, Fraction]:
    """Return every prefix before every spelling: GB, Gbytes ..."""
    return {
        f"{prefix}{spelling}": factor * size
        for prefix, factor in prefixes.items()
        for spelling in spellings.split()
    }


def _spelled(factors: dict[str, int | Fraction]) -> dict[str, Fraction]:
    """Return the factor of every spelling, given all spellings of a factor in one text."""
    return {
        spelling: Fraction(factor) for spellings, factor in factors.items() for spelling in spellings.split()
    }


KINDS: dict[str, dict[str, Fraction]] = {
    "bytes": {
        **_prefixed("B byte bytes", {**DECIMAL, **BINARY}),
        **_prefixed("bit bits", DECIMAL, BITS),
        **_prefixed("byte", NAMED),
        **_prefixed("bit", NAMED, BITS),
        **_prefixed("b", LOWER),
    },
    "time": {
        **_spelled(
            {
                "ns nsec nanosecond": Fraction(1, 10**9),
                "us μs usec microsecond": Fraction(1, 10**6),
                "ms msec millisecond": Fraction(1, 1000),
            }
        ),
        **_spelled(
            {"s sec second": 1, "min minute": 60, "h hr hour": 3600, "day": 86400, "month": 30 * 86400}
        ),
    },
    "tokens": {**_prefixed("tok token", DECIMAL), **_prefixed("token", NAMED)},
    "requests": _spelled({"req request": 1}),
    "FLOP": {**_prefixed("FLOP flop", DECIMAL), **_prefixed("flop", NAMED)},
    "share": _spelled({"share fraction": 1, "% percent pct": Fraction(1, 100)}),
    "ratio": _spelled({"x × times time fold": 1}),
    "dollars": _spelled({"$ USD dollar": 1, "cent": Fraction(1, 100), "k$": 1000}),
}
SHORT = {"tps": "tok/s", "rps": "req/s", "qps": "req/s", "Gbps": "Gbit/s", "Mbps": "Mbit/s"}
SHORT |= {"GBps": "GB/s", "TBps": "TB/s"}
"""Abbreviations of rates."""
SYNONYMS = {"iteration": "step"}
"""Words for the same thing, by stem."""

SIGNED = ("point", "degree")
"""Ends of words, by stem, for what may be negative: percentage points, degrees."""
EXAMPLES = {
    "bytes": "B, kB, KiB, MB, MiB, GB, GiB, TB, TiB, bits",
    "time": "ns, us, ms, s, min, h",
    "tokens": "tokens, ktok, Mtok",
    "requests": "requests",
    "FLOP": "FLOP, GFLOP, TFLOP, PFLOP",
    "share": "% or share (63 % is 0.63)",
    "ratio": "x",
    "dollars": "$",
}
SUFFIXES = {"k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}
SUFFIXES |= {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
"""Suffixes of counts."""

WHOLE_UNIT = re.compile(r"FLOPS$")
DENOMINATOR = re.compile(r"(\d+)?\s*(thousand|million|billion|[kKMGB](?=\s+\w))?\s*(.*)")


@dataclass(frozen=True)
class Unit:
    """A unit: `factor` times the base of its kind."""

    text: str
    kind: str
    factor: Fraction

    @property
    def is_binary(self) -> bool:
        top = self.text.lower().split("/")[0]
        return re.match(r"[kmgtp]i(?!l)|[kmgt](?:i|e)bi", top) is not None

    @property
    def is_count(self) -> bool:
        """Return whether it counts things, which cannot be fewer than 0: a word, not a symbol such as °C or dB."""
        if self.kind in KINDS:
            return self.kind in ("tokens", "requests")
        return re.fullmatch("[a-z][a-z -]{2,}", self.kind) is not None and not self.kind.endswith(SIGNED)

    def accepted(self) -> str:
        """Return units of the same kind, for a message."""
        top, _, bottom = self.kind.partition("/")
        words = EXAMPLES.get(top, self.text.split("/")[0])
        return f"{words}, each per {EXAMPLES.get(bottom, bottom)}" if bottom else words


def unit(text: str, near: Unit | None = None) -> Unit | None:
    """Return the unit of that spelling, or None if it is unknown.

    near: the expected unit. Spellings of its kind are preferred, and its own word is known even without an entry in
    the table.
    """
    cleaned = " ".join(text.split())
    cleaned = SHORT.get(cleaned, cleaned)
    if WHOLE_UNIT.search(cleaned):  # TFLOPS is a rate
        cleaned = f"{cleaned[:-1]}/s"
    cleaned = re.sub(r"(?i)\bper\s+cent\b", "percent", cleaned)
    cleaned = re.sub(r"\s*(?:/|\bper\b|\s(?:a|an|each)\s)\s*", "/", cleaned)
    top, slash, bottom = cleaned.partition("/")
    near_top, _, near_bottom = (near.kind if near else "").partition("/")
    upper = _simple(top, near_top)
    if upper is None or not slash:
        return None if upper is None else Unit(text, *upper)
    match = DENOMINATOR.fullmatch(bottom)
    lower = _simple(match[3], near_bottom) if match else None
    if match is None or lower is None:
        return None
    per = Fraction(match[1] or 1) * SUFFIXES.get(match[2] or "", 1) * lower[1]
    return Unit(text, f"{upper[0]}/{lower[0]}", upper[1] / per) if per else None


def expected_unit(text: str) -> Unit:
    """Return the unit that a question names; a word outside the table is its own kind."""
    text = re.sub(r"^(?:million|M) (?=\w)", "M", text.strip())
    top, slash, bottom = text.partition("/")
    known = unit(text, Unit(text, "/".join(filter(None, (_stem(top), _stem(bottom)))), ONE))
    return known or Unit(text, _stem(text), ONE)


def _simple(word: str, near: str) -> tuple[str, Fraction] | None:
    """Return (kind, factor) of a unit without a slash."""
    word = word.strip()
    lowered = word.lower()
    exact = [word, word.removesuffix("s") if len(word) > 2 else word]
    # Sec, Tokens, PERCENT; short prefixes are case-sensitive: mB is unknown, Mb ambiguous
    any_case = [spelling for spelling in (lowered, lowered.removesuffix("s")) if len(spelling) > 2]
    for spellings in (exact, any_case):
        for kind in sorted(KINDS, key=lambda kind: kind != near):
            for spelling in spellings:
                if spelling in KINDS[kind]:
                    return kind, KINDS[kind][spelling]
    if near and word and _stem(word) == near:
        return near, ONE
    return None


def _stem(word: str) -> str:
    """Return the same stem for Steps, step and STEP."""
    lowered = " ".join(word.lower().split())
    stem = lowered.removesuffix("s") if len(lowered) > 3 else lowered
    return SYNONYMS.get(stem, stem)
