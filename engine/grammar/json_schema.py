r"""Convert a JSON schema to a regular expression.

    {"type": "object", "required": ["a"],          \{ "a":  (0|[1-9][0-9]*)  (, "b":  (true|false))?  \}
     "properties": {"a": {"type": "integer",
                          "minimum": 0},
                    "b": {"type": "boolean"}}}

Properties come in the schema's order, without additional ones: every match is valid, though not every valid text
matches. A regular expression cannot count brackets, so recursive `$ref`s are rejected, and a value of any type nests
`ANY_DEPTH` deep. Keywords that cannot be expressed exactly (multipleOf, uniqueItems, not, ...) are rejected with their
place in the schema, never ignored.

Source: Willard and Louf 2023, section 4; Outlines' build_regex_from_schema for the idea.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import ceil, floor
from typing import Any

from engine.core.grammar_protocol import GrammarError
from engine.grammar import regex
from engine.grammar.numbers import integers, numbers
from engine.grammar.regex import Characters, Choice, Node, Repeat, Sequence, literal, optional, parse

ANY_DEPTH = 3
MAX_PLAIN_NUMBER = 10**9  # Largest bound of a `number` that is safe from rounding

ANNOTATIONS = frozenset(
    "title description default examples deprecated readOnly writeOnly $schema $id $comment $defs definitions "
    "discriminator".split()
)
"""Annotations, which do not constrain values."""
COMBINING = frozenset({"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"})
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
KEYWORDS_OF_TYPE = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "integer": _BOUNDS,
    "number": _BOUNDS,
    "boolean": frozenset(),
    "null": frozenset(),
}

_HEX = "[0-9a-fA-F]"
_ANY_CHARACTER = parse(rf'[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u{_HEX}{{4}})')
_ANY_STRING = Sequence((literal('"'), Repeat(_ANY_CHARACTER, 0, None), literal('"')))
# A pair of escaped surrogates counts as one character.
_COUNTED_CHARACTER = parse(
    rf'[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u(?:[0-9abcefABCEF]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}}))'
)
_INTEGER = parse("0|-?[1-9][0-9]*")
_NUMBER = parse(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_DATE = (
    "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_HOST = "[a-zA-Z0-9]+(?:-[a-zA-Z0-9]+)*"
_HOUR = "(?:[01][0-9]|2[0-3])"
_TIME = rf"{_HOUR}:[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-]{_HOUR}:[0-5][0-9])"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "ipv4": rf"(?:{_BYTE}\.){{3}}{_BYTE}",
    "email": rf"[a-zA-Z0-9_+-]+(?:\.[a-zA-Z0-9_+-]+)*@{_HOST}(?:\.{_HOST})+",
}
_SHORT_ESCAPES = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
_MUST_ESCAPE = ((0, 31), (34, 34), (92, 92))


def schema_tree(schema: Any, *, compact: bool = False, any_depth: int = ANY_DEPTH) -> Node:
    """Return the pattern of a schema's JSON texts. compact: as `json.dumps` writes them, else with any whitespace.

    any_depth: maximum nesting of a value of any type.
    """
    return _Builder(schema, compact, any_depth).value(schema, "#", ())


def check_keywords(schema: Any, path: str = "#") -> None:
    """Raise SchemaError for keywords that a backend would ignore."""
    if not isinstance(schema, Mapping):
        return
    known = frozenset().union(ANNOTATIONS, COMBINING, *KEYWORDS_OF_TYPE.values())
    for name in schema:
        if name not in known:
            raise SchemaError(path, f"{name!r} is not supported")
    _types(schema, path)
    _check_combinations(schema, path)
    _check_string(schema, path)
    for name in ("properties", "$defs", "definitions"):
        for key, inner in dict(schema.get(name, {})).items():
            check_keywords(inner, f"{path}/{name}/{key}")
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for index, inner in enumerate(schema.get(name, [])):
            check_keywords(inner, f"{path}/{name}/{index}")
    for name in ("items", "additionalProperties"):
        check_keywords(schema.get(name), f"{path}/{name}")


def _check_string(schema: Mapping[str, Any], path: str) -> None:
    said = [name for name in ("pattern", "format") if name in schema]
    if len(said) + bool({"minLength", "maxLength"} & schema.keys()) > 1:
        raise SchemaError(path, "only one of pattern, format and a length is supported at once")
    for name in said:
        if not isinstance(schema[name], str):
            raise SchemaError(f"{path}/{name}", f"must be text, got {schema[name]!r}")
    if schema.get("format", "date") not in FORMATS:
        known = ", ".join(FORMATS)
        raise SchemaError(f"{path}/format", f"{schema['format']!r} is not supported; known ones: {known}")


class SchemaError(GrammarError):
    """A schema that is invalid, or has no regular expression."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"JSON schema at {path}: {what}")


class _Builder:
    """One method per kind of schema. `path`: place in the schema; `refs`: references that led there."""

    def __init__(self, root: Any, compact: bool, any_depth: int) -> None:
        self.root = root
        self.any_depth = any_depth
        space = literal("") if compact else parse(r"[ \n\r\t]*")
        self.comma = literal(", ") if compact else Sequence((space, literal(","), space))
        self.colon = literal(": ") if compact else Sequence((space, literal(":"), space))
        self.space = space

    def value(self, schema: Any, path: str, refs: tuple[str, ...]) -> Node:
        if schema is True or schema == {}:
            return self.anything(self.any_depth)
        if not isinstance(schema, Mapping):
            raise SchemaError(path, f"a schema is an object or true, not {schema!r}")
        if "$ref" in schema:
            return self._ref(schema, path, refs)
        for name in ("enum", "const"):
            if name in schema:
                return self._constants(schema, name, path)
        for name in ("anyOf", "oneOf", "allOf"):
            if name in schema:
                self._refuse_beside(schema, name, path)
                _check_combinations(schema, path)
                return _choice(self._values(schema[name], f"{path}/{name}", refs))
        kinds = _types(schema, path)
        known = ANNOTATIONS | {"type"} | frozenset().union(*(KEYWORDS_OF_TYPE[kind] for kind in kinds))
        for name in schema:
            if name not in known:
                others = [kind for kind, keywords in KEYWORDS_OF_TYPE.items() if name in keywords]
                hint = f": it belongs to {' and '.join(others)}, and this is {' or '.join(kinds)}"
                raise SchemaError(path, f"{name!r} is not supported{hint if others else ''}")
        builders: dict[str, Callable[[], Node]] = {
            "object": lambda: self._object(schema, path, refs),
            "array": lambda: self._array(schema, path, refs),
            "string": lambda: self._string(schema, path),
            "integer": lambda: self._integer(schema, path),
            "number": lambda: self._number(schema, path),
            "boolean": lambda: Choice((literal("true"), literal("false"))),
            "null": lambda: literal("null"),
        }
        return _choice([builders[kind]() for kind in kinds])

    # Schemas made of schemas

    def _ref(self, schema: Mapping[str, Any], path: str, refs: tuple[str, ...]) -> Node:
        self._refuse_beside(schema, "$ref", path)
        name, path = schema["$ref"], f"{path}/$ref"
        if not isinstance(name, str) or not name.startswith("#"):
            raise SchemaError(path, f"only references into this schema (#/...) are supported, not {name!r}")
        if name in refs:
            what = (
                "leads back to itself; a regular expression cannot count how deep, the backend xgrammar can"
            )
            raise SchemaError(path, f"{name} {what}")
        target = self.root
        for part in name[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or key not in target:
                raise SchemaError(path, f"{name} is not in this schema")
            target = target[key]
        return self.value(target, name, (*refs, name))

    def _constants(self, schema: Mapping[str, Any], name: str, path: str) -> Node:
        self._refuse_beside(schema, name, path, "type")
        values = schema["enum"] if name == "enum" else [schema["const"]]
        if not isinstance(values, list) or not values:
            raise SchemaError(f"{path}/{name}", f"must be a list of at least one value, got {values!r}")
        if "type" in schema:
            kinds = _types(schema, path)
            values = [value for value in values if _is_of_type(value, kinds)]
        return _choice([literal(_dumps(value)) for value in values])

    def _values(self, schemas: list[Any], path: str, refs: tuple[str, ...]) -> list[Node]:
        return [self.value(schema, f"{path}/{index}", refs) for index, schema in enumerate(schemas)]

    def _refuse_beside(self, schema: Mapping[str, Any], name: str, path: str, *allowed: str) -> None:
        for other in schema:
            if other != name and other not in ANNOTATIONS and other not in allowed:
                raise SchemaError(path, f"{other!r} beside {name!r} is not supported; put it inside")

    # Containers

    def _object(self, schema: Mapping[str, Any], path: str, refs: tuple[str, ...]) -> Node:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, Mapping):
            raise SchemaError(f"{path}/properties", f"must be an object, got {properties!r}")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise SchemaError(f"{path}/required", f"must be a list of names, got {required!r}")
        others = schema.get("additionalProperties", not properties and not required)
        if not properties and not required and others is not False:
            return self._map(self.value(others, f"{path}/additionalProperties", refs))
        members: list[tuple[Node, bool]] = []
        for name in dict.fromkeys([*properties, *required]):
            member = properties.get(name, others if others is not False else None)
            if member is None:
                raise SchemaError(
                    f"{path}/required", f"{name!r} is required and no property may have that name"
                )
            node = self.value(member, f"{path}/properties/{name}", refs)
            members.append((Sequence((literal(_dumps(name)), self.colon, node)), name in required))
        return self._braces("{", self._listed(members), "}")

    def _listed(self, members: list[tuple[Node, bool]]) -> Node:
        """Return members in order, separated by commas; True marks required ones."""
        sure = [is_sure for _, is_sure in members]
        if not any(sure):  # any of them may be first
            options = [self._listed([(node, True), *members[i + 1 :]]) for i, (node, _) in enumerate(members)]
            return optional(_choice(options)) if options else literal("")
        first = sure.index(True)
        before = [optional(Sequence((node, self.comma))) for node, _ in members[:first]]
        later = [(Sequence((self.comma, node)), is_sure) for node, is_sure in members[first + 1 :]]
        after = [node if is_sure else optional(node) for node, is_sure in later]
        return Sequence((*before, members[first][0], *after))

    def _map(self, value: Node) -> Node:
        """Return the pattern of an object with any keys."""
        return self._braces("{", self._several(Sequence((_ANY_STRING, self.colon, value)), 0, None), "}")

    def _array(self, schema: Mapping[str, Any], path: str, refs: tuple[str, ...]) -> Node:
        least, most = self._limits(schema, "minItems", "maxItems", path)
        firsts = schema.get("prefixItems", [])
        if not isinstance(firsts, list):
            raise SchemaError(f"{path}/prefixItems", f"must be a list of schemas, got {firsts!r}")
        items = schema.get("items", True)
        fixed = self._values(firsts[:most], f"{path}/prefixItems", refs)
        if items is False:
            most = len(fixed) if most is None else min(most, len(fixed))
            if least > most:
                raise SchemaError(f"{path}/items", f"minItems is {least}, and there are only {most} items")
        if not fixed:
            item = literal("") if items is False else self.value(items, f"{path}/items", refs)
            return self._braces("[", self._several(item, least, most), "]")
        # Items after the fixed ones; an array may end among them, from `least` on.
        body: Node = literal("")
        if items is not False and most != len(fixed):
            item = Sequence((self.comma, self.value(items, f"{path}/items", refs)))
            body = Repeat(item, max(0, least - len(fixed)), None if most is None else most - len(fixed))
        for index in reversed(range(len(fixed))):
            part = Sequence((fixed[index] if index == 0 else Sequence((self.comma, fixed[index])), body))
            body = part if index < least else optional(part)
        return self._braces("[", body, "]")

    def _several(self, item: Node, least: int, most: int | None) -> Node:
        """Return `least` to `most` items separated by commas."""
        if most == 0:
            return literal("")
        more = Repeat(Sequence((self.comma, item)), max(0, least - 1), None if most is None else most - 1)
        listed = Sequence((item, more))
        return optional(listed) if least == 0 else listed

    def _braces(self, opening: str, body: Node, closing: str) -> Node:
        return Sequence((literal(opening), self.space, body, self.space, literal(closing)))

    def anything(self, depth: int) -> Node:
        """Return the pattern of any value, with arrays and objects up to `depth` deep."""
        options: list[Node] = [_ANY_STRING, _NUMBER, literal("true"), literal("false"), literal("null")]
        if depth:
            inner = self.anything(depth - 1)
            options += [self._map(inner), self._braces("[", self._several(inner, 0, None), "]")]
        return Choice(tuple(options))

    # Strings and numbers

    def _string(self, schema: Mapping[str, Any], path: str) -> Node:
        least, most = self._limits(schema, "minLength", "maxLength", path)
        _check_string(schema, path)
        name = next((name for name in ("pattern", "format") if name in schema), None)
        if name is None:
            character = _COUNTED_CHARACTER if least or most is not None else _ANY_CHARACTER
            return Sequence((literal('"'), Repeat(character, least, most), literal('"')))
        text = schema[name]
        try:
            tree = parse(FORMATS[text]) if name == "format" else parse(text, anywhere=True)
        except GrammarError as error:
            raise SchemaError(f"{path}/{name}", str(error)) from error
        return Sequence((literal('"'), _inside_json(tree), literal('"')))

    def _integer(self, schema: Mapping[str, Any], path: str) -> Node:
        low, high, without_low, without_high = self._bounds(schema, path)
        if low is None and high is None:
            return _INTEGER
        if low is not None:
            low = floor(low) + 1 if without_low else ceil(low)
        if high is not None:
            high = ceil(high) - 1 if without_high else floor(high)
        if low is not None and high is not None and low > high:
            raise SchemaError(path, "no integer lies between these bounds")
        return integers(low, high)

    def _number(self, schema: Mapping[str, Any], path: str) -> Node:
        low, high, without_low, without_high = self._bounds(schema, path)
        bounds = [bound for bound in (low, high) if bound is not None]
        if not bounds:
            return _NUMBER
        for bound in bounds:
            if bound != int(bound) or abs(bound) > MAX_PLAIN_NUMBER:
                limit = f"whole and at most {MAX_PLAIN_NUMBER:,} to be kept"
                raise SchemaError(path, f"a number's bounds must be {limit}, got {bound}")
        is_open = without_low or without_high
        if len(bounds) == 2 and (bounds[0] > bounds[1] or (bounds[0] == bounds[1] and is_open)):
            raise SchemaError(path, "no number lies between these bounds")
        least, most = (None if bound is None else int(bound) for bound in (low, high))
        return numbers(least, most, without_low, without_high)

    def _bounds(
        self, schema: Mapping[str, Any], path: str
    ) -> tuple[int | float | None, int | float | None, bool, bool]:
        """Return lowest and highest value, and whether each is excluded."""
        for name in KEYWORDS_OF_TYPE["number"]:
            value = schema.get(name, 0)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise SchemaError(f"{path}/{name}", f"must be a number, got {value!r}")
        low, high = schema.get("minimum"), schema.get("maximum")
        above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        without_low = above is not None and (low is None or above >= low)
        without_high = below is not None and (high is None or below <= high)
        return above if without_low else low, below if without_high else high, without_low, without_high

    def _limits(self, schema: Mapping[str, Any], least: str, most: str, path: str) -> tuple[int, int | None]:
        for name in (least, most):
            value = schema.get(name, 0)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise SchemaError(f"{path}/{name}", f"must be an integer of at least 0, got {value!r}")
        low, high = schema.get(least, 0), schema.get(most)
        if high is not None and high < low:
            raise SchemaError(path, f"{least} is {low} and {most} is {high}")
        return low, high


def _types(schema: Mapping[str, Any], path: str) -> list[str]:
    """Return the types of a value; without `type`, those that the keywords apply to."""
    named = schema.get("type")
    if named is None:
        kinds = [kind for kind, keywords in KEYWORDS_OF_TYPE.items() if keywords & schema.keys()]
        if "integer" in kinds:
            kinds.remove("integer")  # bounds alone: every number
        return kinds or list(KEYWORDS_OF_TYPE)
    kinds = [named] if isinstance(named, str) else named
    if not isinstance(kinds, list) or not kinds or not all(kind in KEYWORDS_OF_TYPE for kind in kinds):
        known = ", ".join(KEYWORDS_OF_TYPE)
        raise SchemaError(f"{path}/type", f"{named!r} is not a JSON type; choose from {known}")
    return kinds


def _are_apart(options: list[Any], path: str) -> bool:
    """Whether the schemas are disjoint, as far as types and constants tell."""
    kinds: list[str] = []
    constants: list[Any] = []
    for option in options:
        if not isinstance(option, Mapping):
            return False
        if "const" in option or "enum" in option:
            constants += [option["const"]] if "const" in option else option["enum"]
        elif "type" in option:
            kinds += ["number" if kind == "integer" else kind for kind in _types(option, path)]
        else:
            return False
    return (
        len(set(kinds)) == len(kinds)
        and len(set(map(_dumps, constants))) == len(constants)
        and not any(_is_of_type(constant, kinds) for constant in constants)
    )


def _check_combinations(schema: Mapping[str, Any], path: str) -> None:
    for name in ("anyOf", "oneOf", "allOf"):
        options = schema.get(name)
        if options is None:
            continue
        if not isinstance(options, list) or not options:
            raise SchemaError(f"{path}/{name}", f"must be a list of schemas, got {options!r}")
        if name == "allOf" and len(options) > 1:
            raise SchemaError(f"{path}/allOf", "more than one schema at once is not supported; merge them")
        if name == "oneOf" and not _are_apart(options, path):
            problem = "a value might fit several of these, which is not checked; use anyOf if that is fine"
            raise SchemaError(f"{path}/oneOf", problem)


def _inside_json(node: Node) -> Node:
    """Return the pattern of the same texts inside a JSON string, with escapes."""
    if isinstance(node, Sequence):
        return Sequence(tuple(map(_inside_json, node.parts)))
    if isinstance(node, Choice):
        return Choice(tuple(map(_inside_json, node.options)))
    if isinstance(node, Repeat):
        return Repeat(_inside_json(node.body), node.least, node.most)
    escaped = [
        literal("\\" + _SHORT_ESCAPES[point] if point in _SHORT_ESCAPES else f"\\u{point:04x}")
        for first, last in _MUST_ESCAPE
        for point in range(first, last + 1)
        if any(low <= point <= high for low, high in node.ranges)
    ]
    plain = regex.complement(regex.merged([*regex.complement(node.ranges), *_MUST_ESCAPE]))
    return _choice([Characters(plain), *escaped])


def _choice(options: list[Node]) -> Node:
    return options[0] if len(options) == 1 else Choice(tuple(options))


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _is_of_type(value: Any, kinds: list[str]) -> bool:
    if isinstance(value, bool) or value is None:
        return ("null" if value is None else "boolean") in kinds
    if isinstance(value, (int, float)):
        return "number" in kinds or ("integer" in kinds and value == int(value))
    names: dict[type, str] = {str: "string", list: "array", dict: "object"}
    return names[type(value)] in kinds
