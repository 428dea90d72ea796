"""`finish_json`: JSON ends before its limit, whatever tokens a model likes, and the output is whole and valid."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from engine import SamplingParams
from engine.core.grammar_protocol import GrammarError
from engine.grammar.closing import MOST_SPARE, Closer, may_close, spare
from engine.grammar.manager import fill_positions
from engine.sampling_params import StructuredOutputsParams
from tests.grammar.test_schema_suite import BYTES, EOS, compiler

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["name", "age"],
}
TREE = {
    "$ref": "#/$defs/t",
    "$defs": {"t": {"type": "object", "properties": {"a": {"$ref": "#/$defs/t"}, "b": {"type": "string"}}}},
}
SCHEMAS: list[Any] = [
    {},
    {"type": "object"},
    PERSON,
    TREE,
    {
        "type": "array",
        "items": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    },
    {"type": "array", "items": {"type": "string", "minLength": 3}, "minItems": 2},
    {"anyOf": [{"const": "a long constant text"}, {"type": "number"}]},
]


def written(schema: Any, limit: int, seed: int, greedy: str = "") -> list[int]:
    """Return the tokens of a model that likes random letters, or repeats some."""
    closer, rng = Closer(BYTES), random.Random(seed)
    grammar = compiler("auto").compile(StructuredOutputsParams(json=schema)).start()
    words = np.zeros((1, BYTES.num_words), np.int32)
    tokens: list[int] = []
    while not grammar.is_terminated() and len(tokens) < limit:
        fill_positions(
            grammar,
            [],
            words,
            lambda mask, left: closer.narrow(grammar, mask, left, limit),
            limit - len(tokens),
        )
        allowed = np.flatnonzero(
            np.unpackbits(words.view(np.uint8), bitorder="little")[: len(BYTES)]
        ).tolist()
        liked = [token for token in allowed if token < EOS and chr(token) in greedy]
        tokens.append(rng.choice(liked or [token for token in allowed if token != EOS] or allowed))
        assert grammar.accept_tokens(tokens[-1:])
    return tokens


@pytest.mark.parametrize("greedy", ["", "abc", '"{[a,', "[{"])
@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_json_is_whole_at_the_limit_whatever_the_model_likes(schema: Any, greedy: str) -> None:
    for seed in range(3):
        tokens = written(schema, 90, seed, greedy)
        assert tokens[-1] == EOS, bytes(tokens)
        jsonschema.validate(json.loads(bytes(tokens[:-1])), schema)


@pytest.mark.parametrize("limit", [14, 24, 40, 60, 90])
def test_a_number_ends_where_the_limit_requires_it_and_not_before(limit: int) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tokens = written(schema, limit, 1, '3n":')
    digits = tokens.count(ord("3"))
    assert tokens[-1] == EOS and json.loads(bytes(tokens[:-1]))["n"] == int("3" * digits)
    assert digits == min(19, limit - spare(limit) - len('{"n":}') - 1)


def test_the_way_writes_no_exponent() -> None:
    numbers: dict[str, Any] = {"a": {"type": "number"}, "b": {"type": "number"}}
    tokens = written({"type": "object", "properties": numbers, "required": ["a", "b"]}, 14, 1)
    assert bytes(tokens[:-1]) == b'{"a":0,"b":0}' and tokens[-1] == EOS


def test_an_output_far_from_its_limit_is_not_touched() -> None:
    grammar = compiler("auto").compile(StructuredOutputsParams(json=PERSON)).start()
    grammar.accept_tokens([*b'{"name":"b'])
    free, words = np.zeros((2, BYTES.num_words), np.int32)
    grammar.fill_bitmask(free)
    shortest = len(b'","age":0}') + 1
    for left, is_free in [(10_000, True), (shortest + MOST_SPARE + 1, True), (shortest + MOST_SPARE, False)]:
        words[:] = free
        Closer(BYTES).narrow(grammar, words, left, 10_000)
        assert (words == free).all() == is_free, left
    assert grammar.accept_tokens([*b'o","age":3}', EOS])  # its state has not changed


@pytest.mark.parametrize(
    ("schema", "text", "limit"),
    [
        ({"enum": ["positive", "negative"]}, b'"negative"', 16),
        ({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, b'{"n":4}', 16),
        (
            {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
            b'{"n":1234567}',
            20,
        ),
        ({"type": "object"}, b'{"a":"b"}', 16),
    ],
)
def test_a_short_answer_that_fits_is_the_models(schema: Any, text: bytes, limit: int) -> None:
    """A limit near the answer's length must not let the closer write it."""
    grammar = compiler("auto").compile(StructuredOutputsParams(json=schema)).start()
    closer, words = Closer(BYTES), np.zeros((1, BYTES.num_words), np.int32)
    for index, token in enumerate([*text, EOS]):
        fill_positions(
            grammar, [], words, lambda mask, left: closer.narrow(grammar, mask, left, limit), limit - index
        )
        assert words[0, token // 32] >> token % 32 & 1, text[:index]
        assert grammar.accept_tokens([token])
    assert grammar.is_terminated() and spare(limit) <= 5


def test_a_way_that_the_backend_cannot_follow_leaves_the_mask() -> None:
    class Large:
        def __getattr__(self, name: str) -> Any:
            return getattr(grammar, name)

        def accept_tokens(self, tokens: list[int]) -> bool:
            raise GrammarError("more states than fit")

    grammar = compiler("auto").compile(StructuredOutputsParams(json=PERSON)).start()
    words = np.zeros((1, BYTES.num_words), np.int32)
    grammar.fill_bitmask(words[0])
    before = words.copy()
    Closer(BYTES).narrow(Large(), words[0], 20, 100)
    assert (words == before).all()


def test_what_has_no_short_way_to_the_end_is_cut_off_as_before() -> None:
    many = {"properties": {f"name{i}": {"type": "integer"} for i in range(9)}, "type": "object"}
    schema = many | {"required": list(many["properties"])}
    assert len(written(schema, 40, 1)) == 40


def test_outputs_whose_closing_tokens_may_be_forbidden_are_left_alone() -> None:
    asked: dict[str, Any] = {"structured_outputs": {"json_object": True}}
    assert may_close(SamplingParams(**asked))
    for other in (
        {"min_tokens": 2},
        {"bad_words": ["a"]},
        {"logit_bias": {1: -100.0}},
        {"allowed_token_ids": [1]},
    ):
        assert not may_close(SamplingParams(**asked, **other))
    assert not may_close(SamplingParams(structured_outputs={"regex": "a+"}))
    assert not may_close(SamplingParams())
