"""JSON checked character by character, and a call as a JSON object: {"name": ..., "arguments": {...}}.

Stricter than Python's json in two points: NaN and Infinity are not JSON, and nesting ends at MAX_DEPTH.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator

from engine.frontend.tool_parsers.source import Malformed, Source, Waiting

MAX_DEPTH = 64
MAX_NUMBER = 400
"""Characters."""
_SPECIAL = re.compile(r'["\\\x00-\x1f]')
_WORD = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_IN_WORDS = frozenset("+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def value(source: Source, depth: int = 1) -> Waiting:
    """Read a JSON value. Raises Malformed."""
    first = yield from source.peek()
    if first == "{":
        yield from json_object(source, depth)
    elif first == "[":
        yield from _array(source, depth)
    elif first == '"':
        yield from string(source)
    else:
        yield from _word(source)


def json_object(source: Source, depth: int = 1) -> Waiting:
    """Read a JSON object. Raises Malformed."""
    yield from source.expect("{")
    while (yield from _goes_on(source, "}")):
        yield from string(source)
        yield from _colon(source)
        yield from value(source, _deeper(depth))
        yield from _after_item(source, "}")
    source.position += 1


def string(source: Source) -> Generator[None, None, str]:
    """Read a JSON string and return its value. Raises Malformed."""
    yield from source.expect('"')
    parts: list[str] = []
    while (yield from source.peek()):
        special = _SPECIAL.search(source.text, source.position)
        end = special.start() if special else len(source.text)
        parts.append(source.text[source.position : end])
        source.position = end
        if special is None:
            continue
        if special[0] == '"':
            source.position += 1
            return str(json.loads(f'"{"".join(parts)}"'))
        if special[0] != "\\":
            break
        parts.append((yield from _escape(source)))
    raise Malformed


def call_object(
    source: Source, keys: tuple[str, ...], *, needs_arguments: bool
) -> Generator[None, None, str]:
    """Read a call as a JSON object and return the rest of its arguments, to send once the call is complete.

    The call begins, for a stream, when its name is known and its arguments have begun.

    keys: names of the member with the arguments.
    """
    name: str | None = None
    early: str | None = None
    """Arguments before the name."""
    is_call, has_arguments = True, False
    yield from source.expect("{")
    while (yield from _goes_on(source, "}")):
        key = yield from string(source)
        yield from _colon(source)
        first = yield from source.peek()
        if key == "name" and name is None and first == '"':
            name = yield from string(source)
            if early is not None:
                source.begin_call(name)
                source.arguments(early)
        elif key in keys and not has_arguments and first == "{":
            has_arguments = True
            source.tap(name)
            yield from json_object(source)
            text = source.untap(without=1)
            if name is None:
                early = text
            else:
                source.arguments(text)
        else:
            is_call = is_call and key != "name" and key not in keys
            yield from value(source)
        yield from _after_item(source, "}")
    source.position += 1
    if not name or not is_call or (needs_arguments and not has_arguments):
        raise Malformed
    if not has_arguments:
        source.begin_call(name)
    return "}" if has_arguments else "{}"


def _array(source: Source, depth: int) -> Waiting:
    yield from source.expect("[")
    while (yield from _goes_on(source, "]")):
        yield from value(source, _deeper(depth))
        yield from _after_item(source, "]")
    source.position += 1


def _goes_on(source: Source, end: str) -> Generator[None, None, bool]:
    """Return whether an item follows, at the beginning or after a comma."""
    yield from source.skip()
    return (yield from source.peek()) != end


def _after_item(source: Source, end: str) -> Waiting:
    yield from source.skip()
    following = yield from source.peek()
    if following == ",":
        source.position += 1
        yield from source.skip()
        if (yield from source.peek()) == end:
            raise Malformed
    elif following != end:
        raise Malformed


def _colon(source: Source) -> Waiting:
    yield from source.skip()
    yield from source.expect(":")
    yield from source.skip()


def _deeper(depth: int) -> int:
    if depth >= MAX_DEPTH:
        raise Malformed
    return depth + 1


def _escape(source: Source) -> Generator[None, None, str]:
    source.position += 1
    kind = yield from source.peek()
    if not kind or kind not in '"\\/bfnrtu':
        raise Malformed
    source.position += 1
    if kind != "u":
        return "\\" + kind
    digits = ""
    for _ in range(4):
        digit = yield from source.peek()
        if not digit or digit not in "0123456789abcdefABCDEF":
            raise Malformed
        digits += digit
        source.position += 1
    return "\\u" + digits


def _word(source: Source) -> Waiting:
    """Read a number, true, false or null."""
    word = ""
    while (character := (yield from source.peek())) in _IN_WORDS and len(word) < MAX_NUMBER:
        word += character
        source.position += 1
    if not _WORD.fullmatch(word):
        raise Malformed
