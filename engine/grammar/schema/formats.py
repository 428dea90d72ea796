r"""Patterns of formats.

A format follows its RFC: every text that matches is valid. These valid texts do not match, because readers rarely want
them or no small automaton finds them: the year 0000; more than 18 digits of a second, or 3 of a leap second with an
offset; leap seconds at offsets other than whole and half hours; A-labels (`xn--...`, README.md says why); hosts of more
than 8 labels or of more than 4 long ones. A `maxLength` leaves out more:

    all              addresses in brackets (`http://[::1]/`)
    hostname         above 63 characters and below a limit of 253: hosts whose labels differ much in length, and with
                     minLength all; from 253 on, beside minLength or another keyword: hosts of more than 8 labels
    email            addresses above 254 characters, which RFC 5321 (section 4.5.3) does not allow
    uri, iri, ...    schemes above 27 characters, ports above 5 digits; texts above 127 characters that come near the
                     limit (references.py); texts above 1,024 characters (iri: 512); user info above about 190

What matches with a limit matches with every larger one, but for a hostname beside minLength or another keyword.

The values of some formats are not a regular language: they are refused. A format that is not listed is an annotation.
"""

from __future__ import annotations

from functools import lru_cache

from engine.grammar.language import Language
from engine.grammar.regex import Choice, Node, parse
from engine.grammar.schema.references import (
    MOST,
    PRIVATE,
    UCS,
    countable,
    is_in_blocks,
    limited,
    references,
)

_HEX = "[0-9a-fA-F]"
_PERCENT = f"%{_HEX}{{2}}"

# RFC 3339: dates and times
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_HOUR = "(?:[01][0-9]|2[0-3])"
_FRACTION = r"(?:\.[0-9]{1,18})?"
_MILLISECONDS = r"(?:\.[0-9]{1,3})?"
_UTC = "(?:[Zz]|[+-]00:00)"


def _leap_seconds() -> str:
    """Return 23:59:60 in UTC, written with each offset of whole or half hours."""
    local = [f"23:59:60{_FRACTION}{_UTC}"]
    for offset in range(30, 24 * 60, 30):
        for sign, minutes in (("[+]", 1439 + offset), ("-", 1439 - offset)):
            hour, minute = divmod(minutes % 1440, 60)
            local.append(f"{hour:02}:{minute:02}:60{_MILLISECONDS}{sign}{offset // 60:02}:{offset % 60:02}")
    return "|".join(local)


_TIME = rf"(?:{_HOUR}:[0-5][0-9]:[0-5][0-9]{_FRACTION}(?:[Zz]|[+-]{_HOUR}:[0-5][0-9])|{_leap_seconds()})"
_CLOCK = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DAYS = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"

# RFC 2673 and RFC 4291: addresses
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_BYTE}\.){{3}}{_BYTE}"
_GROUP = f"{_HEX}{{1,4}}"


def _ipv6(most: int) -> str:
    """Return IPv6 addresses. most: groups beside `::`."""
    options = [f"(?:{_GROUP}:){{7}}{_GROUP}", f"(?:{_GROUP}:){{6}}{_IPV4}"]
    for before in range(most + 1):
        head = f"(?:{_GROUP}:){{{before}}}:" if before else "::"
        after = most - before
        tails = [f"{_GROUP}(?::{_GROUP}){{0,{after - 1}}}"] if after else []
        tails += [f"(?:{_GROUP}:){{0,{after - 2}}}{_IPV4}"] if after >= 2 else []
        options.append(head + (f"(?:{'|'.join(tails)})?" if tails else ""))
    return f"(?:{'|'.join(options)})"


# RFC 1123: hosts. Two hyphens in the third and fourth place are reserved (RFC 5890).
_ALNUM, _LDH = "[a-zA-Z0-9]", "[a-zA-Z0-9-]"


def _label(most: int | None) -> str:
    more = "*" if most is None else f"{{0,{most - 5}}}"
    return f"{_ALNUM}(?:{_LDH}{{0,2}}{_ALNUM}|{_LDH}(?:{_ALNUM}{_LDH}|-{_ALNUM}){_LDH}{more}{_ALNUM})?"


_HOST = (  # at most LONGEST_HOST characters
    rf"(?:{_label(63)}(?:\.{_label(63)}){{0,2}}(?:\.{_label(61)})?|{_label(30)}(?:\.{_label(30)}){{4,7}})"
)
_SHORT_HOST = rf"{_label(None)}(?:\.{_label(None)})*"
LONGEST_HOST = 253
"""Characters of the longest host; RFC 1035 allows 255 octets."""
MOST_SHORT = 63
"""Characters of a host without a label that may be too long."""


def _bounded_host(most: int) -> str:
    """Return hosts of 2 to 8 labels of equal limits, of at most so many characters."""
    options = []
    for num in range(2, 9):
        label = _label(min(63, (most - num + 1) // num))
        options.append(rf"{label}(?:\.{label}){{{num - 1}}}")
    return "|".join(options)


# RFC 5321: addresses of mail
_ATOM = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_DOMAIN = f"{_ALNUM}+(?:-+{_ALNUM}+)*"
_LOCAL = rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})"
_DOMAINS = rf"{_DOMAIN}(?:\.{_DOMAIN})*"
_SHORT_EMAIL = f"{_LOCAL}@{_DOMAINS}"
_EMAIL = rf"{_LOCAL}@(?:{_DOMAINS}|\[(?:{_IPV4}|IPv6:{_ipv6(6)})\])"

# RFC 3986 and RFC 3987: URI and IRI
_URI, _RELATIVE = references("", "", _ipv6(7))
_IRI, _RELATIVE_IRI = references(UCS, PRIVATE, _ipv6(7))

# RFC 6570: templates
_CHARACTER = rf"(?:[a-zA-Z0-9_]|{_PERCENT})"
_VARIABLE = rf"{_CHARACTER}(?:\.?{_CHARACTER})*(?:\*|:[1-9][0-9]{{0,3}})?"
_TEMPLATE = (
    rf"(?:[!#$&'(-;=?-\[\]_a-z~{UCS}{PRIVATE}]|{_PERCENT}"
    rf"|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"
)

# RFC 6901
_POINTER = "(?:/(?:[^~/]|~[01])*)*"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "duration": f"P(?:{_DAYS}(?:{_CLOCK})?|{_CLOCK}|[0-9]+W)",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "ipv4": _IPV4,
    "ipv6": _ipv6(7),
    "hostname": _HOST,
    "email": _EMAIL,
    "uri": _URI,
    "uri-reference": f"(?:{_URI}|{_RELATIVE})",
    "iri": _IRI,
    "iri-reference": f"(?:{_IRI}|{_RELATIVE_IRI})",
    "uri-template": _TEMPLATE,
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
}
NOT_REGULAR = frozenset({"idn-email", "idn-hostname", "regex"})
"""Formats that need tables of Unicode or a stack."""
KNOWN_FORMATS = frozenset(FORMATS) | NOT_REGULAR


MOST_OF = {"email": 254, **MOST}
"""Characters that a larger maxLength counts as. RFC 5321, section 4.5.3, allows no longer address of mail."""


@lru_cache(maxsize=128)
def format_node(name: str, least: int = 0, most: int | None = None) -> Node:
    """Return the texts of a format; with `most`, those whose characters an automaton can count."""
    if most is None:
        return parse(FORMATS[name])
    if name in MOST:
        return countable(name)
    if name == "hostname":
        return parse(_HOST) if most >= LONGEST_HOST else _host_node(least, most)
    return parse(_SHORT_EMAIL if name == "email" else FORMATS[name])


def is_bounded(name: str, least: int, most: int) -> bool:
    """Whether all texts of `bounded_node` have `least` to `most` characters: no automaton has to count them."""
    return (name == "hostname" and least <= 1 and most > MOST_SHORT) or is_in_blocks(name, least, most)


def bounded_node(name: str, least: int, most: int) -> Node:
    """Return texts of a format of at most that length."""
    return _host_node(least, most) if name == "hostname" else limited(name, least, most)


def _host_node(least: int, most: int) -> Node:
    if most <= MOST_SHORT:
        return parse(_SHORT_HOST)
    if least > MOST_SHORT:
        return parse(_HOST)
    short = Language.of(parse(_SHORT_HOST)).of_length(1, MOST_SHORT).node()
    if least > 1:
        return short
    long = [_HOST] if most >= LONGEST_HOST else []
    return Choice((short, *map(parse, [_bounded_host(min(most, LONGEST_HOST)), *long])))
