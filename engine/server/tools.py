"""Tools of a request, as vLLM's server reads them and gives them to the chat template.

Source: vLLM entrypoints/generate/base/protocol.py (FunctionDefinition), openai/chat_completion/protocol.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from engine.server.errors import ApiError
from prep_common.complaints import complain


class Function(BaseModel):
    """Function that a tool calls. Other fields are left out, as in vLLM."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class Tool(BaseModel):
    type: Literal["function"] = "function"
    function: Function
    defer_loading: bool | None = None


def tools_of_request(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools for the template: `description` and `parameters` are null if absent, other fields left out.

    A tool may be the function alone. Raises ApiError for a field of a wrong type.
    """
    return [_tool(tool, index) for index, tool in enumerate(tools)]


def _tool(given: Mapping[str, Any], index: int) -> dict[str, Any]:
    try:
        tool = Tool.model_validate(given if "function" in given else {"function": given})
    except ValidationError as error:
        raise ApiError(400, complain(error.errors(), Tool, within=("tools", index)), param="tools") from None
    function = tool.function
    if function.defer_loading is None:
        function.defer_loading = tool.defer_loading
    shown = {name: getattr(function, name) for name in ("name", "description", "parameters")}
    optional = {name: getattr(function, name) for name in ("strict", "defer_loading")}
    shown |= {name: value for name, value in optional.items() if value is not None}
    deferred = {} if tool.defer_loading is None else {"defer_loading": tool.defer_loading}
    return {"type": tool.type, "function": shown, **deferred}
