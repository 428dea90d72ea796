"""Bodies that LangChain and instructor send for a pydantic model, answered by `shop` with `finish_json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field
from starlette.testclient import TestClient

from engine.async_llm import AsyncLLM
from engine.config import EngineArgs
from tests.server.conftest import BLOCKS


class Book(BaseModel):
    """A book of the shop."""

    title: str = Field(description="Title")
    price: int
    size: Literal["small", "large"]
    note: str | None = None


@pytest.fixture(scope="module")
def llm() -> Iterator[AsyncLLM]:
    args = EngineArgs(
        model="shop",
        max_num_seqs=8,
        num_gpu_blocks_override=BLOCKS,
        structured_outputs_config={"finish_json": True},
    )
    with AsyncLLM(args) as llm:
        yield llm


SCHEMA = Book.model_json_schema()
NOTE = {"anyOf": [{"type": "string"}, {"type": "null"}], "title": "Note"}
STRICT = SCHEMA | {
    "properties": SCHEMA["properties"] | {"note": NOTE},
    "required": ["title", "price", "size", "note"],
    "additionalProperties": False,
}
PLAIN = {
    name: {k: v for k, v in inner.items() if k != "title"} for name, inner in SCHEMA["properties"].items()
}
ASKED: dict[str, Any] = {
    "model": "shop",
    "messages": [{"role": "user", "content": "What is the price of Silver Harbor?"}],
}
LANGCHAIN = ASKED | {"max_completion_tokens": 120, "stream": False, "temperature": 0.0}
INSTRUCTOR = ASKED | {"max_tokens": 120, "temperature": 0}


def tool(parameters: Any, **more: Any) -> dict[str, Any]:
    function = {"name": "Book", "description": "A book of the shop.", "parameters": parameters, **more}
    return {
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "Book"}},
    }


def schema(name: str, schema: Any, **more: Any) -> dict[str, Any]:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": name, "schema": schema, **more}}
    }


BODIES = {
    "langchain json_schema": LANGCHAIN | schema("Book", STRICT, strict=True),
    "langchain function_calling": LANGCHAIN
    | {"parallel_tool_calls": False}
    | tool({"type": "object", "properties": PLAIN, "required": ["title", "price", "size"]}),
    "langchain function_calling strict": LANGCHAIN
    | {"parallel_tool_calls": False}
    | tool({k: v for k, v in STRICT.items() if k not in ("title", "description")}, strict=True),
    "instructor JSON_SCHEMA": INSTRUCTOR | schema("Book", SCHEMA),
    "instructor TOOLS": INSTRUCTOR | tool(SCHEMA | {"required": ["price", "size", "title"]}),
}


def answer(client: TestClient, body: dict[str, Any]) -> str:
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    assert choice["finish_reason"] in ("stop", "tool_calls"), choice
    calls = choice["message"].get("tool_calls")
    text = calls[0]["function"]["arguments"] if calls else choice["message"]["content"]
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("name", BODIES)
def test_a_client_that_sends_a_schema_gets_its_model(client: TestClient, name: str) -> None:
    book = Book.model_validate_json(answer(client, BODIES[name]))
    assert book.size in ("small", "large")


def test_json_mode_which_sends_no_schema_gets_a_whole_object(client: TestClient) -> None:
    """LangChain's json_mode and instructor's JSON put the schema into the prompt: the engine cannot enforce it."""
    for body in (LANGCHAIN, INSTRUCTOR):
        text = answer(client, body | {"response_format": {"type": "json_object"}})
        assert isinstance(json.loads(text), dict)
