"""Read one line of a trace as a record whose long lists are numpy arrays.

Most of a trace's text is four lists of whole numbers: who is in a batch, how many tokens of each, the tokens that came
out, and prompts. numpy reads such a list several times faster than a JSON reader does, which makes an object of each
number; one that says the same as in the step before is not read again; and of a prompt only the length is wanted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.trace.format import parse_line

NO_OUTPUT = -1
"""Replaces `null` in `tok`: a row without output."""
LISTS = (("q", b'"q":[', b""), ("n", b'"n":[', b""), ("tok", b'"tok":[', b"nul"))
"""Lists in the order of a step's line: key, mark, letters allowed among the numbers. A mark cannot occur in a JSON
string, where its quotes would be escaped."""
DIGITS = b"0123456789,"
COUNTERS = b'"cnt":'
PROMPT = b'"prompt":['
MAX_NUMBER = np.iinfo(np.int32).max


class RecordReader:
    """Reads the lines of one file in order."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[bytes, NDArray[np.int32]]] = {}

    def read(self, line: bytes) -> dict[str, Any]:
        """The record, with q, n and tok as arrays if they are lists of numbers, and `num_prompt_tokens` instead of a
        prompt. Raises ValueError if the line is not JSON."""
        if line.startswith(b'{"t":"add"'):
            return _read_add(line)
        arrays: dict[str, NDArray[np.int32]] = {}
        rest, after, nested = [], 0, _first_nested(line)
        for name, mark, letters in LISTS:
            start = line.find(mark, after, nested)
            if start < 0:
                continue
            start += len(mark)
            end = line.index(b"]", start)
            numbers = self._numbers(name, line[start:end], letters)
            if numbers is not None:
                arrays[name] = numbers
                rest.append(line[after:start])
                after = end
        rest.append(line[after:])
        record: dict[str, Any] = parse_line(b"".join(rest))
        record.update(arrays)
        return _measured(record) if "prompt" in record else record

    def _numbers(self, name: str, text: bytes, letters: bytes) -> NDArray[np.int32] | None:
        """The numbers between the brackets; None if there is anything but numbers and nulls."""
        known, numbers = self._before.get(name, (None, None))
        if text == known:
            return numbers
        numbers = numbers_of(text, letters)
        if numbers is not None:
            self._before[name] = (text, numbers)
        return numbers


def numbers_of(text: bytes, letters: bytes) -> NDArray[np.int32] | None:
    """`1,2,null` as [1, 2, NO_OUTPUT]; None if there are characters other than digits, commas and `letters`."""
    if not text or text.translate(None, DIGITS + letters):
        return None
    if b"null" in text:
        text = text.replace(b"null", b"-1")
    numbers = np.fromstring(text, np.int64, sep=",")
    if len(numbers) != text.count(b",") + 1 or numbers.max() > MAX_NUMBER:
        raise ValueError("a malformed list of numbers")
    return numbers.astype(np.int32)


def _read_add(line: bytes) -> dict[str, Any]:
    start = line.find(PROMPT, 0, _first_nested(line)) + len(PROMPT)
    end = line.find(b"]", start)
    text = line[start:end]
    if start < len(PROMPT) or end < 0 or text.translate(None, DIGITS):
        return _measured(parse_line(line))
    record = _measured(parse_line(line[:start] + line[end:]))
    return {**record, "num_prompt_tokens": text.count(b",") + 1 if text else 0}


def _measured(record: dict[str, Any]) -> dict[str, Any]:
    """The record of an arrival with the length of its prompt instead of the prompt."""
    prompt = record.pop("prompt")
    return {**record, "num_prompt_tokens": len(prompt)}


def _first_nested(line: bytes) -> int:
    """Start of the first nested object with lists: lists before it belong to the record itself."""
    nested = line.find(b"{", 1)
    if line.endswith(COUNTERS, 0, nested):  # numbers by name, before the lists
        nested = line.find(b"{", nested + 1)
    return len(line) if nested < 0 else nested
