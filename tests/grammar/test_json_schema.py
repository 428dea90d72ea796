"""JSON schemas as patterns: what matches is valid, and what is not supported is refused with its place."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.core.grammar_protocol import GrammarError
from engine.grammar import xgrammar_backend
from engine.grammar.dfa import DEAD, DFA, START
from engine.grammar.json_schema import schema_tree
from engine.grammar.schema.integers import integers
from engine.grammar.schema.numbers import number_node
from engine.grammar.schema.shapes import Number

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 10},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b", 3, None]}, "maxItems": 3},
        "partner": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/nick"}]},
    },
    "required": ["age"],
    "$defs": {"nick": {"type": "string", "pattern": '^[a-z"]+$'}},
}
NOT_SUPPORTED = "is not supported by any backend (dfa, xgrammar)"
COUNTS = [
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minContains",
    "maxContains",
    "minProperties",
    "maxProperties",
]
FIVE_CHOICES = [{"anyOf": [{"required": [name + letter]} for letter in "abcd"]} for name in "vwxyz"]
TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {"tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}}},
}


def compiled(schema: Any, **options: Any) -> DFA:
    return DFA(schema_tree(schema, **options))


def accepts(dfa: DFA, value: Any, **style: Any) -> bool:
    return dfa.matches(json.dumps(value, ensure_ascii=False, **style).encode())


def random_text(dfa: DFA, rng: random.Random, length: int = 200) -> bytes | None:
    """Random bytes that match, ending where they may; None if they have not ended after `length`."""
    state, text = START, bytearray()
    while len(text) < length:
        if dfa.is_accepting(state) and (
            rng.random() < 0.3 or not any(dfa.step(state, byte) for byte in range(256))
        ):
            return bytes(text)
        follow = [byte for byte in range(256) if dfa.step(state, byte) != DEAD]
        closing = [byte for byte in follow if chr(byte) in '"}],:']
        byte = rng.choice(closing if closing and rng.random() < 0.6 else follow)
        text.append(byte)
        state = dfa.step(state, byte)
    return None


BOUNDS = st.none() | st.integers(-30, 300)
LEAVES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.sampled_from(
        [{"type": "boolean"}, {"type": "null"}, {"const": {"a": [1, "é"]}}, {"type": ["null", "integer"]}]
    ),
    st.lists(st.sampled_from(["x", 'q"', 1, 2.5, None, True, "東"]), min_size=1, max_size=3).map(
        lambda v: {"enum": v}
    ),
    st.sampled_from(["^a+$", "b", '^"[^x]$', r"\d{2}", "^$", "a|^b$"]).map(
        lambda p: {"type": "string", "pattern": p}
    ),
    st.sampled_from(["date", "time", "date-time", "uuid", "ipv4", "email"]).map(
        lambda f: {"type": "string", "format": f}
    ),
    st.builds(
        lambda a, n: {"type": "string", "minLength": a, "maxLength": a + n},
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    st.builds(
        lambda kind, low, size, above: {
            "type": kind,
            **({} if low is None else {"exclusiveMinimum" if above else "minimum": low}),
            **({} if size is None else {"maximum": (low or 0) + abs(size) + 2}),
        },
        st.sampled_from(["integer", "number"]),
        BOUNDS,
        BOUNDS,
        st.booleans(),
    ),
)


def objects(schemas: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from(["a", "b", "long name", 'quo"te', "é"])
    return st.builds(
        lambda properties, chosen: {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name in chosen],
            "additionalProperties": False,
        },
        st.dictionaries(names, schemas, max_size=3),
        st.sets(names),
    )


SCHEMAS = st.recursive(
    LEAVES,
    lambda schemas: st.one_of(
        objects(schemas),
        st.builds(
            lambda items, least, more: {
                "type": "array",
                "items": items,
                "minItems": least,
                "maxItems": least + more,
            },
            schemas,
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        st.builds(
            lambda firsts, items, least: {
                "type": "array",
                "prefixItems": firsts,
                "items": items,
                "minItems": least,
            },
            st.lists(schemas, min_size=1, max_size=2),
            schemas | st.just(False),
            st.integers(0, 1),
        ),
        st.lists(schemas, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
        schemas.map(lambda values: {"type": "object", "additionalProperties": values}),
    ),
    max_leaves=5,
)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.integers(0, 2**32), st.booleans())
def test_every_text_that_matches_is_json_that_validates(
    schema: dict[str, Any], seed: int, compact: bool
) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    dfa = compiled(schema, compact=compact)
    rng = random.Random(seed)
    for _ in range(4):
        text = random_text(dfa, rng)
        if text is not None:
            value = json.loads(text)
            jsonschema.validate(value, schema, jsonschema.Draft202012Validator)
            if compact and b"\\" not in text and not isinstance(value, float):
                assert b"\n" not in text


@pytest.mark.parametrize(
    "value",
    [
        {"name": "bo", "age": 3},
        {"age": 120, "tags": ["a", 3, None], "partner": None},
        {"age": 0, "partner": 'ab"c'},
        {"name": "東京", "age": 7, "tags": []},
    ],
)
def test_valid_json_in_the_schemas_order_matches_in_any_layout(value: Any) -> None:
    assert accepts(compiled(PERSON), value) and accepts(compiled(PERSON), value, indent=4)


@pytest.mark.parametrize(
    "value", [{"name": "a, b: c", "age": 3, "tags": ["a", 3]}, {"age": 0, "partner": None}]
)
def test_a_compact_layout_has_no_whitespace_between_tokens(value: Any) -> None:
    for schema in (PERSON, {}):  # with properties, and values of any type
        dfa = compiled(schema, compact=True)
        assert accepts(dfa, value, separators=(",", ":"))
        assert not any(
            accepts(dfa, value, separators=pair) for pair in ((", ", ":"), (",", ": "), (" ,", ":"))
        )
        assert not accepts(dfa, value, indent=4)


@pytest.mark.parametrize(
    "value",
    [
        {"name": "", "age": 3},
        {"age": 121},
        {"tags": [], "age": 1},
        {"age": 1, "x": 1},
        {"age": -1},
        {},
        {"age": 1.5},
    ]
    + [{"age": 1, "tags": [4]}, {"age": 1, "tags": ["a"] * 4}, {"name": "12345678901", "age": 1}],
)
def test_what_is_invalid_or_in_another_order_does_not_match(value: Any) -> None:
    assert not accepts(compiled(PERSON), value)


@pytest.mark.parametrize("required", [[], ["b"], ["a", "c"], ["a", "b", "c"]])
def test_optional_properties_come_and_go_with_their_commas(required: list[str]) -> None:
    schema = {"type": "object", "properties": {name: {"const": 1} for name in "abc"}, "required": required}
    dfa = compiled(schema, compact=True)
    for bits in range(8):
        value = {name: 1 for index, name in enumerate("abc") if bits >> index & 1}
        assert accepts(dfa, value, separators=(",", ":")) == (set(required) <= set(value))


def test_a_value_of_any_type_nests_so_deep_and_no_deeper() -> None:
    dfa = compiled({})
    assert all(accepts(dfa, value) for value in [1, "a", None, [], {}, {"a": [1, {"b": "c"}]}, [[[]]]])
    assert not accepts(dfa, [[[[[]]]]])


@pytest.mark.parametrize("seed", range(60))
def test_number_patterns_hold_exactly_the_numbers_between_their_bounds(seed: int) -> None:
    rng = random.Random(seed)
    low, high = (
        rng.choice([None, 0, -1, 1, rng.randint(-30, 30), rng.randint(-2000, 2000)]) for _ in range(2)
    )
    if low is not None and high is not None and low >= high:
        low, high = high - 1, low
    dfa = DFA(integers(low, high))
    near = [bound + off for bound in (low, high) if bound is not None for off in (-1, 0, 1)]
    for number in [*near, *range(-20, 20), *(rng.randint(-3000, 3000) for _ in range(50))]:
        fits = (low is None or number >= low) and (high is None or number <= high)
        assert dfa.matches(str(number).encode()) == fits, (low, high, number)
    above, below = rng.random() < 0.5, rng.random() < 0.5
    tenths = rng.choice([1, 4, 10])
    low, high = (None if bound is None else Fraction(bound, tenths) for bound in (low, high))
    dfa = DFA(number_node(Number(low, high, above, below)))
    offsets = [Fraction(text) for text in ("-1", "-0.25", "0", "0.000001", "0.5")]
    near = [bound + off for bound in (low, high, 0) if bound is not None for off in offsets]
    for number in [
        *near,
        *(Fraction(rng.randint(-(10**7), 10**7), 10 ** rng.randint(3, 6)) for _ in range(50)),
    ]:
        text = f"{float(number):f}".rstrip("0").rstrip(".")
        if number.denominator != 1 and Fraction(text) != number:
            continue
        fits = low is None or (number > low if above else number >= low)
        fits &= high is None or (number < high if below else number <= high)
        assert dfa.matches(text.encode()) == fits, (low, high, above, below, text)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (
            TREE,
            "#/$defs/tree/properties/left: '$ref' is not supported by the backend dfa: it leads back here",
        ),
        (
            {"$ref": "https://example.com/s.json"},
            f"#: '$ref' {NOT_SUPPORTED}: https://example.com/s.json is not",
        ),
        ({"$ref": "#/$defs/x"}, "#/$ref: #/$defs/x is not in this schema"),
        ({"$ref": "#"}, "#: its references lead back to it"),
        ({"$dynamicRef": "#a"}, f"#: '$dynamicRef' {NOT_SUPPORTED}"),
        (
            {"type": "array", "items": {"type": "array", "uniqueItems": True}},
            f"#/items: 'uniqueItems' {NOT_SUPPORTED}: its items would have to be compared",
        ),
        ({"type": "object", "minProperties": 2}, f"#: 'minProperties' {NOT_SUPPORTED}"),
        ({"not": {"format": "date"}}, f"#/not: 'format' {NOT_SUPPORTED}"),
        ({"oneOf": [{"format": "date"}, {"format": "time"}]}, f"#/oneOf/1: 'format' {NOT_SUPPORTED}"),
        (
            {"type": "number", "multipleOf": 0.12345678},
            f"#: {NOT_SUPPORTED[3:]}: multipleOf 0.12345678 needs",
        ),
        (
            {"type": "number", "minimum": 1e50},
            f"#: {NOT_SUPPORTED[3:]}: minimum 1",
        ),
        ({"allOf": FIVE_CHOICES}, f"#: 'allOf' {NOT_SUPPORTED}: choices multiply"),
        ({"type": "text"}, "#/type: 'text' is not a JSON type"),
        (
            {"type": "string", "pattern": "(a"},
            f"#/pattern: the pattern {NOT_SUPPORTED}: regex '(a': this paren",
        ),
        ({"type": "string", "pattern": r"a(?=b)"}, f"#/pattern: the pattern {NOT_SUPPORTED}: regex 'a(?=b)'"),
        ({"type": "string", "pattern": 3}, "#/pattern: must be text, got 3"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "#: no value satisfies it"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "#: no value satisfies it"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "#: no value satisfies it"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "#: no value satisfies it"),
        (False, "#: no value satisfies it"),
        ({"type": "array", "maxItems": -1}, "#/maxItems: must be an integer of at least 0"),
        *(
            ({keyword: value, "contains": True}, f"#/{keyword}: must be an integer of at least 0")
            for keyword in COUNTS
            for value in (float("nan"), float("inf"), float("-inf"))
        ),
        ({"enum": []}, "#/enum: must be a list of at least one value"),
        ({"type": "object", "properties": []}, "#/properties: must be an object of schemas"),
        ({"items": 3}, "#/items: a schema is an object, true or false"),
        ({"$defs": {"a": {"$id": "x"}, "b": {"$id": "x"}}}, "#/$defs/b: $id 'x' is also that of #/$defs/a"),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_its_place_keyword_and_backend(
    schema: Any, path: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        compiled(schema)
    assert f"JSON schema at {path}" in str(caught.value)


def test_one_of_is_taken_where_no_value_fits_two() -> None:
    dfa = compiled({"oneOf": [{"type": "integer"}, {"const": "a"}, {"enum": ["b", None]}]})
    assert all(accepts(dfa, value) for value in [3, "a", "b", None])


@pytest.mark.parametrize("is_installed", [True, False])
def test_a_recursive_schema_is_refused_with_the_setting_and_the_command_that_help(
    is_installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xgrammar_backend, "is_installed", lambda: is_installed)
    with pytest.raises(GrammarError) as refused:
        compiled(TREE)
    said = str(refused.value)
    assert 'structured_outputs_config={"backend": "auto"}' in said
    assert ("pip install -e '.[structured]', and set structured" in said) is not is_installed


@pytest.mark.parametrize("keyword", ["minItems", "minLength", "minProperties"])
def test_a_lower_bound_that_no_output_reaches_is_refused_with_its_place(keyword: str) -> None:
    kind = {"minItems": "array", "minLength": "string", "minProperties": "object"}[keyword]
    with pytest.raises(
        GrammarError, match=f"#/properties/a/{keyword}: must be at most 100,000, got 1000000000"
    ):
        compiled({"type": "object", "properties": {"a": {"type": kind, keyword: 10**9}}, "required": ["a"]})


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"type": "string", "minLength": 200_000}, {"type": "integer"}]},
        {"anyOf": [{"type": "array", "not": {"maxItems": 200_000}}, {"type": "integer"}]},
        {"type": ["object", "integer"], "minProperties": 200_000},
    ],
)
def test_a_lower_bound_that_no_output_reaches_leaves_the_other_values(schema: dict[str, Any]) -> None:
    assert accepts(compiled(schema), 7)


def test_a_negated_lower_bound_is_no_lower_bound() -> None:
    grammar = compiled({"type": "array", "items": {"enum": [1]}, "maxItems": 3, "not": {"minItems": 200_000}})
    assert accepts(grammar, [1, 1]) and not accepts(grammar, [1, 1, 1, 1])
