"""Tool calls as Python: [get_weather(city='Paris', days=[1, 2]), open_today()]

The list begins an answer or a line. Values are literals; true, false and null count as well. A stream sends an argument
when its value is complete. Source: vLLM tool_parsers/pythonic_tool_parser.py.
"""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections.abc import Generator
from typing import Any

from engine.frontend.tool_parsers.formats import BRACKET
from engine.frontend.tool_parsers.json_text import MAX_DEPTH
from engine.frontend.tool_parsers.source import Malformed, Source, Waiting

_IN_NAME = re.compile(r"[A-Za-z0-9_.]")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_WORDS = {"true": True, "false": False, "null": None}


def pythonic(source: Source) -> Waiting:
    """Read lists of calls."""
    while (yield from source.until(BRACKET)):
        if source.last_content not in ("", "\n"):
            source.position += 1
            source.content("[")
            continue
        source.mark()
        try:
            yield from _call_list(source)
        except Malformed:
            source.broken()


def _call_list(source: Source) -> Waiting:
    source.position += 1
    following = ","
    while following == ",":
        yield from source.skip()
        rest = yield from _call(source)
        yield from source.skip()
        following = yield from source.peek()
        if not following or following not in ",]":
            raise Malformed
        source.position += 1
        source.end_call(rest)


def _call(source: Source) -> Generator[None, None, str]:
    """Read a call; return the rest of its arguments."""
    name = yield from _name(source)
    if not all(part.isidentifier() for part in name.split(".")):
        raise Malformed
    yield from source.skip()
    yield from source.expect("(")
    keys: set[str] = set()
    while True:
        yield from source.skip()
        if (yield from source.peek()) == ")":
            break
        key = yield from _name(source)
        yield from source.skip()
        yield from source.expect("=")
        if not key.isidentifier() or key in keys:
            raise Malformed
        if not keys:
            source.begin_call(name)
        text = as_json((yield from _value_text(source)))
        source.arguments(f"{', ' if keys else '{'}{json.dumps(key)}: {text}")
        keys.add(key)
        if (yield from source.peek()) == ",":
            source.position += 1
    source.position += 1
    if not keys:
        source.begin_call(name)
    return "}" if keys else "{}"


def _name(source: Source) -> Generator[None, None, str]:
    name = ""
    while _IN_NAME.match((yield from source.peek())):
        name += source.text[source.position]
        source.position += 1
    return name


def _value_text(source: Source) -> Generator[None, None, str]:
    """Read up to the comma or parenthesis after a value."""
    parts: list[str] = []
    open_brackets: list[str] = []
    while character := (yield from source.peek()):
        if not open_brackets and character in ",)":
            return "".join(parts)
        if character in "'\"":
            parts.append((yield from _quoted(source, character)))
            continue
        if character in _CLOSING:
            open_brackets.append(_CLOSING[character])
            if len(open_brackets) > MAX_DEPTH:
                break
        elif character in ")]}" and (not open_brackets or open_brackets.pop() != character):
            break
        parts.append(character)
        source.position += 1
    raise Malformed


def _quoted(source: Source, quote: str) -> Generator[None, None, str]:
    """Read a string, in one quotation mark or three, with its marks."""
    end = quote
    source.position += 1
    if (yield from source.peek()) == quote:
        source.position += 1
        if (yield from source.peek()) != quote:
            return quote * 2
        source.position += 1
        end = quote * 3
    parts, num_quotes = [end], 0
    while character := (yield from source.peek()):
        source.position += 1
        parts.append(character)
        num_quotes = num_quotes + 1 if character == quote else 0
        if num_quotes == len(end):
            return "".join(parts)
        if character == "\\":
            parts.append((yield from source.peek()))
            source.position += bool(parts[-1])
    raise Malformed


def as_json(text: str) -> str:
    """Return a Python literal as JSON. Raises Malformed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes such as "\\d", which Python keeps
            value = _literal(ast.parse(text.strip(), mode="eval").body)
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Malformed from None


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None as found):
            return found
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values) if all(isinstance(key, ast.Constant) for key in keys):
            names = [_literal(key) for key in keys if key is not None]
            if not all(isinstance(name, str) for name in names):
                raise ValueError("keys of JSON are strings")
            return dict(zip(names, map(_literal, values), strict=True))
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case ast.UnaryOp(
            op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=int() | float() as number)
        ):
            if isinstance(number, bool) or math.isinf(number):
                raise ValueError("a sign belongs to a number")
            return -number if isinstance(sign, ast.USub) else number
    raise ValueError("not a literal")
