r"""Patterns of formats.

A format follows its RFC: every text that matches is valid. These valid texts do not match, because readers rarely want
them or no small automaton finds them: the year 0000; more than 18 digits of a second, or 3 of a leap second with an
offset; leap seconds at offsets other than whole and half hours; A-labels (`xn--...`, README.md says why); hosts of more
than 8 labels or of more than 4 long ones; with maxLength, hosts of more than 63 characters whose labels differ much in
length, addresses in brackets (`http://[::1]/`), and texts that come near a large limit.

The values of some formats are not a regular language: they are refused. A format that is not listed is an annotation.
"""

from __future__ import annotations

from functools import lru_cache

from engine.grammar.language import Language
from engine.grammar.regex import Choice, Node, parse

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


_HOST = (  # at most 253 characters
    rf"(?:{_label(63)}(?:\.{_label(63)}){{0,2}}(?:\.{_label(61)})?|{_label(30)}(?:\.{_label(30)}){{4,7}})"
)
_SHORT_HOST = rf"{_label(None)}(?:\.{_label(None)})*"
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
_EMAIL = rf"{_LOCAL}@(?:{_DOMAINS}|\[(?:{_IPV4}|IPv6:{_ipv6(6)})\])"

# RFC 3986 and RFC 3987: URI and IRI
_PLANES = "".join(
    f"\\U{plane:04x}0000-\\U{plane:04x}fffd" if plane < 14 else "\\U000e1000-\\U000efffd"
    for plane in range(1, 15)
)
_UCS = rf"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef{_PLANES}"
_PRIVATE = r"\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd"


def _references(more: str, private: str, *, is_short: bool = False) -> tuple[str, str]:
    """Return absolute and relative references. more: characters beyond ASCII; private: more of them in a query.

    is_short: without IPv6 and later addresses.
    """
    unreserved = rf"a-zA-Z0-9._~!$&'()*+,;=\-{more}"
    segment = rf"(?:[{unreserved}:@]|{_PERCENT})"
    path = rf"(?:[{unreserved}:@/]|{_PERCENT})*"
    no_colon = rf"(?:[{unreserved}@]|{_PERCENT})"
    host = rf"(?:[{unreserved}]|{_PERCENT})*"
    if not is_short:
        host = rf"(?:\[(?:{_ipv6(7)}|[vV]{_HEX}+\.[a-zA-Z0-9._~!$&'()*+,;=:-]+)\]|{host})"
    authority = rf"//(?:(?:[{unreserved}:]|{_PERCENT})*@)?{host}(?::[0-9]*)?(?:/{path})?"
    absolute = rf"/(?:{segment}{path})?"
    query = rf"(?:\?(?:[{unreserved}:@/?{private}]|{_PERCENT})*)?(?:#(?:[{unreserved}:@/?]|{_PERCENT})*)?"
    whole = rf"[a-zA-Z][a-zA-Z0-9+.-]*:(?:{authority}|{absolute}|{segment}{path})?{query}"
    return whole, rf"(?:{authority}|{absolute}|{no_colon}+(?:/{path})?)?{query}"


_URI, _RELATIVE = _references("", "")
_IRI, _RELATIVE_IRI = _references(_UCS, _PRIVATE)
_SHORT_URI, _SHORT_RELATIVE = _references("", "", is_short=True)
_SHORT_IRI, _SHORT_RELATIVE_IRI = _references(_UCS, _PRIVATE, is_short=True)

LEAST_BOUNDED, MOST_BOUNDED = 128, 2_083
"""Limits of maxLength between which each part of a URI gets a share of it; a larger one counts as the second."""


def _bounded_references(most: int, more: str, private: str) -> tuple[str, str]:
    """Return absolute and relative references of 1 to `most` characters.

    Each part has a share, and counts only its own: an automaton that counts the whole is many times as large. The user
    is left out.
    """
    host = min(most // 8, 253)
    units = (most - len("scheme-of-16-abc://:65535/?#") - host) // len("%20")
    path, query = units * 4 // 9, units * 4 // 9
    unreserved = rf"a-zA-Z0-9._~!$&'()*+,;=\-{more}"

    def part(characters: str, count: int, least: int = 0) -> str:
        return f"(?:[{unreserved}{characters}]|{_PERCENT}){{{least},{count}}}"

    authority = f"//[{unreserved}]{{0,{host}}}(?::[0-9]{{0,5}})?(?:/{part(':@/', path)})?"
    one = f"(?:[{unreserved}:@]|{_PERCENT})"
    no_authority = f"/?(?:{one}{part(':@/', path - 1)})?"
    asked, fragment = rf"\?{part(':@/?' + private, query)}", f"#{part(':@/?', units - path - query)}"
    tail = f"(?:{asked})?(?:{fragment})?"
    first = path // 2  # segment, without a colon
    no_scheme = f"/(?:{one}{part(':@/', path - 1)})?|{part('@', first, 1)}(?:/{part(':@/', path - first)})?"
    whole = f"[a-zA-Z][a-zA-Z0-9+.-]{{0,15}}:(?:{authority}|{no_authority}){tail}"
    return whole, f"(?:{authority}|{no_scheme}){tail}|{asked}(?:{fragment})?|{fragment}"


# RFC 6570: templates
_CHARACTER = rf"(?:[a-zA-Z0-9_]|{_PERCENT})"
_VARIABLE = rf"{_CHARACTER}(?:\.?{_CHARACTER})*(?:\*|:[1-9][0-9]{{0,3}})?"
_TEMPLATE = (
    rf"(?:[!#$&'(-;=?-\[\]_a-z~{_UCS}{_PRIVATE}]|{_PERCENT}"
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
SHORT = {
    "hostname": _SHORT_HOST,
    "email": f"{_LOCAL}@{_DOMAINS}",
    "uri": _SHORT_URI,
    "uri-reference": f"(?:{_SHORT_URI}|{_SHORT_RELATIVE})",
    "iri": _SHORT_IRI,
    "iri-reference": f"(?:{_SHORT_IRI}|{_SHORT_RELATIVE_IRI})",
}
"""Formats without addresses in brackets, whose automata are small enough to count characters."""
NOT_REGULAR = frozenset({"idn-email", "idn-hostname", "regex"})
"""Formats that need tables of Unicode or a stack."""
KNOWN_FORMATS = frozenset(FORMATS) | NOT_REGULAR


@lru_cache(maxsize=128)
def format_node(name: str, least: int = 0, most: int | None = None) -> Node:
    """Return the texts of a format; with `most`, such of them as an automaton can count, or as have that length."""
    if most is None or name not in SHORT:
        return parse(FORMATS[name])
    if name == "hostname":
        return _host_node(least, most)
    if name == "email" or most < LEAST_BOUNDED:
        return parse(SHORT[name])
    more, private = (_UCS, _PRIVATE) if name.startswith("iri") else ("", "")
    whole, relative = _bounded_references(min(most, MOST_BOUNDED), more, private)
    empty = "" if least else "|"
    return parse(f"{whole}|{relative}{empty}" if name.endswith("reference") else whole)


def is_bounded(name: str, least: int, most: int) -> bool:
    """Whether all texts of `format_node` have `least` to `most` characters, so that no automaton has to count them."""
    if name == "hostname":
        return least <= 1 and most > MOST_SHORT
    shortest = {"uri": 2, "iri": 2, "uri-reference": 1, "iri-reference": 1}.get(name, -1)
    return least <= shortest and most >= LEAST_BOUNDED


def _host_node(least: int, most: int) -> Node:
    if most >= 253 or least > MOST_SHORT:
        return parse(_HOST)
    if most <= MOST_SHORT:
        return parse(_SHORT_HOST)
    short = Language.of(parse(_SHORT_HOST)).of_length(1, MOST_SHORT).node()
    return short if least > 1 else Choice((short, parse(_bounded_host(most))))
