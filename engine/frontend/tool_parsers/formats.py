"""Formats of tool calls in which a call is JSON: Hermes, Llama 3 and Mistral.

    hermes       Yes.<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>
    llama3_json  <|python_tag|>{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}
    mistral      [TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g[ARGS]{}            tokenizers from version 11 on
                 [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]    older ones

Sources: vLLM tool_parsers/hermes_tool_parser.py, llama_tool_parser.py, and parser/mistral.py.
"""

from __future__ import annotations

import re

from engine.frontend.tool_parsers.json_text import call_object, json_object
from engine.frontend.tool_parsers.source import SPACE, Malformed, Source, Waiting

BEGIN, END = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
TOOL_CALLS, ARGS = "[TOOL_CALLS]", "[ARGS]"
_TAG, _TAG_OR_BRACE, BRACKET = re.compile("<"), re.compile("[<{]"), re.compile(r"\[")
_IN_NAME = re.compile(r"[\w.:/-]")


def hermes(source: Source) -> Waiting:
    """Read calls in tags. What a tag holds stays content, up to its end tag, if it is not a call."""
    while (yield from source.until(_TAG)):
        source.mark()
        try:
            yield from source.expect(BEGIN)
        except Malformed:
            source.broken()
            continue
        try:
            yield from source.skip()
            rest = yield from call_object(source, ("arguments",), needs_arguments=False)
            yield from source.skip()
            if (yield from source.peek()):  # a call may lack its end tag at the end of the text
                yield from source.expect(END)
            source.end_call(rest)
        except Malformed:
            source.broken()
            yield from _through_end_tag(source)


def _through_end_tag(source: Source) -> Waiting:
    while (yield from source.until(_TAG)):
        source.mark()
        try:
            yield from source.expect(END)
        except Malformed:
            source.broken()
            continue
        source.broken()
        return


def llama3_json(source: Source) -> Waiting:
    """Read JSON objects with a name and parameters. `;` and space after a call are dropped."""
    while first := (yield from source.until(_TAG_OR_BRACE)):
        source.mark()
        try:
            if first == "<":
                yield from source.expect(PYTHON_TAG)
                yield from source.skip()
            rest = yield from call_object(source, ("arguments", "parameters"), needs_arguments=True)
        except Malformed:
            source.broken()
            continue
        source.end_call(rest)
        yield from source.skip(SPACE + ";")


def mistral(source: Source) -> Waiting:
    """Read calls after [TOOL_CALLS], in the formats of old and new tokenizers. Space after a call is dropped."""
    while (yield from source.until(BRACKET)):
        source.mark()
        try:
            yield from source.expect(TOOL_CALLS)
            yield from source.skip()
            first = yield from source.peek()
            if first == "[":
                yield from _call_list(source)
            elif first == "{":
                source.end_call((yield from call_object(source, ("arguments",), needs_arguments=False)))
            else:
                yield from _named_call(source)
        except Malformed:
            source.broken()
            continue
        yield from source.skip()


def _call_list(source: Source) -> Waiting:
    source.position += 1
    while True:
        yield from source.skip()
        source.end_call((yield from call_object(source, ("arguments",), needs_arguments=False)))
        yield from source.skip()
        if (yield from source.peek()) != ",":
            break
        source.position += 1
    yield from source.expect("]")


def _named_call(source: Source) -> Waiting:
    name = ""
    while _IN_NAME.match((yield from source.peek())):
        name += source.text[source.position]
        source.position += 1
    yield from source.skip()
    if (yield from source.peek()) == "[":
        yield from source.expect(ARGS)
        yield from source.skip()
    if not name or (yield from source.peek()) != "{":
        raise Malformed
    source.tap(name)
    yield from json_object(source)
    source.arguments(source.untap(without=1))
    source.end_call("}")
