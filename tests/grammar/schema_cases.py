"""Keywords of JSON Schema to combine, and values to try on them."""

from __future__ import annotations

from typing import Any

DRAFTS = {
    "draft7": "http://json-schema.org/draft-07/schema#",
    "2020-12": "https://json-schema.org/draft/2020-12/schema",
}
DEFINITIONS = {"$defs": {"small": {"type": "integer", "maximum": 9}, "a/b": {"enum": ["a", 1]}, "free": {}}}

KEYWORDS: list[dict[str, Any]] = [
    {"type": "integer"},
    {"type": "number"},
    {"type": "string"},
    {"type": "array"},
    {"type": "object"},
    {"type": ["string", "null"]},
    {"type": ["object", "boolean", "integer"]},
    {"enum": ["a", 1, None, 7, "2024-02-30", [1], {"a": 1}]},
    {"enum": [True, "foo", 1.5]},
    {"const": 1},
    {"const": {"a": 1, "b": 2}},
    {"const": [1, 2]},
    {"minimum": 1},
    {"maximum": 7.25},
    {"exclusiveMinimum": 1},
    {"exclusiveMaximum": 12},
    {"multipleOf": 3},
    {"multipleOf": 0.5},
    {"minLength": 2},
    {"maxLength": 3},
    {"pattern": "^a"},
    {"pattern": r"^\S+$"},
    {"pattern": r"\d{2}|b$"},
    {"pattern": "^[^a-c]*$"},
    {"format": "date"},
    {"format": "ipv4"},
    {"format": "uuid"},
    {"format": "color"},
    {"items": {"type": "integer"}},
    {"items": {"minLength": 1, "maximum": 2}},
    {"minItems": 1},
    {"maxItems": 1},
    {"contains": {"const": 1}},
    {"contains": {"type": "string"}},
    {"properties": {"a": {"type": "integer"}, "b": {"maximum": 2}}},
    {"properties": {"enum": {"type": "string"}, 'quo"te': {"minimum": 1}}},
    {"required": ["a"]},
    {"required": ["b", 'quo"te']},
    {"additionalProperties": False},
    {"additionalProperties": {"type": "integer"}},
    {"patternProperties": {"^[ab]$": {"maximum": 5}}},
    {"propertyNames": {"maxLength": 1}},
    {"minProperties": 1},
    {"maxProperties": 1},
    {"allOf": [{"type": ["integer", "string"]}, {"minimum": 2}]},
    {"allOf": [{"properties": {"a": {"minimum": 1}}}, {"required": ["b"]}]},
    {"anyOf": [{"type": "string", "minLength": 2}, {"minimum": 3, "maximum": 8}, {"required": ["a"]}]},
    {"oneOf": [{"type": "integer"}, {"type": "string"}, {"required": ["a"]}]},
    {"oneOf": [{"minimum": 2}, {"maximum": 5}, {"type": "string"}]},
    {"not": {"type": ["integer", "null"]}},
    {"not": {"required": ["a"]}},
    {"not": {"enum": ["a", 1, [1, 2], {"a": 1}]}},
    {"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"not": {"const": 1}}},
    {"$ref": "#/$defs/small"},
    {"$ref": "#/$defs/a~1b"},
    {"$ref": "#/$defs/free"},
    {"title": "T", "strict": True, "x-order": 1, "example": 3, "nullable": True, "contentEncoding": "base64"},
    {"$comment": "none", "default": {"a": 1}, "deprecated": True, "discriminator": {"propertyName": "a"}},
]
NEW_KEYWORDS: list[dict[str, Any]] = [
    {"prefixItems": [{"type": "string"}, {"maximum": 1}]},
    {"contains": {"type": "integer"}, "minContains": 2},
    {"contains": {"type": "integer"}, "maxContains": 1},
    {"dependentRequired": {"a": ["b"]}},
    {"dependentSchemas": {"a": {"maxProperties": 1}}},
    {"unevaluatedProperties": False},
    {"unevaluatedItems": {"type": "integer"}},
]
OLD_KEYWORDS: list[dict[str, Any]] = [
    {"items": [{"type": "string"}, {"maximum": 1}], "additionalItems": {"type": "integer"}},
    {"dependencies": {"a": ["b"], "b": {"maxProperties": 2}}},
]
FRAGMENTS = {"draft7": KEYWORDS + OLD_KEYWORDS, "2020-12": KEYWORDS + NEW_KEYWORDS}
REFUSED: list[dict[str, Any]] = [
    {"uniqueItems": True},
    {"minProperties": 3},
    {"$ref": "https://example.com/other.json"},
    {"$dynamicRef": "#node"},
    {"not": {"format": "date"}},
    {"format": "idn-hostname"},
    {"pattern": r"(a)\1"},
]
"""Schemas that no backend enforces."""

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 5, 7, 9, 12, 100, 1.5, 2.25, -0.5, 6.0625,
    "", "a", "b", "ab", "abc", "abcd", "foo", "12", "a b", "a\u00a0b", "\x1f", "\n", "$", "a$b", 'q"', "東京", "é",
    "2024-02-29", "2023-02-29", "2024-02-30", "127.0.0.1", "127.0.0.256", "123e4567-e89b-12d3-a456-426614174000",
    [], [1], [2], [1, 2], [1, 1], ["a"], ["a", 1], ["", 3], ["a", 1, 5], ["a", "b"], [[1]], [None, True], [1, "a", 1],
    {}, {"a": 1}, {"a": 0}, {"a": "x"}, {"b": 2}, {"b": 9}, {"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3},
    {"a": {"a": 1}},
    {"foo": 1}, {"enum": "x"}, {"enum": "\x1f"}, {"enum": 1},
    {'quo"te': 0}, {"b": 1, 'quo"te': 1}, {"a": 1, "foo": "x"},
]  # fmt: skip
