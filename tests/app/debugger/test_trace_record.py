"""A line read with its lists as arrays says what the JSON reader says."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.debugger.trace_record import NO_OUTPUT, RecordReader

NUMBERS = st.lists(st.integers(0, 2**31 - 1), max_size=6)
ODD = st.one_of(NUMBERS, st.lists(st.integers(-3, 3)), st.lists(st.floats(0, 9)), st.none())
TOKENS = st.lists(st.one_of(st.integers(0, 200_000), st.none(), st.lists(st.integers(0, 9), max_size=3)))
DETAILS = st.dictionaries(st.sampled_from(["q", "n", "tok", "prompt"]), NUMBERS)


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [None if number == NO_OUTPUT else number for number in value.tolist()]
    return value


@given(st.lists(st.fixed_dictionaries({"t": st.just("step")}, optional={
    "cnt": st.dictionaries(st.text(), st.integers()),
    "q": ODD, "n": ODD, "tok": TOKENS, "why": st.tuples(st.text(), DETAILS), "ev": st.lists(NUMBERS)
}), min_size=1), st.booleans())  # fmt: skip
def test_steps(records: list[dict[str, Any]], packed: bool) -> None:
    reader = RecordReader()
    for record in records:
        line = json.dumps(record, separators=(",", ":") if packed else None).encode()
        assert {name: plain(value) for name, value in reader.read(line).items()} == json.loads(line)


@given(st.text(), st.one_of(NUMBERS, st.lists(NUMBERS)), DETAILS, st.booleans())
def test_arrivals(name: str, prompt: list[Any], params: dict[str, Any], packed: bool) -> None:
    record = {"t": "add", "r": name, "prompt": prompt, "params": params}
    line = json.dumps(record, separators=(",", ":") if packed else None).encode()
    expected = {**record, "num_prompt_tokens": len(prompt)}
    del expected["prompt"]
    assert RecordReader().read(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        b'{"t":"step","q":[1,,2]}',
        b'{"t":"step","q":[1,2,]}',
        b'{"t":"step","n":[99999999999]}',
        b'{"t":"step","tok":[1,nul]}',
        b'{"t":"step","tok":[1,2',
        b'{"t":"add","prompt":[1,2',
    ],
)
def test_what_is_no_record_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        RecordReader().read(line)
