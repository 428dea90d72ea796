"""Check what a rendered text says with numbers: products and sums, and words that compare two figures.

    "2 x 8 x 128 x 2 = 4,096"           the arithmetic must hold, up to the rounding of the shown figures
    "311 steps instead of 420"          the two figures must differ, or the sentence says nothing
    "falls from 12.5 to 3.1 ms"         the direction must be right; so must "grows from ... to ..."

Comparisons that these forms do not cover are expressions in the question's `holds`; `needs_statement` finds texts that
compare computed figures in prose without one.
"""

import re
from collections.abc import Iterator

_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_UNIT = r"(?: ?(?!x )[A-Za-z%]+)?(?:/[A-Za-z]+)?"
_OPERATOR = r"\s*[x\u00d7*/+\-\u2212]\s*"
_EQUATION = re.compile(
    rf"(?P<left>(?:(?:{_NUMBER}){_UNIT}{_OPERATOR})+(?:{_NUMBER}){_UNIT})\s*=\s*(?P<right>{_NUMBER})\b"
)
_OPEN = re.compile(r"(?:[x\u00d7*/+\-\u2212^(=,.$]|\d)\s*$")
"""Text before a part of a longer formula, which is not evaluated."""
_DIFFER = re.compile(
    rf"(?P<one>{_NUMBER})(?: [^\W\d]+){{0,3}} (?:instead of|rather than) (?P<other>{_NUMBER})\b(?!\s*[x\u00d7*/+])"
)
_MOVES = re.compile(
    r"\b(?P<verb>falls?|drops?|shrinks?|grows?|rises?|increases?)"
    rf" from (?P<one>{_NUMBER})(?: [^\W\d]+)? to (?P<other>{_NUMBER})\b"
)
_DOWN = ("fall", "drop", "shrink")
_FACTORS = (1.0, 100.0, 1e3, 1e6, 1e9, 1e12, 1024.0, 1024.0**2, 1024.0**3)
"""Factors between a formula and a result in another unit: percent, prefixes."""
_FIGURE = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_COMPARES = re.compile(
    r"\b(?:more|less|fewer|larger|smaller|longer|shorter|higher|lower|faster|slower|at most|at least|than|instead of"
    r"|exceeds?|above|below|beats?|cheaper|better|worse)\b"
)
_SENTENCE = re.compile(r"(?<=[.:;!?])\s+")


def false_statements(text: str) -> Iterator[str]:
    """Yield the statements of a rendered text that its own figures contradict."""
    text = " ".join(text.split())
    for match in _EQUATION.finditer(text):
        if not _OPEN.search(text[: match.start()]) and not _holds(match["left"], match["right"]):
            yield f"{match[0]!r} does not hold"
    for match in _DIFFER.finditer(text):
        if _value(match["one"]) == _value(match["other"]):
            yield f"{match[0]!r} compares equal figures"
    for match in _MOVES.finditer(text):
        change = _value(match["other"]) - _value(match["one"])
        if change == 0 or (change < 0) != match["verb"].startswith(_DOWN):
            yield f"{match[0]!r} goes the other way"


def needs_statement(template: str) -> str:
    """Return the first sentence of a template that compares a computed figure in words; "" if there is none."""
    marked = _FIGURE.sub("\N{REPLACEMENT CHARACTER}", " ".join(template.split()))
    sentences = (sentence for sentence in _SENTENCE.split(marked) if "\N{REPLACEMENT CHARACTER}" in sentence)
    return next(
        (
            sentence.replace("\N{REPLACEMENT CHARACTER}", "…")
            for sentence in sentences
            if _COMPARES.search(sentence)
        ),
        "",
    )


def _holds(left: str, right: str) -> bool:
    """Return whether a formula gives its result, if each shown figure may be off by half of its last digit."""
    in_shares = re.sub(rf"({_NUMBER}) ?%", r"\1 / 100", left)
    lows, highs = _bounds(re.sub(rf"({_NUMBER}){_UNIT}", r"\1", in_shares))
    near = _half(right) if "." in right else 0.5
    return any(
        lows / factor <= _value(right) + near and highs / factor >= _value(right) - near
        for size in _FACTORS
        for factor in (size, 1 / size)
    )


def _bounds(formula: str) -> tuple[float, float]:
    """Return the least and the greatest value of a formula of rounded figures: products first, then sums."""
    terms = re.split(r"\s*([+\-\u2212])\s*", formula)
    low = high = 0.0
    for sign, term in zip(["+", *terms[1::2]], terms[::2], strict=True):
        least, most = _product(term)
        low, high = (low + least, high + most) if sign == "+" else (low - most, high - least)
    return low, high


def _product(term: str) -> tuple[float, float]:
    parts = re.split(r"\s*([x\u00d7*/])\s*", term)
    low, high = _value(parts[0]) - _half(parts[0]), _value(parts[0]) + _half(parts[0])
    for operator, figure in zip(parts[1::2], parts[2::2], strict=True):
        least, most = _value(figure) - _half(figure), _value(figure) + _half(figure)
        low, high = (
            (low * least, high * most)
            if operator != "/"
            else (low / most, high / least if least > 0 else float("inf"))
        )
    return low, high


def _value(figure: str) -> float:
    return float(figure.replace(",", ""))


def _half(figure: str) -> float:
    """Return half of the last shown digit; 0 for a whole number in a formula, which counts something."""
    _, point, digits = figure.partition(".")
    return 0.5 * 10.0 ** -len(digits) * (1 + 1e-9) if point else 1e-9
