"""Texts of strings: a shape as a node, with the escapes of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

from engine.core.grammar_protocol import GrammarError
from engine.grammar.language import ANY_TEXT, MAX_STATES, Language
from engine.grammar.regex import (
    LAST_CODE_POINT,
    NEVER,
    Characters,
    Choice,
    Dialect,
    Graph,
    Node,
    Repeat,
    Sequence,
    complement,
    literal,
    merged,
    parse,
)
from engine.grammar.schema.dialects import NARROW, WIDE
from engine.grammar.schema.formats import MOST_OF, bounded_node, format_node, is_bounded
from engine.grammar.schema.lookahead import look_aheads
from engine.grammar.schema.places import SchemaError
from engine.grammar.schema.shapes import String, Test
from engine.grammar.size import MAX_RANGES, check_run, num_ranges

_HEX = "[0-9a-fA-F]"
_QUOTE = literal('"')
_ANY_CHARACTER = parse(rf'[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u{_HEX}{{4}})')
ANY_STRING = Sequence((_QUOTE, Repeat(_ANY_CHARACTER, 0, None), _QUOTE))
# A pair of escaped surrogates counts as one character.
_COUNTED_CHARACTER = parse(
    rf'[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u(?:[0-9abcefABCEF]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}}))'
)
_SHORT_ESCAPES = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
_MUST_ESCAPE = ((0, 31), (34, 34), (92, 92))
_ONE = Characters(((0, LAST_CODE_POINT),))


def string_node(shape: String, *, loosely: bool = False) -> Node:
    """Return the texts of a string, with its quotes. loosely: of all strings that some reading of the shape allows."""
    if shape.among is not None:
        texts = [text for text in shape.among if all(_passes(test, text, loosely) for test in shape.tests)]
        return Choice(tuple(quoted(text) for text in texts)) if texts else NEVER
    if not shape.tests:
        has_length = shape.least or shape.most is not None
        character = _COUNTED_CHARACTER if has_length else _ANY_CHARACTER
        return Sequence((_QUOTE, Repeat(character, shape.least, shape.most), _QUOTE))
    has_length = shape.least or shape.most is not None
    if len(shape.tests) == 1 and shape.tests[0].holds and not has_length:  # no automaton needed
        return in_quotes(_tree(shape.tests[0], loosely))
    return _bounded(shape, loosely) or in_quotes(string_language(shape, loosely=loosely).node())


def _bounded(shape: String, loosely: bool) -> Node | None:
    """Return strings of a format with a length that need no automaton for the count, None if there are none."""
    [first, *others] = shape.tests
    if others or loosely or first.keyword != "format" or not first.holds or shape.most is None:
        return None
    if not is_bounded(first.value, shape.least, shape.most):
        return None
    return in_quotes(bounded_node(first.value, shape.least, shape.most))


def string_language(shape: String, *, loosely: bool = False) -> Language:
    """Return the strings of a shape."""
    if shape.among is not None:
        texts = [text for text in shape.among if all(_passes(test, text, loosely) for test in shape.tests)]
        return Language.of(Choice(tuple(map(literal, texts))))
    language, shape = ANY_TEXT, shape if loosely else with_usual_limit(shape)
    for test in shape.tests:
        language = _within(test, partial(_limited, language, test, loosely, shape))
    return _with_length(language, shape, loosely) if shape.least or shape.most is not None else language


def with_usual_limit(shape: String) -> String:
    """Return a shape whose maxLength is at most what its formats count as (`MOST_OF`)."""
    if shape.most is None:
        return shape
    formats = [test.value for test in shape.tests if test.keyword == "format" and test.holds]
    limits = [MOST_OF[name] for name in formats if name in MOST_OF and MOST_OF[name] >= shape.least]
    return replace(shape, most=min([shape.most, *limits]))


def _with_length(language: Language, shape: String, loosely: bool) -> Language:
    """Return the texts of a language that have the length of a shape, all of them."""
    least, most = shape.least, shape.most
    language = language.minimal()
    longest = language.longest()
    if most is not None and longest is not None and longest <= most:
        most = None
    if not least and most is None:
        return language
    try:
        counted = language.of_length(least, most)
    except GrammarError:
        counted = None
    if counted is None or sum(map(len, counted.edges)) > MAX_RANGES:
        raise _too_long(language, shape, "minLength" if most is None else "maxLength")
    return counted


def _too_long(language: Language, shape: String, keyword: str) -> SchemaError:
    """Return the refusal of a length, with the largest one that is not refused."""
    ranges = max(1, num_ranges(_inside_json(language.node())), sum(map(len, language.edges)))
    largest = min(MAX_STATES // len(language.edges), MAX_RANGES // ranges) - 1
    test = shape.tests[0] if shape.tests else Test("length", "", "#")
    beside = (
        f"beside {test.keyword!r} it takes an automaton of about {len(language.edges)} states per character"
    )
    if largest < max(1, shape.least if keyword == "maxLength" else 1):
        return SchemaError(
            test.path, f"{keyword!r} cannot be counted: {beside}; leave out minLength and maxLength"
        )
    return SchemaError(
        test.path,
        f"{keyword!r} is too large to be counted: {beside}; leave it out, or make it at most {largest:,}",
    )


def quoted(text: str) -> Node:
    """Return the node of one string, as `json.dumps` writes it."""
    return literal(json.dumps(text, ensure_ascii=False))


def in_quotes(node: Node) -> Node:
    """Return the node of the same texts as strings of JSON."""
    return NEVER if node == NEVER else Sequence((_QUOTE, _inside_json(node), _QUOTE))


def _passes(test: Test, text: str, loosely: bool) -> bool:
    if test.keyword == "const":
        return (text == test.value) is test.holds
    return text in _limited(ANY_TEXT, test, loosely)


def _limited(language: Language, test: Test, loosely: bool, shape: String | None = None) -> Language:
    tree = Language.of(_tree(test, loosely, shape))
    return language & tree if test.holds else language - tree


def _tree(test: Test, loosely: bool, shape: String | None = None) -> Node:
    """Return the texts that a test is about; `loosely` or for one that must not hold, of all readings.

    shape: the strings that are needed of a format that must hold.
    """
    if test.keyword == "const":
        return literal(test.value)
    if test.keyword != "format":
        return found_by(test.value, test.path, NARROW if test.holds is not loosely else WIDE)
    if loosely:
        return Repeat(_ONE, 0, None)
    return (
        format_node(test.value, shape.least, shape.most) if shape and test.holds else format_node(test.value)
    )


def found_by(pattern: str, path: str, dialect: Dialect) -> Node:
    """Return the texts in which a pattern finds something."""
    try:
        ahead, rest = look_aheads(pattern)
        tree = parse(rest, anywhere=True, dialect=dialect)
        check_run(tree)
        if not ahead:
            return tree
        language = Language.of(tree)
        opposite = WIDE if dialect is NARROW else NARROW
        for one in ahead:
            reading = dialect if one.holds else opposite
            begins = Language.of(parse(one.pattern, anywhere=True, dialect=reading))
            language = language & begins if one.holds else language - begins
        return language.node()
    except GrammarError as error:
        raise SchemaError(
            path, f"the pattern is not supported by any backend (dfa, xgrammar): {error}"
        ) from error


def _within(test: Test, make: Callable[[], Language]) -> Language:
    try:
        return make()
    except SchemaError:
        raise
    except GrammarError as error:
        raise SchemaError(test.path, f"{test.keyword} together with the others: {error}") from error


def _inside_json(node: Node) -> Node:
    """Return the node of the same texts inside a JSON string, with escapes."""
    match node:
        case Sequence():
            return Sequence(tuple(map(_inside_json, node.parts)))
        case Choice():
            return Choice(tuple(map(_inside_json, node.options)))
        case Repeat():
            return Repeat(_inside_json(node.body), node.least, node.most)
        case Graph():
            moves = tuple(tuple((_inside_json(n), target) for n, target in moves) for moves in node.moves)
            return Graph(moves, node.ends)
        case Characters():
            return _escaped(node)
    return node


@lru_cache(maxsize=1024)
def _escaped(node: Characters) -> Node:
    plain = complement(merged([*complement(node.ranges), *_MUST_ESCAPE]))
    points = [
        point
        for first, last in _MUST_ESCAPE
        for point in range(first, last + 1)
        if any(low <= point <= high for low, high in node.ranges)
    ]
    options: list[Node] = [Characters(plain)] if plain else []
    after = {"\\": [_SHORT_ESCAPES[point] for point in points if point in _SHORT_ESCAPES]}
    for high in range(2):
        of_high = [point for point in points if point not in _SHORT_ESCAPES and point >> 4 == high]
        after[f"\\u00{high}"] = [f"{point & 15:x}" for point in of_high]
    for begin, ends in after.items():
        if ends:
            last = Characters(merged([(ord(end), ord(end)) for end in ends]))
            options.append(Sequence((literal(begin), last)))
    return options[0] if len(options) == 1 else Choice(tuple(options))
