"""JSON ends before its limit: whatever tokens a model likes, the output is whole and valid."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from engine import SamplingParams
from engine.grammar.closing import MARGIN, Closer, may_close
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
            grammar, [], words, lambda mask, left: closer.narrow(grammar, mask, left), limit - len(tokens)
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


def test_an_output_far_from_its_limit_is_not_touched() -> None:
    grammar = compiler("auto").compile(StructuredOutputsParams(json=PERSON)).start()
    grammar.accept_tokens([*b'{"name":"b'])
    free, words = np.zeros((2, BYTES.num_words), np.int32)
    grammar.fill_bitmask(free)
    shortest = len(b'","age":0}') + 1
    for left, is_free in [(10_000, True), (shortest + MARGIN + 1, True), (shortest + MARGIN, False)]:
        words[:] = free
        Closer(BYTES).narrow(grammar, words, left)
        assert (words == free).all() == is_free, left
    assert grammar.accept_tokens([*b'o","age":3}', EOS])  # its state has not changed


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
