"""Tool calls: whether a model may or must call tools (`tool_choice` of OpenAI's API), and the calls in its output.

    Let me look.<tool_call>{"name": "get_order_status", "arguments": {"order_id": "7"}}</tool_call>
    [ content  ][           one call: a name and arguments, as OpenAI's API has them              ]

This is the format of Hermes, Qwen and the shipped shop models. A call that is not valid JSON, or has no name, stays
content. A forced call has no tags.

    "none"      the model does not see the tools
    "auto"      it may call one; its output is parsed and may contain no call
    "required"  it calls one of them  \\  the answer starts inside a call, and a grammar made of the
    {"type": "function", ...}  this one  /  tools' schemas keeps it there: it parses unless it is cut off

Source: vLLM entrypoints/openai/chat_completion/protocol.py, tool_parsers/utils.py and hermes_tool_parser.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from engine.outputs import CompletionOutput
from engine.sampling_params import SamplingParams, StructuredOutputsParams

ToolChoice = str | Mapping[str, Any]

BEGIN, END = "<tool_call>", "</tool_call>"
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


class ToolError(ValueError):
    """Invalid tools or tool choice."""


@dataclass(frozen=True)
class ToolPlan:
    """Effect of a tool choice on the prompt, on sampling and on reading the answer."""

    tools: list[dict[str, Any]] | None  # Tools for the chat template
    call_schema: dict[str, Any] | None  # JSON schema of the required call; None: the model decides

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, Any]] | None, choice: ToolChoice) -> ToolPlan:
        """Validate tools and tool choice together."""
        functions = [_function(tool, index) for index, tool in enumerate(tools or ())]
        names = [function["name"] for function in functions]
        if len(set(names)) < len(names):
            raise ToolError(f"tools must have names of their own, got {', '.join(names)}")
        if choice not in ("auto", "none") and not functions:
            raise ToolError(f"tool_choice={choice!r} needs tools; give them as tools=[...]")
        if choice == "none" or not functions:
            return cls(None, None)
        shown = [_shown(tool, function) for tool, function in zip(tools or (), functions, strict=True)]
        if choice == "auto":
            return cls(shown, None)
        if choice != "required":
            functions = [functions[names.index(_named(choice, names))]]
        schemas = [_call_schema(function) for function in functions]
        return cls(shown, schemas[0] if len(schemas) == 1 else {"anyOf": schemas})

    @property
    def opening(self) -> str:
        """Text with which the answer begins: the start of a call, if one is required."""
        return "" if self.call_schema is None else BEGIN

    def constrain(self, params: SamplingParams) -> SamplingParams:
        """Return the parameters, constrained to the required call."""
        if self.call_schema is None:
            return params
        if params.structured_outputs is not None:
            raise ToolError(
                "structured_outputs and a forced tool_choice both say what the output is; use one"
            )
        structure = StructuredOutputsParams(json=self.call_schema, disable_any_whitespace=True)
        return replace(params, structured_outputs=structure)

    def read(self, completion: CompletionOutput) -> None:
        """Fill in `tool_calls` of a finished completion and remove the calls from its `text`."""
        if self.tools is None:
            return
        if self.call_schema is None:
            completion.text, completion.tool_calls = parse_tool_calls(completion.text)
        elif (call := parse_call(completion.text)) is not None:
            completion.text, completion.tool_calls = "", [call]
        else:
            completion.tool_calls = []


def parse_tool_calls(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the content of a message and its calls in OpenAI's format. A call whose end is cut off may be whole."""
    calls = []

    def take(match: re.Match[str]) -> str:
        call = parse_call(match[1])
        if call is None:
            return match[0]
        calls.append(call)
        return ""

    return _CALL.sub(take, text), calls


class ToolCallStream:
    """Incremental `parse_tool_calls`: content as soon as it cannot be part of a tag, a call when it is complete.

    push("Yes.<tool")   ->  content "Yes."      "<tool" may become a tag and is held back
    push("box>")        ->  content "<toolbox>"
    """

    def __init__(self) -> None:
        self._waiting = ""

    def push(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """Add a piece of text; return the content and calls that are certain now."""
        waiting = self._waiting + text
        complete = max(
            (match.end() for match in _CALL.finditer(waiting) if match[0].endswith(END)), default=0
        )
        cut = waiting.find(BEGIN, complete)
        if cut < 0:
            cut = len(waiting) - next(
                (n for n in range(len(BEGIN) - 1, 0, -1) if waiting.endswith(BEGIN[:n])), 0
            )
        self._waiting = waiting[cut:]
        return parse_tool_calls(waiting[:cut])

    def finish(self) -> tuple[str, list[dict[str, Any]]]:
        """End the text: return what is held back, a call without its end or content."""
        waiting, self._waiting = self._waiting, ""
        return parse_tool_calls(waiting)


def parse_call(text: str) -> dict[str, Any] | None:
    """Parse a call; return None if it is not one."""
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
    return {"id": f"call_{uuid4().hex}", "type": "function", "function": function}


def _function(tool: Any, index: int) -> Mapping[str, Any]:
    """Return the function of a tool, given in OpenAI's format or as the function alone."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ToolError(
            f'tools[{index}] must be like {{"type": "function", "function": {{"name": ..., "parameters": ...}}}}, '
            f"got {tool!r}"
        )
    if not isinstance(function.get("parameters", {}), Mapping):
        raise ToolError(f"tools[{index}]: parameters must be a JSON schema, got {function['parameters']!r}")
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
            f'{{"type": "function", "function": {{"name": ...}}}}, got {choice!r}'
        )
    if name not in names:
        raise ToolError(f"tool_choice names {name!r}, which is not among the tools: {', '.join(names)}")
    return name


def _call_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = dict(function.get("parameters") or {"type": "object", "properties": {}})
    if not parameters.get("properties") and parameters.get("type", "object") == "object":
        parameters["additionalProperties"] = False  # a function without parameters takes none
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": parameters},
        "required": ["name", "arguments"],
    }
    for definitions in ("$defs", "definitions"):  # references are looked up from the top
        if definitions in parameters:
            schema[definitions] = parameters.pop(definitions)
    return schema
