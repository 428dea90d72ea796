"""Compile a JSON schema to the grammar of its texts: one rule for each set of schemas that apply to a value.

{"$ref": "#/$defs/tree"}      root    <r0>
                              r0      "{" ("left" ":" <r0>)? "}"         as a regular expression: refused
{}                            any     string | number | "[" <any> ...    as a regular expression: `any_depth` deep
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.core.grammar_protocol import GrammarError
from engine.grammar.language import Language
from engine.grammar.regex import MAX_REPEAT, NEVER, Choice, Node, Rule, Sequence, literal, optional
from engine.grammar.rules import ROOT, Rules, cleaned, named
from engine.grammar.schema import references
from engine.grammar.schema.apart import are_apart
from engine.grammar.schema.arrays import array_node
from engine.grammar.schema.forms import Expander
from engine.grammar.schema.layout import Layout
from engine.grammar.schema.numbers import any_number, number_node
from engine.grammar.schema.objects import object_node
from engine.grammar.schema.places import SchemaError, UnsupportedError
from engine.grammar.schema.shapes import Array, Boolean, Null, Number, Object, Places, Shape, String, together
from engine.grammar.schema.strings import ANY_STRING, quoted, string_language, string_node, with_usual_limit
from engine.grammar.size import MAX_RANGES, num_ranges

MAX_RULES = 5_000


class SchemaCompiler:
    """Compiler of one schema. any_depth: nesting of a value of any type; None: any."""

    def __init__(self, schema: Any, layout: Layout, any_depth: int | None, *, is_closed: bool = True) -> None:
        self.layout = layout
        self.any_depth = any_depth
        self.is_closed = is_closed
        self.expander = Expander(schema)
        self.expander.is_apart = lambda places: are_apart(self.expander, places)
        self._rules: Rules = dict(layout.rules())
        self._names: dict[Places, str] = {}
        self._strings: dict[String, Node] = {}
        self._num_ranges = 0
        self._left_out: SchemaError | None = None  # The first value left out because it would be too long

    def rules(self) -> Rules:
        """Return the grammar. Raises SchemaError for what cannot be enforced."""
        self._rules[ROOT] = self._value(together((self.expander.root,)))
        try:
            return cleaned(self._rules)
        except GrammarError as error:
            raise self._left_out or SchemaError("#", str(error)) from error

    def path_of(self, rule: str) -> str:
        """Return the place of the first schema of a rule."""
        return next((place.path for place in self.places_of(rule)), "#")

    def places_of(self, rule: str) -> Places:
        """Return the schemas of a rule."""
        return next((places for places, name in self._names.items() if name == rule), ())

    def _value(self, places: Places) -> Node:
        """Return the rule of the values that satisfy these schemas."""
        if not places:
            return self._anything(self.any_depth)
        if places not in self._names:
            if len(self._names) >= MAX_RULES:
                raise UnsupportedError(
                    places[0].path,
                    "allOf",
                    f"it makes more than {MAX_RULES:,} schemas of one; use fewer of them at once",
                )
            name = self._names[places] = f"r{len(self._names)}"
            options = [
                self._of_shape(shape, places)
                for shapes in self.expander.all_of(places).values()
                for shape in shapes
            ]
            self._rules[name] = Choice(tuple(options))
        return Rule(self._names[places])

    def _of_shape(self, shape: Shape, places: Places) -> Node:
        path = places[0].path
        keyword, least = _lower_bound(shape)
        if least > MAX_REPEAT:
            why = f"must be at most {MAX_REPEAT:,}, got {least}; lower it"
            self._left_out = self._left_out or SchemaError(f"{path}/{keyword}", why)
            return NEVER
        try:
            match shape:
                case Null():
                    return literal("null")
                case Boolean():
                    return Choice(
                        tuple(literal("true" if value else "false") for value in sorted(shape.values))
                    )
                case Number():
                    return number_node(shape, self.layout.max_digits)
                case String():
                    return self._string(shape, path)
                case Array():
                    return array_node(shape, path, self.layout, self._value, self._constants)
                case Object():
                    return object_node(
                        shape,
                        path,
                        self.layout,
                        self._value,
                        self._is_impossible,
                        self._allowed_names(shape),
                        is_closed=self.is_closed,
                    )
        except SchemaError:
            raise
        except GrammarError as error:
            raise SchemaError(path, f"not supported by any backend (dfa, xgrammar): {error}") from error
        raise AssertionError(shape)

    def _string(self, shape: String, path: str) -> Node:
        """Return the strings of a shape; equal ones with an automaton are one rule. Raises SchemaError if too large."""
        if not shape.tests or shape.among is not None:
            return string_node(shape)
        shape = with_usual_limit(shape)
        key = replace(shape, tests=tuple(replace(test, path="") for test in shape.tests))
        if key not in self._strings:
            node = string_node(shape)
            self._take(num_ranges(node), shape, path)
            name = f"s{len(self._strings)}"
            self._rules[name], self._strings[key] = node, Rule(name)
            self._rules |= {inner: references.rules()[inner] for inner in named(node)}
        return self._strings[key]

    def _take(self, number: int, shape: String, path: str) -> None:
        """Take the ranges of a string's automaton from those of the schema. Raises SchemaError if they are too many."""
        left, self._num_ranges = MAX_RANGES - self._num_ranges, self._num_ranges + number
        if number <= left:
            return
        keyword, fix = shape.tests[0].keyword, "leave it out or make it shorter"
        if shape.least or shape.most is not None:
            is_least = shape.most is None
            keyword, length = ("minLength", shape.least) if is_least else ("maxLength", shape.most or 0)
            largest = length * left * 9 // number // 10
            fix = f"leave it out, or make it at most {largest:,}"
            if largest < (1 if is_least else max(1, shape.least)):
                fix = "leave out minLength and maxLength"
        why = f"the automata of the schema's strings, up to here, need more than {MAX_RANGES:,} ranges of characters"
        raise SchemaError(path, f"{keyword!r} makes the schema too large: {why}; {fix}")

    def _is_impossible(self, places: Places) -> bool:
        return not self.expander.all_of(places)

    def _allowed_names(self, shape: Object) -> Language | None:
        if not shape.name_rules:
            return None
        language = Language([[]], set())
        for strings in self.expander.all_of(shape.name_rules).get("string", ()):
            language |= string_language(strings)
        return language

    def _constants(self, places: Places) -> dict[str, Node] | None:
        """Return the nodes of all values that satisfy these schemas, by their text; None for others than constants."""
        nodes: dict[str, Node] = {}
        for shape in (s for shapes in self.expander.all_of(places).values() for s in shapes):
            match shape:
                case Null():
                    nodes["null"] = literal("null")
                case Boolean():
                    nodes |= {str(value): literal(str(value).lower()) for value in shape.values}
                case String() if shape.among is not None and not shape.tests:
                    nodes |= {f'"{text}': quoted(text) for text in shape.among}
                case Number() if shape.among is not None:
                    values = filter(shape.holds, shape.among)
                    nodes |= {str(v): number_node(Number(among=frozenset({v}))) for v in values}
                case _:
                    return None
        return nodes

    def _anything(self, depth: int | None) -> Node:
        name = "any" if depth is None else f"any{depth}"
        if name not in self._rules:
            number = any_number(self.layout.max_digits)
            options: list[Node] = [ANY_STRING, number, literal("true"), literal("false"), literal("null")]
            self._rules[name] = Choice(tuple(options))  # known before its items are
            if depth != 0:
                inner = self._anything(None if depth is None else depth - 1)
                member = Sequence((ANY_STRING, self.layout.colon, inner))
                options += [
                    self.layout.enclosed("{", optional(self.layout.several(member)), "}"),
                    self.layout.enclosed("[", optional(self.layout.several(inner)), "]"),
                ]
                self._rules[name] = Choice(tuple(options))
        return Rule(name)


def _lower_bound(shape: Shape) -> tuple[str, int]:
    """Return the keyword and the number of characters, items or members that every value of a shape has."""
    match shape:
        case String():
            return "minLength", shape.least
        case Array() if shape.contains:
            return max(
                ("minItems", shape.least),
                ("minContains", shape.contains[0].least),
                key=lambda bound: bound[1],
            )
        case Array():
            return "minItems", shape.least
        case Object():
            return "minProperties", shape.least
    return "", 0
