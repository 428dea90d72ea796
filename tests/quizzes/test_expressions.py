"""Expressions compute and cannot act: what a question file from a stranger may do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quizzes.expressions import FUNCTIONS, ExpressionError, dotted, evaluate, is_expression, resolve
from tests.counting import instructions, peak_bytes

untimed = settings(deadline=None)
MOST_INSTRUCTIONS = 5_000_000
"""Bound of an expression that is refused: 1.7 million at most with Python 3.11; running one takes 500 million."""
MOST_BYTES = 10_000_000
"""Bound of its memory: 0.9 million at most; running one that is a single instruction takes 125 million or more."""
NUMBERS = st.integers(-(10**6), 10**6)


@untimed
@given(NUMBERS, NUMBERS, st.integers(1, 10**4))
def test_arithmetic_is_that_of_python(a: int, b: int, c: int) -> None:
    names = {"a": a, "b": b, "c": c}
    assert evaluate("=a + b * c - a // c", names) == a + b * c - a // c
    assert evaluate("ceil(a / c) + b % c", names) == -(-a // c) + b % c
    assert evaluate("= a if a < b else b", names) == min(a, b)


@untimed
@given(st.lists(NUMBERS, min_size=1, max_size=20))
def test_lists_can_be_looked_through(values: list[int]) -> None:
    names = {"values": values}
    assert evaluate("=sum(values) + max(values) + values[0]", names) == sum(values) + max(values) + values[0]
    assert evaluate("=[v * 2 for v in sorted(values) if v > 0]", names) == [
        v * 2 for v in sorted(values) if v > 0
    ]
    assert evaluate("=sum([a * b for a, b in zip(values, range(len(values)))])", names) == sum(
        v * n for n, v in enumerate(values)
    )


def test_a_result_is_read_with_a_dot_or_a_key() -> None:
    names = {"result": {"steps": 7, "rows": {"a": 1}, "lists": [{"x": 2}]}}
    assert evaluate("=result.steps + result.rows.a + result['steps']", names) == 15
    assert evaluate("='steps' in result and len(result) == 3", names) is True
    assert evaluate("=sorted([key for key in result])", names) == ["lists", "rows", "steps"]


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "x.__class__",
        "x.__class__.__mro__",
        "[].__class__.__base__.__subclasses__()",
        "result._private",
        "result.__dict__",
        "().__class__",
        "'{0.__class__}'.format(x)",
        "str.__subclasses__()",
        "open('/etc/passwd')",
        "eval('1')",
        "exec('1')",
        "getattr(x, 'real')",
        "globals()",
        "print(x)",
        "lambda: x",
        "(lambda: x)()",
        "import os",
        "x = 3",
        "(y := 3)",
        "x; x",
        "",
        "x +",
        "nothing",
        "result.nothing",
    ],
)
def test_what_is_no_computation_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(ExpressionError, match="cannot evaluate"):
        evaluate(text, {"x": 3, "result": {"_private": 1, "steps": 2}})


@pytest.mark.parametrize(
    "text",
    [
        "10 ** 10 ** 10",
        "9 ** 9 ** 9",
        "'a' * 10 ** 9",
        "[0] * 10 ** 9",
        "1 << 10 ** 9",
        "sum(range(10 ** 9))",
        "[a for a in range(10 ** 8)]",
        "len(range(10_001))",
        "sum([1 for a in range(10000) for b in range(10000)])",
    ],
)
def test_what_would_fill_the_machine_is_refused_at_once(text: str) -> None:
    def refused() -> None:
        with pytest.raises(ExpressionError):
            evaluate(text, {})

    assert instructions(refused) < MOST_INSTRUCTIONS
    assert peak_bytes(refused) < MOST_BYTES


def test_an_assignment_where_a_comparison_was_meant_is_no_truth() -> None:
    with pytest.raises(ExpressionError):
        evaluate("n = 4", {"n": 5})
    assert evaluate("n == 4", {"n": 5}) is False


def test_lists_of_other_lengths_are_not_paired() -> None:
    assert evaluate("=zip([1, 2], [3, 4])", {}) == [(1, 3), (2, 4)]
    with pytest.raises(ExpressionError):
        evaluate("=zip([1, 2], [3])", {})


def test_the_largest_range_is_ten_thousand() -> None:
    assert evaluate("=sum(range(10_000))", {}) == 49_995_000


def test_no_function_reaches_out() -> None:
    assert not set(FUNCTIONS) & {
        "open",
        "eval",
        "exec",
        "getattr",
        "setattr",
        "vars",
        "type",
        "print",
        "input",
    }


@untimed
@given(st.text(max_size=60))
def test_any_text_is_computed_or_refused(text: str) -> None:
    try:
        evaluate(text, {"x": 3})
    except ExpressionError as error:
        assert "cannot evaluate" in str(error)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | NUMBERS
    | st.text("ab= ", max_size=5).filter(lambda text: not is_expression(text)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", min_size=1), inner, max_size=3),
    max_leaves=8,
)


@untimed
@given(VALUES)
def test_what_holds_no_expression_stays_as_it_is(value: Any) -> None:
    assert resolve(value, {}) == value


def test_expressions_are_found_inside_lists_and_mappings() -> None:
    assert resolve({"a": ["=n", {"b": "=n + 1"}], "c": "n"}, {"n": 4}) == {"a": [4, {"b": 5}], "c": "n"}


def test_only_a_leading_equals_sign_makes_an_expression() -> None:
    assert is_expression("=1") and not is_expression("a = 1") and not is_expression(1)


def test_a_mapping_with_keys_that_are_no_names_stays_a_mapping() -> None:
    assert dotted({"a b": 1}) == {"a b": 1}
    assert evaluate("=result['a b']", {"result": {"a b": 1}}) == 1
