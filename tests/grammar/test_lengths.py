"""Strings with a limit of characters: all texts of a pattern, and the texts of a format that people write."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.grammar_protocol import CompiledGrammar, GrammarError
from engine.grammar import language as language_module
from engine.grammar.language import Language
from engine.grammar.regex import Node
from engine.grammar.rules import ROOT, inlined
from engine.grammar.schema import references
from engine.grammar.schema.layout import Layout
from engine.grammar.schema.texts import SchemaCompiler
from engine.grammar.size import MAX_RANGES, num_ranges
from engine.sampling_params import StructuredOutputsParams
from tests.grammar.test_json_schema import accepts, compiled
from tests.grammar.test_schema_suite import EOS, compiler

LIMITS = [64, 127, 128, 255, 256, 512, 1_024, 2_083]
URLS = [
    "https://www.openstreetmap.org/",
    "https://docs.vllm.ai/en/latest/index.html",
    "https://en.wikipedia.org/wiki/Large_language_model#Inference_optimization",
    "https://user:pw@example.com/",
    "http://ann:p%40ss@host.example:8080/a%20b/c?q=%C3%A9&r=1#top",
    "mailto:ann@example.com",
    "urn:isbn:0451450523",
    "file:///etc/hosts",
    "data:,a",
    "chrome-extension://abcdefgh/page.html",
    "http://h?q",
    "http://h:80#f",
]
RELATIVE = ["a/b", "/a:b", "?q", "#f", "//host/p", "./a:b", "a?b", "a#b", "/?q", "..", "/"]


@cache
def limited(name: str, most: int, least: int = 1) -> CompiledGrammar:
    return compiled({"type": "string", "format": name, "minLength": least, "maxLength": most})


@cache
def unlimited(name: str) -> CompiledGrammar:
    return compiled({"type": "string", "format": name})


def raise_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let automata that only these tests build be large."""
    monkeypatch.setattr(language_module, "MAX_STATES", 500_000)
    monkeypatch.setattr(language_module, "MAX_MEMBERS", 20_000_000)


def in_blocks(name: str, most: int) -> Node:
    """Return `limited` of the format without names of rules."""
    return inlined({**references.rules(), ROOT: references.limited(name, 1, most)})


@pytest.mark.parametrize(
    ("name", "most"),
    [(name, most) for name in references.MOST for most in (LIMITS if name[0] == "u" else (127, 255, 2_083))],
)
def test_usual_references_that_fit_match_with_every_limit(name: str, most: int) -> None:
    texts = URLS + (RELATIVE if name.endswith("reference") else [])
    assert [text for text in texts if not accepts(limited(name, most), text)] == [
        t for t in texts if len(t) > most
    ]
    assert not [text for text in (*texts, "") if accepts(limited(name, 8), text) is not (0 < len(text) <= 8)]


def test_the_empty_reference_matches_unless_a_least_length_excludes_it() -> None:
    for most in LIMITS:
        assert accepts(limited("uri-reference", most, 0), "") and not accepts(
            limited("uri-reference", most), ""
        )


@pytest.mark.parametrize(
    "long",
    [
        "https://a.example/{}",
        "https://a.example/?q={}",
        "https://a.example/#{}",
        "https://a.example/p/{}?q=1#f",
    ]
    + ["https://u:p@a.example:80/{}", "mailto:{}", "data:,{}"],
)
def test_each_part_may_be_almost_as_long_as_the_limit(long: str) -> None:
    for most, least_long in [(127, 127), (255, 160), (512, 370), (1_024, 820), (2_083, 820)]:
        for filler in ("p", "%20"):
            room = least_long - len(long.format(""))
            text = long.format(filler * (room // len(filler)))
            assert accepts(limited("uri", most), text), (most, text)
            assert accepts(limited("uri-reference", most), text), (most, text)
            assert not accepts(limited("uri", most), text + "p" * most)


def test_hosts_user_info_and_first_segments_may_be_long() -> None:
    for text in (f"https://{'h' * 253}/", f"https://{'u' * 180}@h/", f"https://h{'%20' * 80}/"):
        assert accepts(limited("uri", 512), text)
    assert accepts(limited("uri-reference", 512), "s" * 400 + "/p")


@pytest.mark.parametrize("most", [256, 300])
def test_blocks_hold_texts_of_the_format_of_at_most_the_limit(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    raise_limits(monkeypatch)
    blocks = Language.of(in_blocks("uri", most))
    longest = blocks.longest()
    assert longest is not None and most - 20 <= longest <= most
    assert (blocks - Language.of(references.countable("uri"))).is_empty()


@pytest.mark.parametrize("name", ["uri", "uri-reference"])
def test_blocks_hold_all_texts_that_are_counted_below_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raise_limits(monkeypatch)
    counted = Language.of(references.countable(name)).minimal().of_length(1, references.MOST_COUNTED)
    assert (counted - Language.of(in_blocks(name, references.LEAST_IN_BLOCKS))).is_empty()


PIECES = [
    "https:",
    "a:",
    "//",
    "/",
    "u:p@",
    "@",
    "host.example",
    ":80",
    "?",
    "#",
    "%20",
    "a",
    "p" * 13,
    "é",
    "-",
    ".",
]


@settings(deadline=None)
@given(
    st.sampled_from(["uri", "uri-reference", "email", "hostname"]),
    st.lists(st.sampled_from(PIECES), max_size=30).map("".join),
    st.sampled_from(LIMITS),
)
def test_what_a_limit_allows_a_larger_one_does_and_the_format(name: str, text: str, most: int) -> None:
    if accepts(limited(name, most), text):
        assert 1 <= len(text) <= most
        assert all(accepts(limited(name, larger), text) for larger in LIMITS if larger > most)
        assert accepts(unlimited(name), text) or name == "hostname"  # below a limit, of more than 8 labels


def test_hosts_that_match_below_a_limit_match_with_every_larger_one() -> None:
    for host in (".".join(["a"] * 20), ".".join(["a" * 62] * 4), ".".join(["a" * 48] * 5)):
        limits = range(len(host) + 1, 260, 9)
        matching = [accepts(limited("hostname", most), host) for most in limits]
        assert matching == sorted(matching) and matching[-1]


@pytest.mark.parametrize("most", [11, 50, 500, 6_000])
def test_a_pattern_is_never_shortened(most: int) -> None:
    grammar = compiled({"type": "string", "pattern": "^([a-z]+ ?)+$", "maxLength": most})
    words = ("ab " * most)[:most]
    assert accepts(grammar, words) and not accepts(grammar, words + "a")


@pytest.mark.parametrize(
    ("tests", "keyword", "length"),
    [
        ({"pattern": "^([a-z]+ ?)+$"}, "maxLength", 11_000),
        ({"pattern": "^.+ .+$"}, "maxLength", 9_000),
        ({"format": "uri", "minLength": 9}, "maxLength", 2_083),
        ({"format": "email"}, "minLength", 300),
        ({"format": "uri-template", "pattern": "a"}, "minLength", 5_000),
        ({"pattern": r"\w"}, "minLength", 5_000),
    ],
)
def test_a_length_that_cannot_be_counted_is_refused_with_one_that_can(
    tests: dict[str, Any], keyword: str, length: int
) -> None:
    schema = {"type": "string", **tests}
    with pytest.raises(
        GrammarError, match=rf"'{keyword}' (is|makes the schema) too large.*leave it out, or make it at most"
    ) as refused:
        compiled({**schema, keyword: length})
    [largest] = re.findall("at most ([0-9,]+)", str(refused.value))
    assert compiled({**schema, keyword: int(largest.replace(",", ""))})


@pytest.mark.parametrize("tests", [{"pattern": "^.+ .+$"}, {"pattern": "[ab]{3}$"}, {"format": "uri"}])
def test_no_length_is_advised_that_a_least_length_excludes(tests: dict[str, Any]) -> None:
    with pytest.raises(GrammarError, match="; leave out minLength and maxLength$"):
        compiled({"type": "string", **tests, "minLength": 1_500, "maxLength": 2_000})


def properties(make: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {"type": "string", **make(i)} for i in range(30)}}


@pytest.mark.parametrize("backend", ["dfa", "auto"])
def test_many_addresses_with_large_limits_share_one_automaton(backend: str) -> None:
    schema = properties(lambda i: {"format": "email", "maxLength": 500 + i})
    rules = SchemaCompiler(schema, Layout(), None).rules()
    assert sum(name.startswith("s") and name != "space" for name in rules) == 1
    schema["properties"] = dict(list(schema["properties"].items())[:4])
    grammar = compiler(backend).compile(StructuredOutputsParams(json=schema))
    for size in (254, 255):
        value = json.dumps({"p0": "a@" + "b" * (size - 2)}).encode()
        assert grammar.start().accept_tokens(list(value)) is (size == 254)


@pytest.mark.parametrize("backend", ["dfa", "auto"])
def test_the_automata_of_a_schema_share_one_budget(backend: str) -> None:
    schema = properties(lambda i: {"format": "email", "maxLength": 100 + i})
    with pytest.raises(
        GrammarError,
        match=r"at #/properties/p\d+: 'maxLength' makes the schema too large: .*at most",
    ):
        compiler(backend).compile(StructuredOutputsParams(json=schema))
    some = {**schema, "properties": dict(list(schema["properties"].items())[:6])}
    rules = SchemaCompiler(some, Layout(), None).rules()
    assert 0 < sum(num_ranges(node) for name, node in rules.items() if name.startswith("s")) <= MAX_RANGES
    assert compiler(backend).compile(StructuredOutputsParams(json=some))


def test_many_urls_compile_with_xgrammar_and_are_refused_by_dfa_with_a_place() -> None:
    schema = properties(lambda i: {"format": "uri", "maxLength": 2_083})
    with pytest.raises(
        GrammarError, match="most of them at #/properties/p0; make the schema smaller, or use the"
    ):
        compiler("dfa").compile(StructuredOutputsParams(json=schema))
    value = {f"p{i}": "https://a.example/" + "p" * 500 for i in range(30)}
    grammar = compiler("auto").compile(StructuredOutputsParams(json=schema))
    assert grammar.start().accept_tokens(list(json.dumps(value).encode()))


EMPTY = [
    {"type": "string", "pattern": "^$", "maxLength": 5},
    {"type": "object", "propertyNames": {"pattern": "^$", "maxLength": 3}},
    {
        "anyOf": [
            {"type": "string", "pattern": "^a", "allOf": [{"pattern": "^b"}], "maxLength": 9},
            {"type": "null"},
        ]
    },
]


@pytest.mark.parametrize("schema", EMPTY, ids=json.dumps)
@pytest.mark.parametrize("backend", ["auto", "dfa"])
def test_a_pattern_that_only_the_empty_string_or_nothing_fits_has_a_length(
    schema: dict[str, Any], backend: str
) -> None:
    text = {"string": '""', "object": '{"": 1}'}.get(schema.get("type", ""), "null")
    grammar = compiler(backend).compile(StructuredOutputsParams(json=schema))
    assert grammar.start().accept_tokens([*text.encode(), EOS])


@pytest.mark.parametrize("most", [253, 500])
@pytest.mark.parametrize("beside", [{"pattern": "a"}, {"minLength": 5}])
def test_a_host_of_any_length_may_have_another_keyword_beside_its_limit(
    beside: dict[str, Any], most: int
) -> None:
    grammar = compiled({"type": "string", "format": "hostname", "maxLength": most, **beside})
    for host in ("a.example", ".".join(["a" * 60] * 4)):
        assert accepts(grammar, host)
    assert not accepts(grammar, "b.c") and not accepts(grammar, "a" * 64)
