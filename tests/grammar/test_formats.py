"""Formats follow their RFC: texts that are one, and texts that are nearly one."""

from __future__ import annotations

import ipaddress
import json
import random
from datetime import datetime
from urllib.parse import urlsplit
from uuid import UUID

import pytest

from engine.core.grammar_protocol import GrammarError
from engine.grammar.schema.formats import FORMATS, NOT_REGULAR
from tests.grammar.test_json_schema import accepts, compiled, random_text
from tests.grammar.test_standard import compiled as compiled_by_default

LONG = "a" * 63
GOOD = {
    "date": ["2024-02-29", "0001-01-01", "1999-12-31"],
    "time": ["10:17:00Z", "10:17:00.5z", "00:00:00+09:00", "23:59:60Z", "23:59:60.25+00:00", "08:59:60+09:00"]
    + ["05:29:60+05:30", "18:59:60-05:00", "12:00:00.123456789012345678Z"],
    "date-time": ["2026-11-24T10:17:00Z", "2026-11-24t10:17:00.5z", "2016-12-31T23:59:60Z"],
    "duration": ["P3D", "PT36H", "P2W", "P1Y2M3DT4H5M6S"],
    "uuid": ["123E4567-e89b-12d3-a456-426614174000"],
    "ipv4": ["127.0.0.1", "255.255.255.255"],
    "ipv6": ["::", "::1", "1::", "fe80::1", "1:2:3:4:5:6:7:8", "::ffff:10.0.0.1", "1:2:3:4:5:6:1.2.3.4"]
    + ["1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1::3:4:5:6:7:8", "64:ff9b::192.0.2.33", "1:2:3:4:5::1.2.3.4"],
    "hostname": ["a", "example.com", "3com.example", "a-b--c.de", f"{LONG}.{LONG}.{LONG}.{'a' * 61}"]
    + ["i-0.eu-west-1.compute.internal", "a.b.c.d.e.f.g.h"],
    "email": [
        "a@b",
        "o'neil+tag@mail.example.com",
        '"a b"@example.com',
        r'"a\"b"@example.com',
        "a@[127.0.0.1]",
    ]
    + ["a@[IPv6:fe80::1]", "{x}@example.com"],
    "uri": [
        "http://example.com",
        "a:",
        "urn:isbn:0451450523",
        "mailto:a@b.c",
        "https://u:p@[::1]:80/a%20b?c=d#e",
    ]
    + ["file:///etc/hosts", "http://[v1.x]/", "data:,", "x://h:/"],
    "uri-reference": ["", "a/b", "/a:b", "?q", "#f", "//host/p", "./a:b", "http://a.b"],
    "iri": ["http://例え.jp/道?q=値#片", "http://a/\U00020000", "http://a/?\ue000"],
    "iri-reference": ["é", "/道", "#片"],
    "uri-template": ["", "/a/{b}", "{+path}/here", "{?x,y*}", "{a.b:3}", "é{%41}", "a'b"],
    "json-pointer": ["", "/", "/a~0b/~1", "/a\tb/é"],
    "relative-json-pointer": ["0", "1/a", "12#"],
}
BAD = {
    "date": ["2023-02-29", "2024-2-29", "24-02-29", "2024-13-01"],
    "time": ["10:17:00", "24:00:00Z", "10:60:00Z", "22:59:60Z", "09:59:60+09:00", "10:17:00+24:00", "10:17Z"]
    + ["23:59:60+01:00", "23:59:61Z"],
    "date-time": ["2026-11-24 10:17:00Z", "2026-11-24T10:17:00", "2016-12-31T23:58:60Z"],
    "duration": ["P", "PT", "P1D2H", "P1Y1D", "P1W1D", "PT0.5S"],
    "uuid": ["123e4567e89b12d3a456426614174000"],
    "ipv4": ["127.0.0.256", "127.0.0", "01.0.0.1"],
    "ipv6": [
        "",
        ":",
        ":::",
        "1::2::3",
        "1:2:3:4:5:6:7",
        "1:2:3:4:5:6:7:8:9",
        "12345::",
        "::1.2.3",
        "fe80::1%eth0",
    ]
    + ["1:2:3:4:5:6:7::8", "1:2:3:4:5:6:7:1.2.3.4", "::1.2.3.256", "1.2.3.4", ":1:2:3:4:5:6:7"],
    "hostname": [
        "",
        ".",
        "a.",
        "-a",
        "a-",
        "a_b",
        f"{LONG}a",
        f"{LONG}.{LONG}.{LONG}.{'a' * 62}",
        "xn--X",
        "é",
    ],
    "email": ["", "a", "@b", "a@", "a..b@c", ".a@b", "a b@c", "a@-b", "a@[127.0.0.300]", '"a"b"@c', "a@b_c"],
    "uri": [
        "",
        "a",
        "/a",
        "//a",
        "1a:b",
        "http://a b",
        "http://a:b",
        "a:%2",
        "http://[::1",
        "http://é",
        "http:/[::1]",
    ],
    "uri-reference": ["1:b", "\\a", "%zz", "//a@b@c", "#a#b"],
    "iri": ["é", "http://a b", "http://a/\ue000"],
    "iri-reference": ["\\a", "a b"],
    "uri-template": ["{", "a}", "{}", "{a", "{a b}", "{a:0}", "{a:10000}", "a b", "{!a}", "{a..b}"],
    "json-pointer": ["a", "/~", "/~2", "#"],
    "relative-json-pointer": ["", "/", "01", "-1", "1##"],
}


def test_every_format_has_examples() -> None:
    assert FORMATS.keys() == GOOD.keys() == BAD.keys()


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_takes_what_its_rfc_allows_and_nothing_else(name: str) -> None:
    dfa, by_default = compiled({"format": name, "type": "string"}), compiled_by_default({"format": name})
    assert not [text for text in GOOD[name] if not accepts(dfa, text)]
    assert not [text for text in BAD[name] if accepts(dfa, text)]
    for text in GOOD[name] + BAD[name]:
        sent = [*json.dumps(text, ensure_ascii=False).encode(), 256]
        assert by_default.start().accept_tokens(sent) is (text in GOOD[name]), text


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("ipv6", ipaddress.IPv6Address),
        ("ipv4", ipaddress.IPv4Address),
        ("uuid", UUID),
        ("uri", urlsplit),
        ("date-time", lambda text: datetime.fromisoformat(text.upper().replace(":60", ":59"))),
    ],
)
def test_readers_of_the_standard_library_take_every_text(name: str, read: object) -> None:
    assert callable(read)
    rng, dfa = random.Random(3), compiled({"format": name, "type": "string"})
    texts = [text for _ in range(150) if (text := random_text(dfa, rng)) is not None]
    assert len(texts) > 15
    for text in texts:
        read(json.loads(text))


@pytest.mark.parametrize("name", sorted(NOT_REGULAR))
def test_a_format_that_no_backend_enforces_is_refused_for_texts_only(name: str) -> None:
    with pytest.raises(
        GrammarError, match=r"'format' is not supported by any backend \(dfa, xgrammar\).*leave"
    ):
        compiled({"format": name})
    assert accepts(compiled({"format": name, "type": "integer"}), 3)


def test_a_format_that_the_standard_does_not_name_is_an_annotation() -> None:
    assert accepts(compiled({"type": "string", "format": "int64"}), "any text")


@pytest.mark.parametrize("name", ["uri", "uri-reference", "email", "iri-reference", "hostname"])
@pytest.mark.parametrize("most", [50, 100, 252, 2_083])
def test_a_format_with_a_length_has_texts_of_the_format_of_at_most_that_length(name: str, most: int) -> None:
    bounded = compiled({"type": "string", "format": name, "minLength": 1, "maxLength": most})
    whole, rng = compiled({"type": "string", "format": name}), random.Random(most)
    texts = [text for _ in range(60) if (text := random_text(bounded, rng)) is not None]
    for text in map(json.loads, texts):
        assert 1 <= len(text) <= most and accepts(whole, text)
    usual = {"email": "ann@mail.example.com", "hostname": "long-name-of-a-host.eu-central.example.com"}
    assert accepts(bounded, usual.get(name, "https://a.example.com/b?c#d"))
    assert not accepts(bounded, "") and not accepts(bounded, "a.b@" + "c" * most)


@pytest.mark.parametrize("most", [10, 20, 63, 64, 99, 252])
def test_a_host_with_a_limit_keeps_the_rules_of_labels(most: int) -> None:
    bounded = compiled({"type": "string", "format": "hostname", "maxLength": most})
    for text in [
        "a",
        "a" * 63,
        ".".join(["ab"] * 21),
        "a." * (min(most, 62) // 2) + "a",
        "a" * 31 + "." + "b" * 31,
    ]:
        assert accepts(bounded, text) or len(text) > most, text
    for text in ["", "-a", "a-", "ab--c", "a..b", "a" * 64, "b." + "a" * 64, "a" * (most + 1)]:
        assert not accepts(bounded, text), text


def test_a_length_that_a_format_implies_changes_nothing() -> None:
    bounded = compiled({"type": "string", "format": "hostname", "maxLength": 253})
    for label in (60, 61):
        assert accepts(bounded, ".".join(["a" * 63] * 3 + ["b" * label]))
    assert not accepts(bounded, ".".join(["a" * 63] * 3 + ["b" * 62]))


def test_a_length_that_no_automaton_counts_is_refused_with_a_next_step() -> None:
    with pytest.raises(
        GrammarError, match="#/format: 'maxLength' cannot be .*; leave out minLength and maxLength"
    ):
        compiled({"type": "string", "format": "hostname", "minLength": 200, "maxLength": 252})
