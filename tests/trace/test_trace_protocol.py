"""Every reader of a trace answers the same questions by itself: none inherits from another."""

from __future__ import annotations

import inspect

import pytest

from app.debugger.column_reader import ColumnReader
from engine.trace.protocol import Trace
from engine.trace.reader import TraceReader

READERS = (TraceReader, ColumnReader)


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_implements_the_protocol_and_nothing_that_another_has(reader: type) -> None:
    assert reader.__mro__[1] is Trace and not inspect.isabstract(reader)
    abstract = {
        name for name, member in vars(Trace).items() if getattr(member, "__isabstractmethod__", False)
    }
    assert abstract <= vars(reader).keys()
    derived = {name for name in vars(Trace) if not name.startswith("_")} - abstract
    assert not derived & vars(reader).keys(), "a derived question has one implementation"


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_runs_its_own_constructor(reader: type) -> None:
    source = inspect.getsource(reader)
    assert "__init__" in vars(reader) and "__new__" not in source, "no reader skips a constructor"
