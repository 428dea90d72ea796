"""Latencies and limits on the page Metrics: against the tokens of the trace, and against sums by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from app.debugger.pages import metrics
from app.debugger.runs import open_run
from app.debugger.views.latency import (
    MOST_POINTS,
    TITLES,
    Latencies,
    distribution,
    first_limit,
    latencies,
    percentiles,
    within_limits,
)
from app.debugger.views.requests import has_clock
from tests.app.debugger.pages import Opener, said

RUNS = ["memory-pressure", "burst", "aborts", "priorities", "speculation", "first-steps"]


@pytest.mark.parametrize("run_id", RUNS)
def test_latencies_are_those_of_the_tokens_in_the_trace(run_id: str) -> None:
    index = open_run(run_id).index
    in_steps = latencies(index.requests, "steps")
    ends = index.series.time_s + index.series.duration_s
    for position, number in enumerate(in_steps.numbers):
        request, tokens = index.requests[number], index.token_steps(number)
        first, whole = tokens[0] - request.added + 1, tokens[-1] - request.added + 1
        assert in_steps.values["TTFT"][position] == first and in_steps.values["E2E"][position] == whole
        if len(tokens) > 1:
            assert in_steps.values["TPOT"][position] == pytest.approx((whole - first) / (len(tokens) - 1))
        if has_clock(index.series):
            in_ms = latencies(index.requests, "ms").values
            assert in_ms["E2E"][position] == pytest.approx(
                1e3 * (ends[tokens[-1]] - request.added_s), abs=0.5
            )
            assert in_ms["TTFT"][position] == pytest.approx(
                1e3 * (ends[tokens[0]] - request.added_s), abs=0.5
            )
    finished = [each for each in index.requests if each.finish_reason not in (None, "abort")]
    assert in_steps.numbers == [each.number for each in finished]
    assert in_steps.left_out == len(index.requests) - len(finished)


def test_a_range_keeps_the_requests_that_finished_in_it() -> None:
    index = open_run("burst").index
    ended = {request.number: request.ended for request in index.requests}
    found = latencies(index.requests, "steps", (10, 25))
    assert found.numbers and all(10 <= (ended[number] or -1) <= 25 for number in found.numbers)
    assert not latencies(index.requests, "steps", (0, 0)).numbers


def test_the_distribution_is_the_share_at_or_below_and_few_points() -> None:
    values = np.array([3.0, 1.0, math.nan, 2.0, 2.0])
    points = distribution(values)
    assert points[0] == (0, 0) and points[-1] == (3, 100)
    for value in (1.0, 2.0, 3.0):
        share = 100 * sum(each <= value for each in (3.0, 1.0, 2.0, 2.0)) / 4
        assert max(y for x, y in points if x <= value) == share
    many = distribution(np.random.default_rng(0).exponential(10, 20_000))
    assert len(many) <= 2 * MOST_POINTS + 1 and many[-1][1] == 100
    assert [x for x, _ in many] == sorted(x for x, _ in many) and [y for _, y in many] == sorted(
        y for _, y in many
    )
    assert distribution(np.array([math.nan])) == [] and percentiles(np.array([])) == {}


def test_a_request_is_outside_by_the_limits_that_it_misses_and_one_token_has_no_tpot() -> None:
    values = {
        "TTFT": np.array([1.0, 9.0, 5.0]),
        "TPOT": np.array([2.0, math.nan, 4.0]),
        "E2E": np.array([9.0, 9.0, 90.0]),
    }
    good = within_limits(Latencies([4, 5, 7], values, 0), {"TTFT": 5.0, "TPOT": 3.0, "E2E": 50.0})
    assert good.outside == [(5, ["TTFT"]), (7, ["TPOT", "E2E"])]
    assert good.within == {"TTFT": 2, "TPOT": 2, "E2E": 2} and good.all == 1


@pytest.mark.parametrize(
    ("median", "limit"), [(49.62, 99), (606.5, 1200), (0.2, 1), (math.nan, 1), (13.1, 26)]
)
def test_the_first_limit_is_twice_the_median_in_two_digits(median: float, limit: float) -> None:
    assert first_limit(np.array([median])) == limit


def test_the_user_sets_a_limit_and_opens_a_request_outside_of_it(open_page: Opener) -> None:
    app = open_page("metrics", run="memory-pressure", step=20)
    assert not app.exception and "5 requests" in said(app)
    app.segmented_control(key="latency_unit").set_value("steps").run()
    index = open_run("memory-pressure").index
    found = latencies(index.requests, "steps")
    limit = float(np.median(found.values["E2E"]))
    for kind, value in zip(TITLES, (1e6, 1e6, limit), strict=True):
        app.number_input(key=f"slo memory-pressure steps {kind}").set_value(value).run()
    assert not app.exception
    slow = [number for number, value in zip(found.numbers, found.values["E2E"], strict=True) if value > limit]
    buttons = [button for button in app.button if str(button.key).startswith("outside")]
    assert [button.key for button in buttons] == [f"outside {number}" for number in slow] and slow
    assert f"{len(found.numbers) - len(slow)} of {len(found.numbers)}" in said(app)
    buttons[0].click().run()
    assert not app.exception
    chosen = app.session_state["selection"]
    assert (chosen.request, chosen.step) == (
        index.requests[slow[0]].request_id,
        index.requests[slow[0]].ended,
    )


def test_limits_are_in_the_address_and_a_damaged_address_has_the_first_ones(open_page: Opener) -> None:
    app = open_page("metrics", run="burst", unit="steps", limits="5-1.5-30")
    assert not app.exception
    values = [app.number_input(key=f"slo burst steps {kind}").value for kind in TITLES]
    assert values == [5, 1.5, 30] and app.query_params["limits"] == "5-1.5-30"
    plain = open_page("metrics", run="burst")
    assert "limits" not in plain.query_params, "nothing was changed"
    for limits in ("5-many-30", "5", "5-inf-30", "nan-1-1"):
        damaged = open_page("metrics", run="burst", unit="ms", limits=limits)
        first = damaged.number_input(key="slo burst ms TTFT").value
        assert not damaged.exception and first == plain.number_input(key="slo burst ms TTFT").value


def test_a_click_on_a_point_opens_its_request(open_page: Opener) -> None:
    app = open_page("metrics", run="burst")
    app.session_state["latency TTFT"] = {"picked": 3}
    app.run()
    clicked = open_run("burst").index.requests[3]
    assert not app.exception and app.session_state["selection"].request == clicked.request_id


def test_a_run_without_a_clock_has_steps_alone_and_one_without_finished_requests_says_so(
    open_page: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page("metrics", run="burst")
    assert [each for each in app.get("button_group") if each.key == "latency_unit"]
    monkeypatch.setattr(metrics, "has_clock", lambda series: False)
    app.run()
    assert not app.exception and not [each for each in app.get("button_group") if each.key == "latency_unit"]
    assert "(steps)" in said(app)
    app.session_state["range"] = ("burst", 0, 0)
    app.run()
    assert not app.exception and "No request has finished in the selected range" in said(app)
