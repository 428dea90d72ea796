"""Parse a typed reply into a value of the answer's type and the question's unit.

    "1,536"  "1_536"  "1 536"  "1.5k"  "3/4"  "38*32"  "63 %"  "1.5 GiB"  "yes"  "(4, 1, 8)"

Numbers are fractions until the end, so that 1.5 KiB is exactly 1536 bytes. An unreadable reply raises a ParseError that
says what is wrong and what to type: the caller asks again and nothing is graded.
"""

import functools
import re
import unicodedata
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from prep_common.text import figure
from quizzes.expressions import ExpressionError, evaluate
from quizzes.grading.units import KINDS, SUFFIXES, Unit, expected_unit, unit
from quizzes.question import Answer

MAX_CHARACTERS = 4000
MAX_DIGITS = 40
MAX_EXPONENT = 40
TRUE = ("yes", "y", "true", "t")
FALSE = ("no", "n", "false", "f")
ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen""".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
PARTS = {
    "half": 2,
    "halve": 2,
    "third": 3,
    "quarter": 4,
    "fourth": 4,
    "fifth": 5,
    "sixth": 6,
    "eighth": 8,
    "tenth": 10,
}
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
ONE_COMMA = re.compile(r"[+-]?\d{1,3},\d{3}(?![\d,._])")
THOUSANDS_BY_DOT = re.compile(r"[+-]?[1-9]\d{0,2}\.000(?!\d)")
"""12.000 is twelve thousand in some countries; so many zeros are rarely typed behind a decimal point."""
BINARY_THOUSANDS = re.compile(r"[kK](?: ?tok(?:en)?s?)?")
POWER = str.maketrans("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079", "0123456789")
HEDGE_BEFORE = re.compile(
    r"""^(?:(?:it\ is|it's|i\ think|the\ answer\ is|answer:|about|approximately|approx\b\.?|roughly|around|circa|ca\b\.?
    |c\.|nearly|almost|exactly|[~≈=])\s*)+""",
    re.IGNORECASE | re.VERBOSE,
)
HEDGE_AFTER = re.compile(r"(?:\s*-?ish|\s+or\s+so|\s*!)+$", re.IGNORECASE)
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
    low, high = (_in_digits(part.strip("()[] ")) for part in parts)
    number = answer.model_copy(update={"type": "float"})
    top, tail = _split_number(high)
    if not tail and answer.unit == "%" and top is not None and top > 1:  # "0.5..3": only percentages reach 3
        tail = "%"
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
    text = re.sub(
        r"(?<=\d)[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+", lambda up: f"^{up[0].translate(POWER)}", text
    )
    text = unicodedata.normalize("NFKC", text).replace("\N{MINUS SIGN}", "-")
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if not text:
        raise ParseError("the reply is empty", "type your best guess")
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


def refuse_other_bases(text: str, answer: str = "") -> None:
    """Raise ParseError for 0x10, 0b101 and 0o17, with the number in decimal: 0x10 would be read as 0 with a unit."""
    match = re.match(r"0([xbo])([0-9a-f]+)\b", text, re.IGNORECASE)
    base = {"x": 16, "b": 2, "o": 8}[match[1].lower()] if match else 10
    try:
        number = int(match[2], base) if match else None
    except ValueError:
        return
    if match and number is not None:
        names = {16: "hexadecimal", 2: "binary", 8: "octal"}
        raise ParseError(f"{match[0]} is {names[base]}", f"type it in decimal: {number}", answer)


def _quantity(text: str, answer: Answer) -> Parsed:
    """Return the exact number in the question's unit, a Fraction, and how it was typed."""
    asked = expected_unit(answer.unit) if answer.unit else None
    refuse_other_bases(text)
    text = _in_digits(HEDGE_AFTER.sub("", HEDGE_BEFORE.sub("", text)))
    text = DOLLARS.sub(r"\1\2\3 $", text)
    number, rest = _split_number(text)
    if answer.type == "float" and (match := THOUSANDS_BY_DOT.match(text)):
        whole = match[0].split(".")[0]
        raise ParseError(f"{match[0]} may be {whole} or {whole}000", "type one of these")
    if answer.type == "float" and (match := ONE_COMMA.match(text)):
        raise ParseError(
            f"{match[0]} may be {match[0].replace(',', '')} or {match[0].replace(',', '.')}",
            "type one of these",
        )
    if number is None:
        where = f" in {answer.unit}" if answer.unit else ""
        raise ParseError(f"{_quote(text)} is not a number", f"type a number{where}: 1536 or 1.5k")
    _not_a_negative_count(number, asked)
    if not rest:
        _not_a_share_for_percent(number, asked)
        return Parsed(number, face=float(number))
    _not_a_binary_thousand(number, rest, asked, answer)
    factor, given = _unit_after_number(rest, asked, answer)
    typed = number * factor
    if given is None:
        return Parsed(typed, face=float(typed))
    if asked is None:  # only % gets here: without a unit, 63 % is 0.63
        return Parsed(typed * given.factor, given.text, float(typed))
    if answer.type == "int" and re.match(r"KB|Kbyte|kb(?![a-z])", given.text):
        kilo, kibi = (_figure(float(typed * size)) for size in (1000, 1024))
        raise ParseError(
            f"{given.text[:2]} may be 1,000 or 1,024 bytes: {kilo} or {kibi}",
            "write kB for 1,000 bytes, KiB for 1,024 bytes",
        )
    value = typed * given.factor / asked.factor
    if given.factor == asked.factor:
        return Parsed(value, face=float(typed))
    remark = f"{_figure(float(typed))} {given.text} is {_figure(float(value))} {asked.text}"
    if given.is_binary != asked.is_binary and asked.kind.startswith("bytes"):
        remark = f"you answered in {given.text}; in {asked.text} it is {_figure(float(value))}"
    return Parsed(value, given.text, float(typed), remark)


def _not_a_negative_count(number: Fraction, asked: Unit | None) -> None:
    """Raise ParseError for "-5 steps". A difference of bytes or of milliseconds may be negative."""
    if number < 0 and asked is not None and asked.is_count:
        raise ParseError(f"a number of {asked.text} is not negative", "type 0 or more")


def _not_a_binary_thousand(number: Fraction, rest: str, asked: Unit | None, answer: Answer) -> None:
    """Raise ParseError for "4k tokens", if a whole number of tokens is asked for: a context of 4k has 4,096."""
    is_count = answer.type == "int" and asked is not None and (asked.kind, asked.factor) == ("tokens", 1)
    whole = number.numerator
    if not is_count or number.denominator != 1 or whole <= 0 or whole & (whole - 1):
        return
    if BINARY_THOUSANDS.fullmatch(rest):
        kilo, kibi = (_figure(float(number * size)) for size in (1000, 1024))
        raise ParseError(f"{whole}k may be {kilo} or {kibi} tokens", "type the number")


def _not_a_share_for_percent(number: Fraction, asked: Unit | None) -> None:
    """Raise ParseError for a number without a unit that may be a share or a percentage."""
    if asked is None or asked.kind != "share":
        return
    figure = _figure(float(number))
    if asked.factor == 1 and number > 1:
        what = f"{figure} as a share would be {_figure(100 * float(number))} %"
        raise ParseError(what, f"type {figure} % or {_figure(float(number) / 100)}")
    # 1.008 may be 100.8 %; a plain 1 as a share is 100 %
    may_be_share = 0 < number <= 1 or (number < 2 and number.denominator > 1 and number > 0)
    if asked.factor < 1 and may_be_share:
        what = f"{figure} may be {figure} % or {_figure(100 * float(number))} %"
        raise ParseError(what, "type the number with its % sign")


def _in_digits(text: str) -> str:
    """Return a text whose leading number words are digits: "thirty-two steps" is "32 steps", "two thirds" is "2/3"."""
    text = re.sub(r"(?i)(?<=[a-z0-9])-?fold\b", " fold", text)
    words = list(re.finditer(r"[A-Za-z]+", text.split(",")[0]))[:9]
    while words:
        phrase = re.sub(r"[\s-]+(?:and[\s-]+)?", " ", text[: words[-1].end()].lower())
        if (number := _number_in_words(re.sub(r"^an? ", "one ", phrase))) is not None:
            return f"{number}{text[words[-1].end() :]}"
        words.pop()
    return text


def _number_in_words(phrase: str) -> str | None:
    """Return the digits of "three hundred twenty", "two thousand five", "one dozen" or "two thirds", or None."""
    below = _words_below_1000()
    head, _, last = phrase.rpartition(" ")
    if phrase in below:
        return str(below[phrase])
    if head and last == "dozen":
        return str(12 * below[head]) if head in below else None
    of_one = last if head == "one" else last.removesuffix("s") if last.endswith("s") else ""
    if (part := PARTS.get(of_one)) and head in ONES[1:10]:
        return f"{below[head]}/{part}"
    thousands, between, rest = phrase.partition(" thousand")
    if between and thousands in below and (not rest or rest[1:] in below):
        return str(1000 * below[thousands] + (below[rest[1:]] if rest else 0))
    return {"dozen": "12", "half": "1/2"}.get(phrase)


@functools.cache
def _words_below_1000() -> dict[str, int]:
    """Return the numbers 0 to 999 by their words, without hyphens and without "and"."""
    tens = {
        f"{ten} {one}": 10 * at + unit
        for at, ten in enumerate(TENS, 2)
        for unit, one in enumerate(ONES[:10])
        if unit
    }
    tens |= {ten: 10 * at for at, ten in enumerate(TENS, 2)}
    below = {one: at for at, one in enumerate(ONES)} | tens
    hundreds = {f"{ONES[at]} hundred": 100 * at for at in range(1, 20)}
    return (
        below
        | hundreds
        | {f"{many} {few}": at + rest for many, at in hundreds.items() for few, rest in below.items() if rest}
    )


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
    if re.search(r"\d\s*\.\.\s*[\d+-]", text):
        raise ParseError(f"{_quote(text)} is an interval", "type one number")
    if (whole or "").startswith("0,") or re.match(r"[\d,._]", rest) or re.match(r"\s+[\d.]", rest):
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
    given = unit(rest, asked)
    if given is not None and (
        given.kind == "share" and given.factor < 1 if asked is None else given.kind == asked.kind
    ):
        return 1, given
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
    kind = asked.kind if asked.kind in KINDS else asked.text
    why = f"it measures {given.kind}, not {kind}" if given else "the unit is unknown"
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
    if re.fullmatch(r"\d+(?:(?:[-\u2013]|\s*[-\u2013]\s+)\d+){2,}", text):  # "4 -1 8" is a list
        raise ParseError(
            f"{_quote(text)} may be a list or a difference", "separate a list by commas: 4, 1, 8"
        )
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
    return f"{int(value):,}" if value == int(value) and abs(value) < 1e15 else figure(float(value))


_READERS = {"int": _int, "float": _float, "bool": _bool, "word": _word, "words": _words, "ints": _ints}
