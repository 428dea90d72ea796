"""Mutants as patches to syntax trees, so that formatting, comments and the wording of messages do not matter.

A patch names a function and two pieces of Python, `old` and `new`: expressions, or statements.

    patched(source, "share_of", "hits / len(_1)", "hits")        replaces an expression
    patched(source, "Pool.release", "if full: ...", "pass")      drops a statement
    patched(source, "", "LIMIT = 10", "LIMIT = 9")               changes a constant of the module

In `old`, `_` and `_1` to `_9` match any expression, and `...` any number of statements, arguments or elements. `new`
may use `_1` to `_9` again, and its `...` stand for those of `old`, in order. `old` must match exactly one place.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Found = dict[str, Any]


@dataclass(frozen=True)
class Mutation:
    """A plausible mistake in one function, or in the module itself for function ""."""

    name: str
    """The mutant's behaviour, as a claim about it."""
    module: str
    function: str
    """`function`, `Class.method`, or ""."""
    old: str
    new: str
    caught_by: Any = None
    """The test that must fail."""

    def apply(self, source: str) -> str:
        """The source of its module with the mistake in it. Raises ValueError if it does not fit exactly one place."""
        try:
            return patched(source, self.function, self.old, self.new)
        except ValueError as error:
            raise ValueError(f"{self.name} in {self.module}: {error}") from None


def read_mutations(text: str) -> list[Mutation]:
    """Mutations from a table that is indented in steps of four: module, test, `name in function`, `old => new`.

    `in the module` stands for function "", and `\\n` in a patch for the end of a line. A long patch may go on in a
    second line that starts with `=>`.
    """
    found = []
    module = test = name = function = old = ""
    for line in filter(str.strip, text.splitlines()):
        depth, words = (len(line) - len(line.lstrip())) // 4, line.strip()
        if depth == 0:
            module = words
        elif depth == 1:
            test = words
        elif depth == 2:
            name, function = words.split(" in ")
        else:
            before, arrow, new = words.replace("\\n", "\n").partition("=> ")
            old = before.strip() or old
            if arrow:
                found.append(Mutation(name, module, function.replace("the module", ""), old, new, test))
    return found


def patched(source: str, function: str, old: str, new: str) -> str:
    """`source` with the one match of `old` inside `function` replaced by `new`. Raises ValueError."""
    tree = ast.parse(source)
    pattern, replacement = _parse(old), _parse(new)
    if isinstance(pattern, list) != isinstance(replacement, list):  # an expression stands as a statement
        pattern, replacement = _statements(pattern), _statements(replacement)
    places = list(_places(_find(tree, function), pattern))
    if len(places) != 1:
        raise ValueError(f"{old!r} matches {len(places)} places of {function or 'the module'}")
    parent, name, start, count, found = places[0]
    filled = _filled(replacement, found)
    if start is None:
        setattr(parent, name, filled)
    else:
        getattr(parent, name)[start : start + count] = filled if isinstance(filled, list) else [filled]
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _statements(parsed: ast.expr | list[ast.stmt]) -> list[ast.stmt]:
    return parsed if isinstance(parsed, list) else [ast.Expr(parsed)]


def _parse(text: str) -> ast.expr | list[ast.stmt]:
    """A pattern: an expression where the text is one, else statements."""
    body = ast.parse(text).body
    single = body[0] if len(body) == 1 else None
    return single.value if isinstance(single, ast.Expr) and not _is_rest(single) else body


def _find(tree: ast.Module, function: str) -> ast.AST:
    """The definition with that dotted name."""
    found: ast.AST = tree
    for part in filter(None, function.split(".")):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        inside = [node for node in ast.walk(found) if isinstance(node, kinds) and node.name == part]
        if len(inside) != 1:
            raise ValueError(f"{function!r}: {part} is defined {len(inside)} times")
        found = inside[0]
    return found


def _places(
    scope: ast.AST, pattern: ast.expr | list[ast.stmt]
) -> Iterator[tuple[ast.AST, str, int | None, int, Found]]:
    """Each match: its parent, the field, the index and number of the matched elements, what wildcards stand for."""
    for parent in ast.walk(scope):
        for name, value in ast.iter_fields(parent):
            if isinstance(pattern, list):
                if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    for start in range(len(value) - len(pattern) + 1):
                        found: Found = {"...": []}
                        if _match_list(pattern, value[start : start + len(pattern)], found):
                            yield parent, name, start, len(pattern), found
                continue
            for index, node in enumerate(value if isinstance(value, list) else [value]):
                found = {"...": []}
                if isinstance(node, ast.expr) and _match(pattern, node, found):
                    yield parent, name, index if isinstance(value, list) else None, 1, found


def _match(pattern: Any, node: Any, found: Found) -> bool:
    """Whether a tree fits a pattern; `found` gets what its wildcards stand for."""
    if isinstance(pattern, ast.Name) and re.fullmatch(r"_\d?", pattern.id) and isinstance(node, ast.expr):
        seen = found.setdefault(pattern.id, node)
        return pattern.id == "_" or ast.dump(seen) == ast.dump(node)
    if isinstance(pattern, list):
        return isinstance(node, list) and _match_list(pattern, node, found)
    if not isinstance(pattern, ast.AST):
        return type(pattern) is type(node) and pattern == node
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, ast.Call) and isinstance(node, ast.Call):
        return _match(pattern.func, node.func, found) and _match_list(
            [*pattern.args, *pattern.keywords], [*node.args, *node.keywords], found
        )
    return all(
        _match(value, getattr(node, name), found)
        for name, value in ast.iter_fields(pattern)
        if name not in ("ctx", "type_comment", "kind")
    )


def _match_list(pattern: Sequence[Any], nodes: Sequence[Any], found: Found) -> bool:
    if not pattern:
        return not nodes
    if not _is_rest(pattern[0]):
        return (
            bool(nodes) and _match(pattern[0], nodes[0], found) and _match_list(pattern[1:], nodes[1:], found)
        )
    for taken in range(len(nodes), -1, -1):
        attempt = {**found, "...": [*found["..."], list(nodes[:taken])]}
        if _match_list(pattern[1:], nodes[taken:], attempt):
            found.update(attempt)
            return True
    return False


def _is_rest(node: Any) -> bool:
    inner = node.value if isinstance(node, ast.Expr) else node
    return isinstance(inner, ast.Constant) and inner.value is ...


def _filled(pattern: Any, found: Found) -> Any:
    """The replacement with what the wildcards stand for."""
    rests = iter(found["..."])

    def fill(value: Any) -> Any:
        if isinstance(value, ast.Name) and re.fullmatch(r"_\d", value.id):
            return copy.deepcopy(found[value.id])
        if isinstance(value, list):
            return [each for item in value for each in (next(rests) if _is_rest(item) else [fill(item)])]
        if isinstance(value, ast.Call):
            value.func = fill(value.func)
            both = fill([*value.args, *value.keywords])
            value.args = [each for each in both if not isinstance(each, ast.keyword)]
            value.keywords = [each for each in both if isinstance(each, ast.keyword)]
        elif isinstance(value, ast.AST):
            for name, inner in ast.iter_fields(value):
                setattr(value, name, fill(inner))
        return value

    return fill(pattern)
