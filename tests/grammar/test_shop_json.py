"""The shipped model finishes JSON: whitespace and digits have limits, and `finish_json` closes strings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from engine import LLM, SamplingParams
from engine.config import ConfigError, StructuredOutputsConfig
from engine.grammar.json_schema import schema_tree
from engine.sampling_params import StructuredOutputsParams
from engine.trace.reader import TraceReader
from tests.grammar.test_json_schema import accepts, compiled
from tests.grammar.test_schema_suite import accepts as accepts_value
from tests.grammar.test_schema_suite import compiler as schema_compiler

QUESTIONS = (
    "What is the price of Silver Harbor?",
    "Where is my order 12345?",
    "Do you ship to Tokyo?",
    "Hello",
)
PRICE = {
    "type": "object",
    "properties": {"price": {"type": "integer"}, "in_stock": {"type": "boolean"}},
    "required": ["price", "in_stock"],
}
STATUS = {  # as instructor and LangChain send a pydantic model
    "title": "Status",
    "description": "Status of an order.",
    "type": "object",
    "properties": {
        "status": {"enum": ["packed", "shipped", "delivered"], "title": "Status", "type": "string"},
        "days": {"title": "Days", "type": "integer"},
        "note": {
            "anyOf": [{"type": "string", "maxLength": 20}, {"type": "null"}],
            "default": None,
            "title": "Note",
        },
    },
    "required": ["status", "days"],
}


@pytest.fixture(scope="module")
def shop() -> Iterator[LLM]:
    with LLM("shop", num_gpu_blocks_override=512) as llm:
        yield llm


@pytest.fixture(scope="module")
def finishing() -> Iterator[LLM]:
    with LLM(
        "shop", num_gpu_blocks_override=512, structured_outputs_config={"finish_json": True}, max_num_seqs=4
    ) as llm:
        yield llm


FREE: list[dict[str, Any]] = [
    {"json_object": True},
    {"json": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}},
    {"json": {"type": "array", "items": {"type": "string"}}},
]
"""JSON whose strings have no limit."""


def answers(llm: LLM, limit: int = 200, **structure: Any) -> list[Any]:
    sampling = SamplingParams(temperature=0, max_tokens=limit, structured_outputs=structure)
    asked = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return [output.outputs[0] for output in llm.chat(asked, sampling, use_tqdm=False)]


@pytest.mark.parametrize("schema", [PRICE, STATUS], ids=["price", "status"])
def test_the_shop_model_finishes_json_of_a_schema_greedily(shop: LLM, schema: dict[str, Any]) -> None:
    for answer in answers(shop, json=schema):
        assert answer.finish_reason == "stop", answer.text
        jsonschema.validate(json.loads(answer.text), schema)
        assert max(map(len, re.findall(r"\s+", answer.text))) <= 20


@pytest.mark.parametrize("structure", FREE, ids=json.dumps)
def test_the_shop_model_finishes_strings_without_a_limit(finishing: LLM, structure: dict[str, Any]) -> None:
    for answer in answers(finishing, **structure):
        assert answer.finish_reason == "stop", answer.text
        jsonschema.validate(json.loads(answer.text), structure.get("json", {"type": "object"}))


def test_a_finished_output_does_not_depend_on_the_batch(finishing: LLM) -> None:
    params = SamplingParams(temperature=1, seed=3, max_tokens=60, structured_outputs={"json_object": True})
    together = finishing.generate(list(QUESTIONS), params, use_tqdm=False)
    alone = [finishing.generate(question, params, use_tqdm=False)[0] for question in QUESTIONS]
    assert [each.outputs[0].token_ids for each in together] == [each.outputs[0].token_ids for each in alone]


@pytest.mark.parametrize(
    "speculative",
    [
        {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1},
        {"method": "draft_model", "model": "shop-draft", "num_speculative_tokens": 3},
    ],
    ids=lambda config: config["method"],
)
def test_drafts_change_no_token_of_a_finished_output(
    finishing: LLM, speculative: dict[str, Any], tmp_path: Path
) -> None:
    """The limit is near while several drafts of a step are verified, so each of their masks is narrowed."""
    path = str(tmp_path / "run.itrace")
    with LLM(
        "shop",
        num_gpu_blocks_override=512,
        structured_outputs_config={"finish_json": True},
        speculative_config=speculative,
        max_num_seqs=4,
        trace=path,
    ) as drafting:
        for structure in FREE:
            for limit in (16, 41):
                plain, drafted = (answers(llm, limit, **structure) for llm in (finishing, drafting))
                assert [a.token_ids for a in drafted] == [a.token_ids for a in plain]
                for answer in drafted:
                    assert answer.finish_reason == "stop" and len(answer.token_ids) <= limit, answer.text
                    jsonschema.validate(json.loads(answer.text), structure.get("json", {"type": "object"}))
    reader = TraceReader(path)
    counted = [reader.step(step).counters for step in range(reader.num_steps)]
    assert sum(counters.get("num_accepted_tokens", 0) for counters in counted) > 20


@pytest.mark.parametrize("indent", [None, 1, 2, 4, "\t"])
def test_every_indentation_that_json_dumps_writes_is_allowed(indent: Any) -> None:
    value = {"price": 20, "in_stock": True}
    assert accepts(
        compiled({"type": "object", "properties": {"nested": PRICE}}), {"nested": value}, indent=indent
    )


def test_whitespace_has_the_length_of_the_setting() -> None:
    for most in (0, 1, 8, 20):
        dfa = compiled({"const": [1]}, max_whitespace=most)
        for length in range(1, 24):
            text = "[\n" + " " * (length - 1) + "1]"
            assert dfa.matches(text.encode()) is (length <= most)
        assert dfa.matches(b"[ 1]") is (most > 0) and not dfa.matches(b"[\n\n1]")
    assert StructuredOutputsConfig().max_whitespace == 20
    with pytest.raises(ConfigError, match="max_whitespace must be from 0 to 1000"):
        StructuredOutputsConfig(max_whitespace=-1)
    assert schema_tree({"const": [1]}, compact=True, max_whitespace=8)


@pytest.mark.parametrize("backend", ["dfa", "auto"])
@pytest.mark.parametrize(
    "schema", [{"type": "integer"}, {"type": "number"}, {}, {"minimum": 1}, {"type": "integer", "minimum": 1}]
)
def test_numbers_have_the_digits_of_the_setting(schema: dict[str, Any], backend: str) -> None:
    for most in (1, 19, 60, 100):
        grammar = schema_compiler(backend, max_digits=most).compile(StructuredOutputsParams(json=schema))
        for digits in (1, 18, 19, 20, 60, 61, 100):
            assert accepts_value(grammar, int("7" * digits)) is (digits <= most), (most, digits)
        if schema in ({}, {"type": "number"}):
            for exponent in (308 - most, 309 - most):
                text = f"1e{exponent}".encode()
                assert grammar.start().accept_tokens([*text, 256]) is (exponent == 308 - most)
    assert StructuredOutputsConfig().max_digits == 19
    with pytest.raises(ConfigError, match="max_digits must be from 1 to 100, got 0"):
        StructuredOutputsConfig(max_digits=0)
