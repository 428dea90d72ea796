"""Expressions in question files: `=max(lens) + result.steps`. Names, arithmetic, comparisons, a few functions.

simpleeval evaluates the syntax tree without imports, assignments or underscore names, so expressions in an untrusted
question file can compute but not act.
"""

import ast
import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from simpleeval import EvalWithCompoundTypes

_PLAIN = (abs, all, any, bool, float, int, len, max, min, round, set, sorted, str, sum)
FUNCTIONS = {
    **{function.__name__: function for function in (*_PLAIN, math.ceil, math.floor, math.log2, math.sqrt)},
    "range": lambda *args: list(range(*args)) if len(range(*args)) <= 10_000 else None,
    "zip": lambda *args: list(zip(*args, strict=True)),
}


class ExpressionError(ValueError):
    """Raised for an expression that cannot be evaluated; the message quotes it."""


def is_expression(value: object) -> bool:
    """Return whether `value` is a string that starts with =."""
    return isinstance(value, str) and value.startswith("=")


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression, with or without its leading =. Keys of mappings can be read with a dot.

    Raises ExpressionError if it does not parse, uses an unknown name, or fails.
    """
    source = (text[1:] if text.startswith("=") else text).strip()
    evaluator = EvalWithCompoundTypes(
        names={name: dotted(value) for name, value in names.items()}, functions=FUNCTIONS
    )
    try:
        # parsed as an expression: simpleeval would read `n = 4`, a typo for `n == 4`, as 4, which is true
        return evaluator.eval(source, ast.parse(source, mode="eval").body)
    except Exception as error:
        raise ExpressionError(f"cannot evaluate {source!r}: {error}") from error


def resolve(value: Any, names: Mapping[str, Any]) -> Any:
    """Return `value` with every =expression in it replaced, also inside lists and dicts."""
    if is_expression(value):
        return evaluate(value, names)
    if isinstance(value, list):
        return [resolve(item, names) for item in value]
    if isinstance(value, dict):
        return {key: resolve(item, names) for key, item in value.items()}
    return value


def dotted(value: Any) -> Any:
    """Return a value whose mappings allow `result.steps` for the key "steps"."""
    if isinstance(value, Mapping) and all(isinstance(key, str) and key.isidentifier() for key in value):
        return _Dotted(**{key: dotted(item) for key, item in value.items()})
    return value


class _Dotted(SimpleNamespace):
    """A mapping whose keys are also attributes."""

    def __getitem__(self, key: str) -> Any:
        return self.__dict__[key]

    def __len__(self) -> int:
        return len(self.__dict__)

    def __iter__(self) -> Any:
        return iter(self.__dict__)

    def __contains__(self, key: object) -> bool:
        return key in self.__dict__
