"""Values as people type them after --set."""

from typing import Any

import pytest

from prep_common.typed_value import parse_value, value_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4, "4"),
        ("fcfs", "fcfs"),
        ([4, 9, 3], "4,9,3"),
        ([98304], "[98304]"),
        ([], "[]"),
        (["t"], '["t"]'),
        (["a", "b"], "a,b"),
        (["a,b", "c"], '["a,b", "c"]'),
        ([[1, 2], [3]], "[[1, 2], [3]]"),
        ({"repeats": 5}, '{"repeats": 5}'),
        ("5", '"5"'),
        ("a, b", '"a, b"'),
        (" a", '" a"'),
        (True, "True"),
        (None, "None"),
    ],
)
def test_the_text_of_a_value_is_read_as_the_value(value: Any, text: str) -> None:
    assert value_text(value) == text
    assert parse_value(text) == value
