"""Parsers of tool calls, by vLLM's names for `--tool-call-parser`.

    parser = make_tool_parser("hermes")
    parser.push('Yes.<tool')                              content "Yes."
    parser.push('_call>{"name": "f", "arguments": {"a"')  name "f", arguments '{"a"'
    parser.push(': 1}}</tool_call>')                      arguments ': 1', arguments '}', end

The last brace of the arguments follows when the call is complete. So a client of a stream has arguments that parse if
and only if `read_calls` of the whole text finds the call: a call that breaks off later cannot be withdrawn.
Source: vLLM tool_parsers/abstract_tool_parser.py; vLLM parses all of the text again for each piece.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol

from engine.config.settings import ConfigError
from engine.frontend.tool_parsers.formats import hermes, llama3_json, mistral
from engine.frontend.tool_parsers.pythonic import pythonic
from engine.frontend.tool_parsers.source import Piece, Source, Waiting
from prep_common.names import unknown_name

__all__ = ["FORMATS", "Piece", "ToolParser", "check_tool_parser", "make_tool_parser", "read_calls"]

FORMATS: dict[str, Callable[[Source], Waiting]] = {
    "hermes": hermes,
    "llama3_json": llama3_json,
    "llama4_json": llama3_json,
    "mistral": mistral,
    "pythonic": pythonic,
}


class ToolParser(Protocol):
    """Reads an answer piece by piece."""

    def push(self, text: str) -> list[Piece]:
        """Add a piece of text; return what is certain now."""
        ...

    def finish(self) -> list[Piece]:
        """End the text; return what was held back."""
        ...


class _Parser:
    def __init__(self, grammar: Callable[[Source], Waiting]) -> None:
        self._source = Source()
        self._reading = grammar(self._source)

    def push(self, text: str) -> list[Piece]:
        if not text:
            return []
        self._source.feed(text)
        return self._read()

    def finish(self) -> list[Piece]:
        self._source.is_ended = True
        return self._read()

    def _read(self) -> list[Piece]:
        next(self._reading, None)
        pieces, self._source.pieces = self._source.pieces, []
        return pieces


def check_tool_parser(name: str) -> None:
    """Raise ConfigError unless there is a parser of this name."""
    if name not in FORMATS:
        raise ConfigError(unknown_name("unknown tool_call_parser", name, FORMATS))


def make_tool_parser(name: str) -> ToolParser:
    """Return a new parser for one answer. Raises ConfigError for an unknown name."""
    check_tool_parser(name)
    return _Parser(FORMATS[name])


def read_calls(parser: ToolParser, text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the content of a whole answer and its calls: name and arguments as JSON."""
    content: list[str] = []
    calls: list[tuple[str, str]] = []
    name, arguments = "", ""
    for piece in parser.push(text) + parser.finish():
        if piece.kind in ("content", "broken"):
            content.append(piece.text)
        elif piece.kind == "name":
            name, arguments = piece.text, ""
        elif piece.kind == "arguments":
            arguments += piece.text
        else:
            calls.append((name, json.dumps(json.loads(arguments), ensure_ascii=False)))
    return "".join(content), calls
