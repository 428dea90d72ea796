"""Parse a model's output into text and tool calls.

    Let me look.<tool_call>{"name": "get_order_status", "arguments": {"order_id": "7"}}</tool_call>
    [ content  ][           one call: a name and arguments, as OpenAI's API has them              ]

This is the format of Hermes, Qwen and the shipped shop models. A call that is not valid JSON, or has no name, stays
content. A forced call (`tool_choice`) has no tags.

Source: vLLM tool_parsers/hermes_tool_parser.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

BEGIN, END = "<tool_call>", "</tool_call>"


@dataclass(slots=True)
class ToolCall:
    """A tool call; `as_dict` returns it in OpenAI's format."""

    name: str
    arguments: str
    """JSON object, as text."""
    id: str = field(default_factory=lambda: f"call_{uuid4().hex}")

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


@dataclass(slots=True)
class Delta:
    """Content and complete calls in a piece of output."""

    content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)


def parse_tool_calls(text: str) -> Delta:
    """Return content and calls of a whole message."""
    stream = ToolCallStream()
    first, last = stream.push(text), stream.finish()
    return Delta(first.content + last.content, first.tool_calls + last.tool_calls)


def parse_call(text: str) -> ToolCall | None:
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
    return ToolCall(call["name"], json.dumps(arguments, ensure_ascii=False))


class ToolCallStream:
    """Incremental parser: returns content as soon as it cannot be part of a tag, a call when it is complete.

    push("Yes.<tool")   ->  content "Yes."      "<tool" may become a tag and is held back
    push("box>")        ->  content "<toolbox>"
    """

    def __init__(self) -> None:
        self._waiting = ""
        self._is_in_call = False

    def push(self, text: str) -> Delta:
        """Add a piece of text; return the content and calls that are certain now."""
        delta = Delta()
        self._waiting += text
        while self._take_part(delta):
            pass
        return delta

    def _take_part(self, delta: Delta) -> bool:
        """Parse up to the next tag. Return False if it is incomplete."""
        tag = END if self._is_in_call else BEGIN
        before, found, after = self._waiting.partition(tag)
        if not found:
            if not self._is_in_call:
                num_held = _overlap(self._waiting, BEGIN)
                certain = len(self._waiting) - num_held
                delta.content += self._waiting[:certain]
                self._waiting = self._waiting[certain:]
            return False
        self._waiting = after
        if self._is_in_call:
            self._end_call(before, BEGIN + before + END, delta)
        else:
            delta.content += before
        self._is_in_call = not self._is_in_call
        return True

    def finish(self) -> Delta:
        """End the text: return what is held back, a call without its end or content."""
        delta = Delta()
        if self._is_in_call:
            self._end_call(self._waiting, BEGIN + self._waiting, delta)
        else:
            delta.content = self._waiting
        self._waiting = ""
        return delta

    def _end_call(self, inside: str, whole: str, delta: Delta) -> None:
        call = parse_call(inside)
        if call is None:
            delta.content += whole
        else:
            delta.tool_calls.append(call)


def _overlap(text: str, tag: str) -> int:
    """Return how many characters at the end of `text` may begin the tag."""
    longest = min(len(text), len(tag) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(tag[:size])), 0)
