"""Read texts with vLLM's own tool parsers. Runs in vLLM's environment and imports no prep module.

stdin: [[parser, text], ...] as JSON. stdout, last line: per text [content, [[name, arguments], ...]].
"""

from __future__ import annotations

import json
import sys
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.tool_parsers import ToolParserManager

MARKERS = ["<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]"]


class Markers:
    """Tokenizer of vLLM's parsers as far as they use one: the ids of the marks of calls."""

    all_special_tokens = MARKERS

    def __init__(self, is_new: bool) -> None:
        self._tokens = [*MARKERS, *(["[ARGS]"] if is_new else [])]

    def get_vocab(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self._tokens)}

    def encode(self, text: str, **_: Any) -> list[int]:
        return [self._tokens.index(text)] if text in self._tokens else []

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(self._tokens[number] for number in ids)


def read(name: str, text: str) -> list[Any]:
    """Return the content and the calls of a text."""
    is_new = "[TOOL_CALLS] [" not in text and "[TOOL_CALLS][{" not in text
    tools = [
        {"type": "function", "function": {"name": each, "parameters": {}}} for each in ("find", "open_today")
    ]
    request = ChatCompletionRequest(
        model="m", messages=[{"role": "user", "content": "a"}], tools=tools, tool_choice="auto"
    )
    parser = ToolParserManager.get_tool_parser(name)(Markers(is_new), request.tools)
    found = parser.extract_tool_calls(text, request)
    calls = [[call.function.name, json.loads(call.function.arguments)] for call in found.tool_calls]
    return [found.content or "", calls]


print(json.dumps([read(name, text) for name, text in json.load(sys.stdin)]))
