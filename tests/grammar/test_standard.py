"""Regression tests for causes that the standard's suite found (json-schema-org/JSON-Schema-Test-Suite)."""

from __future__ import annotations

from typing import Any

import pytest

from engine.core.grammar_protocol import GrammarError
from engine.sampling_params import StructuredOutputsParams
from tests.grammar.test_schema_suite import accepts, compiler

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"


def compiled(schema: Any) -> Any:
    return compiler("auto", disable_additional_properties=False).compile(StructuredOutputsParams(json=schema))


ID_BESIDE_REF = {
    "$id": "http://localhost/base/",
    "definitions": {
        "text": {"$id": "http://localhost/foo.json", "type": "string"},
        "number": {"$id": "foo.json", "type": "number"},
    },
    "allOf": [{"$id": "http://localhost/", "$ref": "foo.json"}],
}


def test_an_id_beside_a_ref_needs_a_draft_because_each_draft_resolves_it_differently() -> None:
    with pytest.raises(
        GrammarError, match=r"#/allOf/0: '\$ref' is not supported by.*say which draft in \$sch"
    ):
        compiled(ID_BESIDE_REF)
    old, new = (compiled({"$schema": draft, **ID_BESIDE_REF}) for draft in (DRAFT_7, DRAFT_2020))
    assert accepts(old, 1) and not accepts(old, "a")
    assert accepts(new, "a") and not accepts(new, 1)
    root = {"$id": "http://localhost/base/", "$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}
    assert accepts(compiled(root), 1) and not accepts(compiled(root), "a")


@pytest.mark.parametrize("draft", [DRAFT_7, DRAFT_2020])
def test_keywords_of_content_are_annotations(draft: str) -> None:
    grammar = compiled(
        {"$schema": draft, "contentMediaType": "application/json", "contentEncoding": "base64"}
    )
    assert accepts(grammar, "%") and accepts(grammar, 1)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (  # what two options describe at once
            {
                "anyOf": [
                    {"properties": {"a": {"const": 1}}, "required": ["a"]},
                    {"properties": {"b": {"const": 2}}, "required": ["b"]},
                ],
                "unevaluatedProperties": False,
            },
            [{"a": 1}, {"b": 2}, {"a": 1, "b": 2}],
            [{}, {"a": 1, "b": 3}, {"a": 1, "c": 1}],
        ),
        (  # beside an option that allows everything
            {"anyOf": [{"items": {"type": "string"}}, True], "unevaluatedItems": {"type": "boolean"}},
            [["a"], [True], []],
            [["a", True], [1]],
        ),
        (  # `if` alone rejects nothing, but it describes
            {"if": {"prefixItems": [{"const": 1}]}, "unevaluatedItems": False},
            [[1], []],
            [[2], [1, 1]],
        ),
    ],
)
def test_unevaluated_leaves_out_what_any_option_describes(
    schema: Any, good: list[Any], bad: list[Any]
) -> None:
    grammar = compiled(schema)
    assert all(accepts(grammar, value) for value in good)
    assert not any(accepts(grammar, value) for value in bad)


def test_a_number_has_as_many_digits_as_its_bounds() -> None:
    grammar = compiled({"minimum": -(2**64), "maximum": 2**64 - 1})
    assert all(accepts(grammar, value) for value in [2**64 - 1, -(2**64), 18446744073709551600, 0.5])
    assert not any(accepts(grammar, value) for value in [2**64, -(2**64) - 1, 10**20])
    assert accepts(compiled({"type": "integer", "minimum": 10**30, "multipleOf": 10}), 10**30 + 10)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            {"choice": [str(i) for i in range(100_000)]},
            "choice has 100,000 alternatives of 488,890 characters",
        ),
        (
            {"choice": ["a" * 200_000]},
            "1 alternative of 200,000 characters, the maximum is 10,000 of 150,000",
        ),
        (
            {"grammar": "root ::= " + " | ".join(['"a"'] * 10_001)},
            "grammar has 10,001 alternatives, the maximum",
        ),
    ],
)
def test_alternatives_that_take_long_to_compile_are_refused_by_count_and_limit(asked: Any, says: str) -> None:
    with pytest.raises(GrammarError, match=says):
        compiler("auto").compile(StructuredOutputsParams(**asked))


REFUSED = [
    *(
        {"type": "string", "pattern": pattern}
        for pattern in ("a++", "a{3,2}", "*a", "a^b", "(a", "a)", "[a", "[z-a]")
    ),
    *(
        {"type": "string", "pattern": pattern}
        for pattern in ("a\\", r"\u12", r"\p{L}", r"\bfoo", "a{1,999999}", "(" * 101)
    ),
    {"$ref": "#/$defs/x"},
    {"$ref": "#"},
    {"$id": "a:b", "$defs": {"x": {"$id": "a:b"}}},
    {"enum": [1], "type": "string"},
    {"type": "number", "multipleOf": 0.123456789},
    {"type": "number", "minimum": 1e-30},
    {"type": "object", "minProperties": 3},
    {"type": "object", "patternProperties": {name: {} for name in "abcdef"}},
    {"type": "array", "uniqueItems": True},
    {"type": "string", "format": "hostname", "minLength": 200, "maxLength": 252},
    {"type": "string", "pattern": "(a?){5000}"},
]


@pytest.mark.parametrize("schema", REFUSED, ids=str)
def test_a_refusal_names_the_place_and_what_to_do(schema: Any) -> None:
    with pytest.raises(GrammarError, match=r"^JSON schema at #.*(; |, as in )") as caught:
        compiled(schema)
    named = schema.keys() - {"type", "$defs"}
    assert schema == {"$ref": "#"} or any(name in str(caught.value) for name in {*named, "no value"})
