r"""Patterns of strings: formats, and the dialect of `pattern`.

Validators differ: \s has Unicode spaces in ECMAScript and Python, but not the same ones; \d and \w are ASCII in
ECMAScript only. NARROW keeps to what all of them match, WIDE to what any of them matches, for patterns under `not`.

A format is narrower than its standard where the standard is not regular or validators differ: every text is valid, not
every valid text is allowed. A format that is not listed is an annotation.
"""

from __future__ import annotations

from engine.grammar.regex import ASCII, Dialect, complement, literal, merged, optional

_HEX = "[0-9a-fA-F]"
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_HOUR = "(?:[01][0-9]|2[0-3])"
_TIME = rf"{_HOUR}:[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-]{_HOUR}:[0-5][0-9])"
_CLOCK = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DAYS = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = "[a-zA-Z0-9]{1,20}(?:-[a-zA-Z0-9]{1,20})?"
_MAIL_HOST = r"[a-zA-Z0-9]+(?:-[a-zA-Z0-9]+)*"
_AUTHORITY = r"[a-zA-Z0-9]+(?:[.-][a-zA-Z0-9]+)*(?::[0-9]{1,4})?"
_GROUP = f"{_HEX}{{1,4}}"
_IPV6 = f"(?:{_GROUP}:){{7}}{_GROUP}|::(?:{_GROUP}(?::{_GROUP}){{0,5}})?|" + "|".join(
    f"(?:{_GROUP}:){{{before}}}:(?:{_GROUP}(?::{_GROUP}){{0,{5 - before}}})?" for before in range(1, 6)
)
_PCHAR = rf"(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%{_HEX}{{2}})"
_PATH = rf"(?:/{_PCHAR}*)*"
_QUERY = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_URI = rf"[a-zA-Z][a-zA-Z0-9+.-]*:(?://{_AUTHORITY}{_PATH}|/?{_PCHAR}+{_PATH}){_QUERY}"
_RELATIVE = rf"(?:/?(?:[a-zA-Z0-9._~-]+{_PATH})?|//{_AUTHORITY}{_PATH}){_QUERY}"
_POINTER = r"(?:/(?:[^~/\x00-\x1f]|~[01])*)*"
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P(?:{_DAYS}(?:{_CLOCK})?|{_CLOCK}|[0-9]+W)",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "ipv4": rf"(?:{_BYTE}\.){{3}}{_BYTE}",
    "ipv6": _IPV6,
    "hostname": rf"{_LABEL}(?:\.{_LABEL}){{0,3}}",
    "email": rf"[a-zA-Z0-9_+-]+(?:\.[a-zA-Z0-9_+-]+)*@{_MAIL_HOST}(?:\.{_MAIL_HOST})+",
    "uri": _URI,
    "uri-reference": rf"(?:{_URI}|{_RELATIVE})",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
}
FORMATS |= {
    "idn-email": FORMATS["email"],
    "idn-hostname": FORMATS["hostname"],
    "iri": FORMATS["uri"],
    "iri-reference": FORMATS["uri-reference"],
    "uri-template": rf"(?:https?://{_AUTHORITY})?{_PATH}(?:/?\{{[a-zA-Z0-9_]+\}}{_PATH})*",
    "regex": "[a-zA-Z0-9_ -]*",
}
KNOWN_FORMATS = frozenset(FORMATS)

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
