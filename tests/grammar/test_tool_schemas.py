"""Tools as they come from pydantic, OpenAPI and MCP: each forces a call, alone and among others."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from engine.core.grammar_protocol import GrammarError
from engine.frontend.tool_choice import ToolPlan
from engine.grammar.schema.forms import Expander
from engine.grammar.schema.places import Place
from engine.grammar.schema.shapes import Forms
from engine.sampling_params import StructuredOutputsParams
from tests.grammar.test_schema_suite import accepts, compiler
from tests.grammar.tool_schemas import Order, schemas

SCHEMAS = schemas()
DATE_TIME = {"type": "string", "format": "date-time"}
RECURSIVE = {"pydantic_Node", "pydantic_sum", "tree"}
ADDRESS = {"street": "1-2", "city": "Kyoto", "postcode": "600-8216"}
CUSTOMER = {"id": "123e4567-e89b-12d3-a456-426614174000", "address": ADDRESS, "billing": None}
ORDER = {
    "lines": [{"itemTitle": "Silver Harbor", "copies": 2, "price": 480.5, "size": "small"}],
    "customer": CUSTOMER,
    "notes": {"gift": "yes", "floor": 3},
    "placed": "2026-11-24T10:17:00Z",
}


def forced(*names: str) -> Any:
    tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMAS[name]}} for name in names]
    return ToolPlan.of(tools, "required").call_schema


def compiled(schema: Any, backend: str = "auto") -> Any:
    return compiler(backend).compile(StructuredOutputsParams(json=schema))


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def test_there_are_sixty_and_more_of_them() -> None:
    assert len(SCHEMAS) == 68
    for schema in SCHEMAS.values():
        assert jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_tool_compiles_alone(name: str) -> None:
    compiled(forced(name))
    if name in RECURSIVE:
        with pytest.raises(GrammarError, match=r"'\$ref' is not supported by the backend dfa"):
            compiled(forced(name), "dfa")


def test_options_of_one_of_that_cannot_be_negated_are_told_apart_by_what_they_require() -> None:
    """As Google's calendar has them: a time or a date, both objects open."""
    when = {
        "oneOf": [
            {"type": "object", "required": ["dateTime"], "properties": {"dateTime": DATE_TIME, "zone": {}}},
            {
                "type": "object",
                "required": ["date"],
                "properties": {"date": {"type": "string", "format": "date"}},
            },
        ]
    }
    both = {"dateTime": "2026-11-24T10:17:00Z", "date": "2026-11-24"}
    for schema in (when, {"allOf": [when, {"properties": {"date": {}, "dateTime": {}}}]}):
        for settings in ({}, {"disable_additional_properties": False}):
            grammar = compiler("auto", **settings).compile(StructuredOutputsParams(json=schema))
            assert accepts(grammar, {"dateTime": both["dateTime"]}) and accepts(
                grammar, {"date": both["date"]}
            )
            assert not any(
                accepts(grammar, value) for value in (both, {}, {"date": "2026-02-30"}, {"dateTime": "x"})
            )
    same = {"oneOf": [{"type": "object", "required": ["a"], "properties": {"a": {"format": "date"}}}] * 2}
    with pytest.raises(GrammarError, match="'format' is not supported by any backend"):
        compiled(same)


def test_a_recursive_option_is_searched_once_for_what_cannot_be_negated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    negative = Expander.negative

    def counted(self: Expander, place: Place) -> Forms:
        calls.append(place.path)
        return negative(self, place)

    monkeypatch.setattr(Expander, "negative", counted)

    def num_calls(children: int) -> int:
        node = {"type": "object", "properties": {f"p{i}": {"$ref": "#/$defs/n"} for i in range(children)}}
        options = [
            {"type": "object", "required": ["a"], "properties": {"a": DATE_TIME}},
            {"type": "object", "required": ["b"], "properties": {"b": {"$ref": "#/$defs/n"}, "c": DATE_TIME}},
        ]
        del calls[:]
        compiled({"$defs": {"n": node}, "oneOf": options})
        return len(calls)

    assert num_calls(12) < 3 * num_calls(6)


@pytest.mark.parametrize("first", range(0, 68, 6))
def test_tools_compile_together(first: int) -> None:
    names = list(SCHEMAS)[first : first + 6]
    grammar = compiled(forced(*names))
    assert not accepts(grammar, call("unknown", {}))


def test_all_of_them_compile_together() -> None:
    grammar = compiled(forced(*SCHEMAS))
    assert accepts(grammar, call("pydantic_Order", ORDER)) and accepts(grammar, call("no_parameters", {}))


@pytest.mark.parametrize("backend", ["auto", "dfa"])
def test_a_nested_model_among_others_keeps_its_own_definitions(backend: str) -> None:
    """Both tools define `Address`, differently; each reference finds the definition beside it."""
    address = {"type": "string", "enum": ["here"]}
    other = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/Address"}},
        "$defs": {"Address": address},
    }
    SCHEMAS["other"] = other
    try:
        grammar = compiled(forced("pydantic_Order", "other"), backend)
    finally:
        del SCHEMAS["other"]
    Order.model_validate(ORDER)
    assert accepts(grammar, call("pydantic_Order", ORDER))
    assert accepts(grammar, call("other", {"at": "here"}))
    assert not accepts(grammar, call("other", {"at": ADDRESS}))
    for place, value in [("postcode", "6008216"), ("city", ""), ("country", "FR")]:
        wrong = {**ORDER, "customer": {**CUSTOMER, "address": {**ADDRESS, place: value}}}
        assert not accepts(grammar, call("pydantic_Order", wrong))


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("pydantic_pet", {"pet": {"kind": "dog", "good": False}}, {"pet": {"kind": "dog", "lives": 9}}),
        ("pydantic_sizes", {"sizes": ["large", "small"]}, {"sizes": ["large", "large"]}),
        ("pydantic_site", {"site": "https://shop.example/a%20b?c=d#e"}, {"site": ""}),
        ("pydantic_pair", {"pair": [1, "a"]}, {"pair": [1]}),
        ("pydantic_percent", {"percent": 12.5}, {"percent": 12.3}),
        ("pydantic_literal", {"literal": None}, {"literal": False}),
        ("pydantic_by_date", {"by_date": "2024-02-29"}, {"by_date": "2023-02-29"}),
        ("pydantic_Node", {"value": 1, "children": [{"value": 2}]}, {"value": 1, "children": [{}]}),
        ("payment", {"method": {"type": "bank", "iban": "DE1"}}, {"method": {"type": "card", "iban": "DE1"}}),
        ("extended", {"id": 1, "name": "a"}, {"id": 1}),
        ("price", {"amount": 0.5}, {"amount": 0}),
        ("password", {"new": "abcdefG1"}, {"new": "abcdefg1"}),
        ("no_parameters", {}, {"a": 1}),
        ("create_issue", {"owner": "a", "title": "b", "milestone": None}, {"owner": "a"}),
        ("typed_by_hand", {"a": 0, "b": 1}, {"a": -1}),
    ],
)
def test_a_call_has_the_arguments_that_its_schema_allows(name: str, good: Any, bad: Any) -> None:
    grammar = compiled(forced(name, "query"))
    assert accepts(grammar, call(name, good)) and not accepts(grammar, call(name, bad))
    jsonschema.validate(json.loads(json.dumps(good)), SCHEMAS[name]) if name != "price" else None


def test_a_function_may_have_null_parameters_or_a_reference_as_its_schema_of_an_old_draft() -> None:
    nothing = {"type": "function", "function": {"name": "now", "parameters": None}}
    assert accepts(compiled(ToolPlan.of([nothing], "required").call_schema), call("now", {}))
    named = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$ref": "#/definitions/Foo",
        "definitions": {
            "Foo": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        },
    }
    grammar = compiled(
        ToolPlan.of(
            [{"type": "function", "function": {"name": "foo", "parameters": named}}], "required"
        ).call_schema
    )
    assert accepts(grammar, call("foo", {"n": 3})) and not accepts(grammar, call("foo", {"n": "x"}))


def test_a_discriminator_with_a_default_selects_the_model() -> None:
    grammar = compiled(SCHEMAS["pydantic_tagged"])
    assert accepts(grammar, {"tagged": {"kind": "cat", "lives": 3}})
    assert accepts(grammar, {"tagged": {"kind": "parrot", "colours": ["red"]}})
    for pet in ({"kind": "cat", "good": True}, {"kind": "bird", "lives": 3}, {"kind": "fish"}, {}):
        assert not accepts(grammar, {"tagged": pet}), pet
