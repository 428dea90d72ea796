"""Every keyword of JSON Schema alone and in pairs, in two drafts: what a matcher accepts is what a validator accepts.

The values go through the compiled grammar token by token. What may be rejected although it is valid: other orders of
the properties than the schema's.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from itertools import combinations, permutations
from typing import Any

import jsonschema
import pytest

from engine.config.features import StructuredOutputsConfig
from engine.core.grammar_protocol import CompiledGrammar, GrammarError
from engine.grammar.manager import GrammarCompiler
from engine.grammar.vocabulary import Vocabulary
from engine.sampling_params import StructuredOutputsParams
from tests.grammar.schema_cases import DEFINITIONS, DRAFTS, FRAGMENTS, REFUSED, VALUES

EOS = 256
BYTES = Vocabulary([bytes([byte]) for byte in range(256)] + [b""], frozenset({EOS}))
FORMATS = jsonschema.FormatChecker(formats=["date", "ipv4", "uuid"])
VALIDATORS = {"draft7": jsonschema.Draft7Validator, "2020-12": jsonschema.Draft202012Validator}
BACKENDS = ["dfa", "auto"]


def compiler(backend: str, **settings: Any) -> GrammarCompiler:
    if backend == "auto":
        pytest.importorskip("xgrammar")
    return GrammarCompiler(BYTES, StructuredOutputsConfig(backend, **settings))


def accepts(grammar: CompiledGrammar, value: Any) -> bool:
    text = json.dumps(value, ensure_ascii=False).encode()
    return grammar.start().accept_tokens([*text, EOS])


def in_any_order(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from (dict(members) for members in permutations(value.items()))
    else:
        yield value


def schema_of(draft: str, *fragments: dict[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {"$schema": DRAFTS[draft], **DEFINITIONS}
    for fragment in fragments:
        merged |= fragment
    return merged


def judge(counts: Counter[str], compiler: GrammarCompiler, draft: str, schema: dict[str, Any]) -> list[Any]:
    """Count how the values fare; return the invalid ones that are accepted."""
    counts["schemas"] += 1
    validator = VALIDATORS[draft](schema, format_checker=FORMATS)
    expected = [validator.is_valid(value) for value in VALUES]
    try:
        grammar = compiler.compile(StructuredOutputsParams(json=schema))
    except GrammarError as error:
        if "no value satisfies it" in str(error):
            assert not any(expected), (schema, error)
            counts["schemas without values"] += 1
        else:
            assert "'" in str(error) and "is not supported by" in str(error) and "dfa" in str(error), error
            counts["refused"] += 1
        return []
    wrong = []
    for value, is_valid in zip(VALUES, expected, strict=True):
        is_accepted = accepts(grammar, value)
        if not is_valid:
            counts["invalid"] += 1
            wrong += [value] * is_accepted
            continue
        counts["valid"] += 1
        if not is_accepted:
            in_order = any(accepts(grammar, other) for other in in_any_order(value))
            counts["only in another order" if in_order else "rejected"] += 1
    return wrong


def check(draft: str, backend: str, schemas: list[dict[str, Any]], **settings: Any) -> Counter[str]:
    counts: Counter[str] = Counter()
    judge_of = compiler(backend, **settings)
    wrong = [(schema, bad) for schema in schemas if (bad := judge(counts, judge_of, draft, schema))]
    assert not wrong, f"{len(wrong)} of {len(schemas)} schemas accept invalid values, such as {wrong[:3]}"
    return counts


def pairs(draft: str) -> list[dict[str, Any]]:
    return [
        schema_of(draft, first, second)
        for first, second in combinations(FRAGMENTS[draft], 2)
        if not first.keys() & second.keys()
    ]


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_keyword_alone_accepts_what_a_validator_accepts(draft: str) -> None:
    schemas = [schema_of(draft, fragment) for fragment in FRAGMENTS[draft]]
    counts = check(draft, "auto", schemas, disable_additional_properties=False)
    assert counts["refused"] == counts["rejected"] == 0, counts
    assert counts["valid"] > 1000 and counts["invalid"] > 500


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_backend_dfa_compiles_the_same_keywords(draft: str) -> None:
    some = [schema_of(draft, fragment) for fragment in random.Random(7).sample(FRAGMENTS[draft], 3)]
    counts = check(draft, "dfa", some, disable_additional_properties=False)
    assert counts["refused"] == counts["rejected"] == 0, counts


@pytest.mark.parametrize("draft", DRAFTS)
def test_pairs_of_keywords_accept_nothing_invalid_and_reject_nothing_valid(draft: str) -> None:
    some = random.Random(5).sample(pairs(draft), 60)
    counts = check(draft, "auto", some, disable_additional_properties=False)
    assert counts["rejected"] <= counts["valid"] / 100, counts
    assert counts["refused"] <= counts["schemas"] / 5, counts


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("draft", DRAFTS)
def test_all_pairs_of_keywords(draft: str, backend: str) -> None:
    schemas = pairs(draft) if backend == "auto" else random.Random(8).sample(pairs(draft), 150)
    counts = check(draft, backend, schemas, disable_additional_properties=False)

    assert counts["rejected"] <= counts["valid"] / 100, counts
    assert counts["refused"] <= counts["schemas"] / 5, counts


@pytest.mark.parametrize("draft", DRAFTS)
def test_listed_properties_are_all_there_are_unless_the_schema_mentions_others(draft: str) -> None:
    some = random.Random(6).sample(pairs(draft), 40)
    check(draft, "auto", some)  # nothing invalid is accepted by default, either
    listed = {"type": "object", "properties": {"a": {}}}
    closed, free = compiler("auto"), compiler("auto", disable_additional_properties=False)
    for schema, is_free in [(listed, False), (listed | {"additionalProperties": True}, True), ({}, True)]:
        params = StructuredOutputsParams(json=schema)
        assert accepts(closed.compile(params), {"a": 1, "b": 2}) is is_free
        assert accepts(free.compile(params), {"a": 1, "b": 2})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("schema", REFUSED, ids=json.dumps)
def test_what_no_backend_enforces_is_refused_by_keyword_and_backend(schema: Any, backend: str) -> None:
    with pytest.raises(
        GrammarError, match=r"^JSON schema at #.*is not supported by any backend \(dfa, xgrammar\)"
    ):
        compiler(backend).compile(StructuredOutputsParams(json=schema))


@pytest.mark.parametrize("schema", [FRAGMENTS["2020-12"][i] for i in (2, 20, 28, 37, 44)], ids=json.dumps)
def test_the_suite_sees_a_dropped_keyword(schema: dict[str, Any]) -> None:
    """Without one of its keywords a schema accepts values that the suite calls invalid."""
    judge_of = compiler("dfa", disable_additional_properties=False)
    grammar = judge_of.compile(StructuredOutputsParams(json={}))
    validator = jsonschema.Draft202012Validator(schema)
    assert any(accepts(grammar, value) and not validator.is_valid(value) for value in VALUES)


def test_bounds_of_64_bit_integers_and_of_doubles_compile() -> None:
    for schema, good, bad in (
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, 2**63 - 1, 2**63),
        ({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, 2**64 - 1, 2**64),
        ({"type": "number", "minimum": -1.7976931348623157e308, "maximum": 9.5}, 9.5, 9.75),
    ):
        grammar = compiler("auto").compile(StructuredOutputsParams(json=schema))
        assert accepts(grammar, good) and not accepts(grammar, bad), schema


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "string", "pattern": "^(?!a|b$)[a-z]+$"}, "ends one alternative of a look-ahead"),
        (
            {"type": "string", "pattern": "^(a?){5000}$", "minLength": 1},
            "repeats what may be empty over 5,000",
        ),
        ({"type": "string", "maxLength": float("inf")}, "#/maxLength"),
        ({"maxLength": 10**5000}, "#/maxLength: must be an integer of at least 0 and below 2"),
        ({"minimum": 10**400}, "#/minimum: a number beyond 1.8e308 fits no double"),
        ({"const": 10**5000}, "#/const: a number beyond 1.8e308 fits no double"),
        (
            {"properties": {f"a{i}": {} for i in range(300)}, "maxProperties": 290},
            "'maxProperties' is not supported .*counting 300 properties",
        ),
        (
            {"enum": [f"text {i}" for i in range(10_001)]},
            "'enum' is not .*10,001 values, the maximum is 10,000",
        ),
    ],
)
def test_what_would_match_wrongly_or_take_minutes_is_refused(schema: Any, says: str) -> None:
    with pytest.raises(GrammarError, match=says):
        compiler("auto").compile(StructuredOutputsParams(json=schema))
