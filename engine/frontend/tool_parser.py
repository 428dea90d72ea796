"""What a model says, taken apart into text and tool calls.

    Let me look.<tool_call>{"name": "get_order_status", "arguments": {"order_id": "7"}}</tool_call>
    [ content  ][           one call: a name and arguments, as OpenAI's API has them              ]

This is the format of Hermes and Qwen, which our shop models speak too. A call that is no JSON, or has no name, stays
content: the client sees what the model said, and nothing is invented. A forced call (`tool_choice`) has no tags.

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
    """One call, in OpenAI's shape (`as_dict`)."""

    name: str
    arguments: str
    """JSON text, an object."""
    id: str = field(default_factory=lambda: f"call_{uuid4().hex}")

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


@dataclass(slots=True)
class Delta:
    """What a piece of output added: content, or whole calls."""

    content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)


def parse_tool_calls(text: str) -> Delta:
    """The content and the calls of a whole message."""
    stream = ToolCallStream()
    first, last = stream.push(text), stream.finish()
    return Delta(first.content + last.content, first.tool_calls + last.tool_calls)


def parse_call(text: str) -> ToolCall | None:
    """One call from its JSON; None if it is none."""
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
    """The same while the text arrives: content as soon as it can be no tag, a call when it is complete.

    push("Yes.<tool")   ->  content "Yes."      "<tool" may become a tag: it waits
    push("box>")        ->  content "<toolbox>"
    """

    def __init__(self) -> None:
        self._waiting = ""
        self._is_in_call = False

    def push(self, text: str) -> Delta:
        """Take in the next piece; return what is certain now."""
        delta = Delta()
        self._waiting += text
        while self._take_part(delta):
            pass
        return delta

    def _take_part(self, delta: Delta) -> bool:
        """Up to the next tag. False if it is not all there."""
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
        """The text is over: what still waits is a call without its end, or content."""
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
    """How many characters at the end of `text` begin the tag."""
    longest = min(len(text), len(tag) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(tag[:size])), 0)
