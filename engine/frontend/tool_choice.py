"""Tool calls: whether a model may or must call tools (`tool_choice` of OpenAI's API), and the calls in its output.

    Let me look.<tool_call>{"name": "get_order_status", "arguments": {"order_id": "7"}}</tool_call>
    [ content  ][           one call: a name and arguments, as OpenAI's API has them              ]

This is the format of Hermes, Qwen and the shipped shop models; `tool_parsers` has others. A call that is malformed, or
has no name, stays content. A forced call is a JSON object in every format.

    "none"      the model sees the tools, as in vLLM, and no call is read
    "auto"      it may call one; its output is parsed and may contain no call
    "required"  it calls one of them  \\  the answer starts inside a call, and a grammar made of the
    {"type": "function", ...}  this one  /  tools' schemas keeps it there: it parses unless it is cut off

Source: vLLM entrypoints/openai/chat_completion/protocol.py and tool_parsers/utils.py.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from engine.frontend.tool_parsers import make_tool_parser, read_calls
from engine.frontend.tool_parsers.formats import BEGIN
from engine.outputs import CompletionOutput
from engine.sampling_params import SamplingParams, StructuredOutputsParams
from prep_common.text import shown

ToolChoice = str | Mapping[str, Any]


class ToolError(ValueError):
    """Invalid tools or tool choice."""


@dataclass(frozen=True)
class ToolPlan:
    """Effect of a tool choice on the prompt, on sampling and on reading the answer."""

    tools: list[dict[str, Any]] | None  # Tools for the chat template
    call_schema: dict[str, Any] | None  # JSON schema of the required call; None: the model decides
    parser: str = "hermes"  # Format of the calls that the model decides to make
    reads_calls: bool = False  # False: the whole answer is content
    finish_reason: str = "tool_calls"  # Of an answer with a whole call

    @classmethod
    def of(
        cls, tools: Sequence[Mapping[str, Any]] | None, choice: ToolChoice, parser: str = "hermes"
    ) -> ToolPlan:
        """Validate tools and tool choice together."""
        if not isinstance(tools or (), (list, tuple)):
            raise ToolError(f"tools must be a list of tools, got {tools!r}")
        functions = [_function(tool, index) for index, tool in enumerate(tools or ())]
        names = [function["name"] for function in functions]
        if len(set(names)) < len(names):
            raise ToolError(f"tools must have names of their own, got {', '.join(names)}")
        if choice not in ("auto", "none") and not functions:
            raise ToolError(f"tool_choice={shown(choice)} needs tools; give them as tools=[...]")
        if not functions:
            return cls(None, None)
        visible = [_shown(tool, function) for tool, function in zip(tools or (), functions, strict=True)]
        if choice == "none":
            return cls(visible, None)
        if choice == "auto":
            return cls(visible, None, parser, reads_calls=True)
        is_named = choice != "required"
        if is_named:
            functions = [functions[names.index(_named(choice, names))]]
        schemas = [_call_schema(function) for function in functions]
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        finish_reason = "stop" if is_named else "tool_calls"  # as vLLM and OpenAI
        return cls(visible, schema, parser, reads_calls=True, finish_reason=finish_reason)

    @property
    def opening(self) -> str:
        """Text with which the answer begins: the start of a call, if one is required."""
        return "" if self.call_schema is None or self.parser != "hermes" else BEGIN

    def constrain(self, params: SamplingParams) -> SamplingParams:
        """Return the parameters, constrained to the required call, with the special tokens that may mark a call."""
        if self.reads_calls and self.call_schema is None:
            return replace(params, skip_special_tokens=False)
        if self.call_schema is None:
            return params
        if params.structured_outputs is not None:
            raise ToolError(
                "structured_outputs and a forced tool_choice both say what the output is; use one"
            )
        return replace(params, structured_outputs=StructuredOutputsParams(json=self.call_schema))

    def read(self, completion: CompletionOutput) -> None:
        """Fill in `tool_calls` of a finished completion and remove the calls from its `text`."""
        if not self.reads_calls:
            return
        if self.call_schema is None:
            completion.text, completion.tool_calls = parse_tool_calls(completion.text, self.parser)
        elif (call := parse_call(completion.text, self.parser)) is not None:
            completion.text, completion.tool_calls = "", [call]
        else:  # cut off: the beginning of a call is no content
            completion.text, completion.tool_calls = "", []


def parse_tool_calls(text: str, parser: str = "hermes") -> tuple[str, list[dict[str, Any]]]:
    """Return the content of a message and its calls in OpenAI's format."""
    content, calls = read_calls(make_tool_parser(parser), text)
    return content, [
        {"id": _call_id(parser), "type": "function", "function": {"name": name, "arguments": arguments}}
        for name, arguments in calls
    ]


class ToolCallStream:
    """Incremental `parse_tool_calls`: content, the names of calls and their arguments as soon as they are certain."""

    def __init__(self, parser: str = "hermes") -> None:
        self._format, self._parser = parser, make_tool_parser(parser)
        self._index = -1
        self._is_open = False
        self.num_complete = 0
        """Calls whose arguments are whole."""

    def push(self, text: str, *, is_last: bool = False) -> tuple[str, list[dict[str, Any]]]:
        """Add a piece of text; return the new content and, for each call with news, a delta in OpenAI's format."""
        pieces = self._parser.push(text) + (self._parser.finish() if is_last else [])
        content = ""
        deltas: dict[int, dict[str, Any]] = {}
        for piece in pieces:
            if piece.kind == "content" or (piece.kind == "broken" and not self._is_open):
                content += piece.text
            elif piece.kind == "name":
                self._index, self._is_open = self._index + 1, True
                function = {"name": piece.text, "arguments": ""}
                head = {"index": self._index, "id": _call_id(self._format), "type": "function"}
                deltas[self._index] = {**head, "function": function}
            elif piece.kind == "arguments":
                delta = deltas.setdefault(self._index, {"index": self._index, "function": {"arguments": ""}})
                delta["function"]["arguments"] += piece.text
            else:
                self.num_complete += piece.kind == "end"
                self._is_open = False
        return content, list(deltas.values())


def _call_id(parser: str) -> str:
    """Return a new id; Mistral's templates accept 9 letters and digits only."""
    if parser == "mistral":
        return "".join(random.choices(string.ascii_letters + string.digits, k=9))
    return f"call_{uuid4().hex}"


def parse_call(text: str, parser: str = "hermes") -> dict[str, Any] | None:
    """Parse a forced call; return None if it is cut off."""
    try:
        call = json.loads(text)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        return None
    function = {"name": call["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": _call_id(parser), "type": "function", "function": function}


def _function(tool: Any, index: int) -> Mapping[str, Any]:
    """Return the function of a tool, given in OpenAI's format or as the function alone."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ToolError(
            f'tools[{index}] must be like {{"type": "function", "function": {{"name": ..., "parameters": ...}}}}, '
            f"got {shown(tool)}"
        )
    if not isinstance(function.get("parameters"), Mapping | None):
        raise ToolError(
            f"tools[{index}]: parameters must be a JSON schema, got {shown(function['parameters'])}"
        )
    return function


def _shown(tool: Mapping[str, Any], function: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool for the chat template, which may require parameters with properties."""
    parameters = {"type": "object", "properties": {}, **(function.get("parameters") or {})}
    complete = {**function, "parameters": parameters}
    return {**tool, "function": complete} if "function" in tool else complete


def _named(choice: ToolChoice, names: list[str]) -> str:
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if name is None:
        raise ToolError(
            'tool_choice must be "auto", "none", "required" or '
            f'{{"type": "function", "function": {{"name": ...}}}}, got {shown(choice)}'
        )
    if name not in names:
        raise ToolError(f"tool_choice names {shown(name)}, which is not among the tools: {', '.join(names)}")
    return name


def _call_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a call. Its arguments are a resource: their references start from the tool's own schema."""
    parameters = {"type": "object", **(function.get("parameters") or {})}
    if "$ref" in parameters:  # in old drafts a $ref hides the $id beside it
        others = parameters.get("allOf", [])
        parameters["allOf"] = [*others, {"$ref": parameters.pop("$ref")}]
    if not parameters.get("properties") and parameters["type"] == "object" and not _says_more(parameters):
        parameters["additionalProperties"] = False  # a function without parameters takes none
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            "arguments": {"$id": f"/tools/{quote(function['name'])}", **parameters},
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _says_more(parameters: Mapping[str, Any]) -> bool:
    """Whether other keywords than `properties` say what the arguments are."""
    keywords = {"$ref", "additionalProperties", "allOf", "anyOf", "oneOf", "patternProperties", "required"}
    return bool(parameters.keys() & keywords)
