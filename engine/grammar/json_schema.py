r"""Convert a JSON schema to a grammar of its JSON texts.

    {"type": "object", "required": ["a"],          \{ "a":  (0|[1-9][0-9]*)  (, "b":  (true|false))?  \}
     "properties": {"a": {"type": "integer",
                          "minimum": 0},
                    "b": {"type": "boolean"}}}

    schema --expand--> forms: references resolved, conjunctions merged, types apart --compile--> rules of a grammar
                                                                                               |--inline--> dfa
                                                                                               |--ebnf----> xgrammar

Both backends take the same rules, so a schema means the same in both. What no rule can express is refused with its
keyword and its place; what the standard calls an annotation is ignored, and so is a keyword that it does not know.

Every match is valid, though not every valid text matches: properties come in the schema's order; an object that lists
properties and does not mention others has no others, as in vLLM with xgrammar; numbers with limits are plain decimals;
an integer has no fraction. A regular expression cannot count brackets, so for the backend dfa recursion is refused and
a value of any type nests `ANY_DEPTH` deep.

Sources: JSON Schema, drafts 7 and 2020-12; Willard and Louf 2023, section 4; Outlines' build_regex_from_schema.
"""

from __future__ import annotations

from typing import Any

from engine.grammar.regex import Node
from engine.grammar.rules import ROOT, RecursionFoundError, Rules, inlined, named
from engine.grammar.schema.layout import MAX_DIGITS, MAX_WHITESPACE, Layout
from engine.grammar.schema.places import SchemaError
from engine.grammar.schema.texts import SchemaCompiler
from engine.grammar.size import MAX_NFA_STATES, Sizes, too_large
from engine.grammar.xgrammar_backend import how_to_use

ANY_DEPTH = 3
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains")


def schema_rules(
    schema: Any, layout: Layout, *, any_depth: int | None = None, is_closed: bool = True
) -> Rules:
    """Return the grammar of a schema's JSON texts. any_depth: maximum nesting of a value of any type."""
    return SchemaCompiler(schema, layout, any_depth, is_closed=is_closed).rules()


def schema_tree(
    schema: Any,
    *,
    compact: bool = False,
    any_depth: int = ANY_DEPTH,
    max_whitespace: int = MAX_WHITESPACE,
    max_digits: int = MAX_DIGITS,
    is_closed: bool = True,
) -> Node:
    """Return the pattern of a schema's JSON texts. compact: without whitespace between tokens, else with some.

    any_depth: maximum nesting of a value of any type. is_closed: see above, objects that list properties.
    """
    layout = Layout(compact, max_whitespace, max_digits)
    compiler = SchemaCompiler(schema, layout, any_depth, is_closed=is_closed)
    rules = compiler.rules()
    try:
        tree = inlined(rules)
    except RecursionFoundError as error:
        why = "it leads back here, and a regular expression cannot count how deep; the backend xgrammar can: "
        raise SchemaError(
            compiler.path_of(error.name), f"'$ref' is not supported by the backend dfa: {why}{how_to_use()}"
        ) from error
    _check_sizes(compiler, rules)
    return tree


def _check_sizes(compiler: SchemaCompiler, rules: Rules) -> None:
    """Raise SchemaError with the place whose automaton is too large, though those inside it are not."""
    sizes, rule = Sizes(rules), ROOT
    while sizes.of(rules[rule]).states > MAX_NFA_STATES:
        inner = sorted(
            filter(compiler.places_of, named(rules[rule])), key=lambda name: -sizes.of(rules[name]).states
        )
        if inner and sizes.of(rules[inner[0]]).states > MAX_NFA_STATES:
            rule = inner[0]
            continue
        counts = {
            name: place.schema[name]
            for place in compiler.places_of(rule)
            for name in COUNTS
            if name in place.schema
        }
        keyword = max(counts, key=lambda name: counts[name], default="")
        largest = f"most of them at {compiler.path_of(inner[0])}; " if inner else ""
        what, fix = (f"{keyword!r} ", "lower it") if keyword else ("", f"{largest}make the schema smaller")
        why = f"{too_large(sizes.of(rules[rule]).states)}; {fix}, or use the backend xgrammar: {how_to_use()}"
        raise SchemaError(compiler.path_of(rule), f"{what}is not supported by the backend dfa: {why}")
