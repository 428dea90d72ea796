"""One definition of a percentile, and every report that shows percentiles uses it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.bench.timing import spread
from app.debugger.runs import open_trace
from app.debugger.views.requests import request_rows
from engine.sim.report import percentiles
from engine.trace.diff import diff
from engine.trace.reader import TraceReader
from prep_common.percentile import percentile, percentile_or_none
from tests.trace.trace_workloads import random_run

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


@given(VALUES, st.integers(0, 100))
def test_a_percentile_is_that_of_numpy(values: list[float], percent: int) -> None:
    assert percentile(sorted(values), percent) == pytest.approx(np.percentile(values, percent), abs=1e-6)


def test_no_values_have_no_percentile() -> None:
    assert percentile_or_none([], 50) is None
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    assert percentile_or_none([7], 99) == percentile([7], 99) == 7


@given(VALUES)
def test_benchmarks_and_the_simulator_agree(values: list[float]) -> None:
    simulated, measured = percentiles(values), spread(values)
    assert simulated is not None
    for name in ("p50", "p90", "p99"):
        expected = np.percentile(values, int(name[1:]))
        assert getattr(simulated, name) == pytest.approx(expected, abs=1e-6)
        assert getattr(measured, name) == pytest.approx(1000 * expected, abs=1e-3)


def test_the_pages_compare_and_requests_agree(tmp_path: Path) -> None:
    """Both show the time between tokens of the same run; with one request the figures are the same."""
    path = random_run(tmp_path / "run.itrace", 3).path
    reader = TraceReader(path)
    _, index = open_trace(path)
    gaps = [np.diff(index.token_steps(row.number)) for row in request_rows(index)]
    figures = {figure.name: figure.a for figure in diff(reader, reader).figures}
    between = np.concatenate(gaps)
    assert len(set(between)) > 1
    for percent in (50, 99):
        assert figures[f"between tokens, p{percent}"] == pytest.approx(np.percentile(between, percent))
    for row, steps in zip(request_rows(index), gaps, strict=True):
        if len(steps):
            assert row.itl_p99_steps == pytest.approx(np.percentile(steps, 99))
