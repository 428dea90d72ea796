"""Parse a typed reply into a value of the answer's type and the question's unit.

    "1,536"  "1_536"  "1 536"  "1.5k"  "3/4"  "38*32"  "63 %"  "1.5 GiB"  "yes"  "(4, 1, 8)"

Numbers are fractions until the end, so that 1.5 KiB is exactly 1536 bytes. An unreadable reply raises a ParseError that
says what is wrong and what to type: the caller asks again and nothing is graded.
"""

import re
import unicodedata
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from quizzes.expressions import ExpressionError, evaluate
from quizzes.grading.units import SUFFIXES, Unit, expected_unit, unit
from quizzes.question import Answer

MAX_CHARACTERS = 4000
MAX_DIGITS = 40
MAX_EXPONENT = 40
TRUE = ("yes", "y", "true", "t")
FALSE = ("no", "n", "false", "f")
NOTHING = ("none", "nothing", "()", "[]", "empty")

DIGITS = r"\d{1,3}(?:,\d{3})+|\d{1,3}(?:_\d{3})+|\d{1,3}(?: \d{3})+(?!\d)|\d+"
ENDS = re.compile(r"\s*\.\.+\s*|\s+to\s+|\s*;\s*")
DASH = re.compile(r"(?<=[\d%A-Za-z])(?<!\d[eE])\s*[-\u2013]\s*(?=[\d.])")
NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s*(?P<whole>{DIGITS})?(?P<point>\.\d*)?(?:[eE](?P<exponent>[+-]?\d+))?"
)
DOLLARS = re.compile(r"^([+-]?)\$\s*([\d.,_]+)\s*([kKMBT](?![A-Za-z]))?")
OPERAND = r"(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+"
ARITHMETIC = re.compile(
    rf"[\s(+-]*(?:{OPERAND})[\s)]*(?:(?:\*\*|[-+*/^])[\s(+-]*(?:{OPERAND})(?![\d.,_])[\s)]*)+"
)
RANGE = re.compile(rf"({OPERAND})\s*-\s*({OPERAND})")
FRACTION = re.compile(r"(?P<sign>[+-]?)\s*(?P<over>\d+)\s*/\s*(?P<under>\d+)")


class ParseError(ValueError):
    """Raised for an unreadable reply: what is wrong and the next step. `answer` is the id of the answer."""

    def __init__(self, what: str, next_step: str, answer: str = "") -> None:
        super().__init__(f"{what}; {next_step}" if next_step else what)
        self.what = what
        self.next_step = next_step
        self.answer = answer


@dataclass(frozen=True)
class Parsed:
    """A parsed reply."""

    value: Any
    """In the unit of the question: int, float, bool, str or a list."""
    unit: str = ""
    """The typed unit, if it is not the question's."""
    face: float | None = None
    """The typed number before conversion."""
    remark: str = ""


def parse(text: str, answer: Answer) -> Parsed:
    """Return the value of a typed reply. Raises ParseError."""
    try:
        return _READERS[answer.type](clean(text), answer)
    except ParseError as error:
        raise ParseError(error.what, error.next_step, answer.id) from None


def parse_interval(text: str, answer: Answer) -> tuple[float, float]:
    """Return both ends, lower first: "90..120", "90 to 120", "90-120 ms", "1 GiB to 2 GiB". Raises ParseError."""
    cleaned = clean(text)
    parts = ENDS.split(cleaned) if ENDS.search(cleaned) else DASH.split(cleaned)
    if len(parts) != 2:
        raise ParseError(f"{_quote(cleaned)} is not an interval", "type its two ends: 90..120", answer.id)
    low, high = (part.strip("()[] ") for part in parts)
    number = answer.model_copy(update={"type": "float"})
    tail = _split_number(high)[1]
    if tail and not _split_number(low)[1]:  # "90-120 ms": the unit belongs to both
        low = f"{low} {tail}"
    ends = (float(parse(low, number).value), float(parse(high, number).value))
    if ends[0] > ends[1]:
        raise ParseError(f"{_quote(cleaned)} starts above its end", "type the lower end first", answer.id)
    return ends


def clean(text: str) -> str:
    """Return one line of plain characters. Raises ParseError for an empty or far too long reply."""
    if len(text) > MAX_CHARACTERS:
        what = f"that is {len(text):,} characters; {MAX_CHARACTERS:,} is the limit"
        raise ParseError(what, "type the answer alone")
    text = unicodedata.normalize("NFKC", text).replace("\N{MINUS SIGN}", "-")
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if not text:
        raise ParseError("the reply is empty", "type your best guess, or q to quit")
    return text


def _int(text: str, answer: Answer) -> Parsed:
    parsed = _quantity(text, answer)
    if parsed.value.denominator != 1:
        of = f" of {answer.unit}: {_figure(float(parsed.value))}" if answer.unit else ""
        raise ParseError(f"{_quote(text)} is not a whole number{of}", "type a whole number, without rounding")
    return replace(parsed, value=int(parsed.value))


def _float(text: str, answer: Answer) -> Parsed:
    parsed = _quantity(text, answer)
    return replace(parsed, value=float(parsed.value))


def _quantity(text: str, answer: Answer) -> Parsed:
    """Return the exact number in the question's unit, a Fraction, and how it was typed."""
    asked = expected_unit(answer.unit) if answer.unit else None
    text = re.sub(r"^(?:[~≈=]|about |approximately )\s*", "", text)
    text = DOLLARS.sub(r"\1\2\3 $", text)
    number, rest = _split_number(text)
    if number is None:
        where = f" in {answer.unit}" if answer.unit else ""
        raise ParseError(f"{_quote(text)} is not a number", f"type a number{where}: 1536 or 1.5k")
    if not rest:
        if asked is not None and asked.text == "share" and number >= 2:
            raise ParseError(
                f"{_figure(float(number))} as a share would be {_figure(100 * float(number))} %",
                f"type {_figure(float(number))} % or {_figure(float(number) / 100)}",
            )
        return Parsed(number, face=float(number))
    factor, found = _unit_after_number(rest, asked, answer)
    typed = number * factor
    if found is None:
        return Parsed(typed, face=float(typed))
    if asked is None:  # only % gets here: without a unit, 63 % is 0.63
        return Parsed(typed * found.factor, found.text, float(typed))
    value = typed * found.factor / asked.factor
    if found.factor == asked.factor:
        return Parsed(value, face=float(typed))
    remark = f"{_figure(float(typed))} {found.text} is {_figure(float(value))} {asked.text}"
    if found.is_binary != asked.is_binary and asked.kind.startswith("bytes"):
        remark = f"you answered in {found.text}; in {asked.text} it is {_figure(float(value))}"
    return Parsed(value, found.text, float(typed), remark)


def _split_number(text: str) -> tuple[Fraction | None, str]:
    """Return the number at the start of a text and the rest; (None, text) if there is none."""
    if text.lower().lstrip("+-").startswith(("nan", "inf", "∞")):
        raise ParseError(f"{_quote(text)} is not a finite number", "type a finite number")
    if (computed := _arithmetic(text)) is not None:
        return computed
    if match := FRACTION.match(text):
        _bounded(match["over"], match["under"])
        if int(match["under"]) == 0:
            raise ParseError(f"{_quote(text)} divides by zero", "type a finite number")
        value = Fraction(int(match["over"]), int(match["under"]))
        return -value if match["sign"] == "-" else value, text[match.end() :].strip()
    match = NUMBER.match(text)
    whole, point = (match["whole"], match["point"]) if match else (None, None)
    if match is None or not (whole or (point and len(point) > 1)):
        return None, text
    rest = text[match.end() :]
    if re.match(r"[\d,._]", rest) or re.match(r"\s+[\d.]", rest):
        raise ParseError(
            f"{_quote(text)} could be read in two ways",
            "use a dot for decimals and groups of three for thousands: 1.5, 1,536",
        )
    exponent = match["exponent"] or "0"
    _bounded(whole or "", point or "")
    if len(exponent) > 4 or abs(int(exponent)) > MAX_EXPONENT:
        raise ParseError(f"{_quote(text)} is out of range", "type an ordinary number")
    plain = re.sub(r"[,_ ]", "", whole or "0") + (point or "")
    value = Fraction(f"{plain.rstrip('.')}e{exponent}")
    return -value if match["sign"] == "-" else value, rest.strip()


def _arithmetic(text: str) -> tuple[Fraction, str] | None:
    """Return the exact value of arithmetic at the start of a text ("38*32", "2^20", "2*(3+4) GiB"), and the rest.

    None if no operator follows the first number, and for a plain fraction.
    """
    text = re.sub(r"(?<=\d)(?:\s+x\s+|\s*\u00d7\s*)(?=[\d(])", "*", text)
    match = ARITHMETIC.match(text)
    if match is None or FRACTION.fullmatch(match[0].strip()):
        return None
    formula = match[0].strip().replace("^", "**")
    if (ends := RANGE.fullmatch(formula)) and _plain_number(ends[1]) < _plain_number(ends[2]):
        raise ParseError(f"{_quote(formula)} looks like a range", "type one number")
    numbers: dict[str, Fraction] = {}

    def name(number: re.Match[str]) -> str:
        numbers[key := f"n{len(numbers)}"] = _plain_number(number[0])
        return key

    try:
        if re.search(r"\*\*[\s(]*\d{4}", formula):
            raise ExpressionError("the exponent is too large")
        value = Fraction(evaluate(re.sub(OPERAND, name, formula), numbers))
    except (ExpressionError, TypeError, OverflowError):
        raise ParseError(f"{_quote(formula)} cannot be computed", "type the result") from None
    if abs(value) > 10**MAX_EXPONENT:
        raise ParseError(f"{_quote(formula)} is out of range", "type an ordinary number")
    return value, text[match.end() :].strip()


def _plain_number(text: str) -> Fraction:
    _bounded(text)
    return Fraction(re.sub(r"[,_]", "", text))


def _unit_after_number(rest: str, asked: Unit | None, answer: Answer) -> tuple[int, Unit | None]:
    """Return (factor of a suffix such as k, unit) for "k", "GiB" or "M tokens"."""
    rest = rest.rstrip(".!")
    found = unit(rest, asked)
    if found is not None and (found.text in ("%", "percent") if asked is None else found.kind == asked.kind):
        return 1, found
    suffix = re.match(r"(thousand|million|billion|trillion|[kKMGBT])\s*(?P<unit>.*)", rest)
    if suffix and not suffix["unit"]:
        if asked is not None and _needs_whole_unit(asked):
            raise ParseError(
                f"{_quote(rest)} alone is ambiguous for an answer in {asked.text}",
                f"write the whole unit: {asked.accepted()}",
            )
        return SUFFIXES[suffix[1]], None
    if suffix and asked is not None:
        after = unit(suffix["unit"], asked)
        if after is not None and after.kind == asked.kind:
            return SUFFIXES[suffix[1]], after
    if asked is None:
        raise ParseError(f"{_quote(rest)} after the number: this answer has no unit", "type only the number")
    why = f"it measures {found.kind}, not {asked.kind}" if found else "the unit is unknown"
    if rest in ("Mb", "Gb", "Tb", "Kb"):
        why = f"{rest} may be bits or bytes"
    raise ParseError(
        f"{_quote(rest)} is not {asked.text}: {why}",
        f"type only the number for {asked.text}, or one of these units: {asked.accepted()}",
    )


def _needs_whole_unit(asked: Unit) -> bool:
    """Return whether a bare suffix is ambiguous: 5 M for an answer in MB, 312 T for one in TFLOP/s."""
    top = asked.kind.split("/")[0]
    return top == "bytes" or (top in ("FLOP", "tokens") and not 1 / 3600 <= asked.factor <= 1)


def _bool(text: str, answer: Answer) -> Parsed:
    word = text.lower().strip(".!")
    if word in TRUE or word in FALSE:
        return Parsed(word in TRUE)
    raise ParseError(f"{_quote(text)} is neither yes nor no", "type yes or no")


def _word(text: str, answer: Answer) -> Parsed:
    if word := normal_word(text):
        return Parsed(word)
    raise ParseError(f"{_quote(text)} contains no letter", "type a word")


def _words(text: str, answer: Answer) -> Parsed:
    words = [normal_word(part) for part in split_list(text)]
    if any(not word for word in words):
        raise ParseError(f"{_quote(text)} has an empty element", "type words separated by commas: r1, r2")
    return Parsed(words)


def _ints(text: str, answer: Answer) -> Parsed:
    if re.search(r"\d,\d{3}(?!\d)", text) and ", " in text:
        what = f"{_quote(text)}: a comma with a space and one without"
        raise ParseError(what, "type thousands without a comma: 1536, 12")
    values = []
    for part in split_list(text):
        value = _quantity(part, answer).value
        if value.denominator != 1:
            raise ParseError(f"{_quote(part)} is not a whole number", "type whole numbers: 4, 1, 8")
        values.append(int(value))
    return Parsed(values)


def split_list(text: str) -> list[str]:
    """Split at commas, semicolons, arrows and "and"; at blanks if there are none of these."""
    if text.lower() in NOTHING:
        return []
    inner = text.strip("()[]{} ").rstrip(",;")
    parts = re.split(r"\s*(?:,|;|->|→|>|\band\b)\s*", inner)
    is_one_quantity = re.fullmatch(r"[+-]?[\d.]+ [A-Za-z%/]+", inner)  # "16 blocks"; "4 1 8" are three
    if len(parts) == 1 and re.fullmatch(r"\S+( \S+)+", inner) and not is_one_quantity:
        parts = inner.split()
    return [part for part in parts if part] if len(parts) > 1 and not parts[0] else parts


def normal_word(text: str) -> str:
    """Return a word without differences of case, hyphens, underscores, articles and quotes."""
    word = re.sub(r"[\s_\-\u2013]+", " ", text.lower()).strip(" .,!?;:'\"`()[]*")
    word = re.sub(r"^(?:the|a|an) (?=.)", "", word)
    return word if re.search(r"\w", word) else ""


def _bounded(*digits: str) -> None:
    if max(sum(c.isdecimal() for c in part) for part in digits) > MAX_DIGITS:
        raise ParseError("that number has too many digits", f"{MAX_DIGITS} digits are the limit")


def _quote(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _figure(value: float) -> str:
    """Format a number briefly: 1.397, 1,536, 2.5e+12."""
    return f"{int(value):,}" if value == int(value) and abs(value) < 1e15 else f"{value:,.4g}"


_READERS = {"int": _int, "float": _float, "bool": _bool, "word": _word, "words": _words, "ints": _ints}
