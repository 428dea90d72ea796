"""The animation of a stop: its frames are the trace's states, and every call-out holds for the blocks it points at."""

from __future__ import annotations

import json
import re

import pytest

from app.debugger.runs import Run, open_run
from app.debugger.tour_view.callouts import Callout, callouts
from app.debugger.tour_view.frames import MOST_STEPS, animation, first_step
from app.debugger.tours import Stop, load_tours, step_of

STOPS = [(tour.id, place) for tour in load_tours().values() for place in range(len(tour.stops))]


def stop_of(tour: str, place: int) -> tuple[Stop, Stop | None, Run]:
    stops = load_tours()[tour].stops
    return stops[place], stops[place - 1] if place else None, open_run(stops[place].run)


@pytest.mark.parametrize(("tour", "place"), STOPS)
def test_frames_are_the_states_of_the_trace(tour: str, place: int) -> None:
    stop, before, run = stop_of(tour, place)
    found = animation(stop, run, before)
    assert json.loads(json.dumps(found)) == found
    last = step_of(stop, run)
    assert found["frames"][-1]["step"] == last and 1 <= len(found["frames"]) <= MOST_STEPS
    assert len(found["frames"]) > 1 or last == 0
    for frame in found["frames"]:
        state = run.reader(last).state_at(frame["step"])
        for block in range(1, len(state.blocks.ref)):
            digit = int(frame["states"][block - 1])
            held = state.blocks.ref[block]
            assert digit == (3 if held > 1 else 2 if held else 1 if state.blocks.hash[block] else 0)
            assert len(frame["owners"].get(str(block), [])) == held


@pytest.mark.parametrize(("tour", "place"), STOPS)
def test_lanes_have_the_requests_that_run_and_wait_in_each_step(tour: str, place: int) -> None:
    stop, before, run = stop_of(tour, place)
    found = animation(stop, run, before)
    for at, frame in enumerate(found["frames"]):
        state = run.reader(frame["step"]).state_at(frame["step"])
        shown = {lane["name"] for lane in found["lanes"] if lane["phases"][at] >= 0}
        ended = {name for name, _ in run.reader(frame["step"]).step(frame["step"]).finished}
        assert shown == {*state.running, *state.waiting, *ended}
        waits = {lane["name"] for lane in found["lanes"] if lane["phases"][at] in (0, 3)}
        assert waits == set(state.waiting)


@pytest.mark.parametrize(("tour", "place"), STOPS)
def test_the_legend_of_a_stop_names_the_requests_that_hold_blocks_and_no_others(
    tour: str, place: int
) -> None:
    stop, before, run = stop_of(tour, place)
    found = animation(stop, run, before)
    holders = set()
    for frame in found["frames"]:
        holders |= {
            name
            for name, table in run.reader(frame["step"]).state_at(frame["step"]).block_tables.items()
            if table
        }
    assert {lane["name"] for lane in found["lanes"] if lane["holds"]} == holders
    looks = [lane["look"] for lane in found["lanes"] if lane["holds"]]
    held = {look for frame in found["frames"] for owners in frame["owners"].values() for look in owners}
    assert held <= set(looks)


@pytest.mark.parametrize(("tour", "place"), STOPS)
def test_every_stop_has_call_outs_with_an_anchor_that_hold_for_it(tour: str, place: int) -> None:
    stop, before, run = stop_of(tour, place)
    step = step_of(stop, run)
    names = {lane["name"] for lane in animation(stop, run, before)["lanes"]}
    found = callouts(run, step, stop.request)
    assert 1 <= len(found) <= 4
    for each in found:
        assert bool(each.blocks) != bool(each.lane) and (not each.lane or each.lane in names)
        check(run, step, each)


def check(run: Run, step: int, callout: Callout) -> None:
    """Decide a call-out from reference counts, hashes and block tables, which `callouts` read in another way."""
    after = run.reader(step).state_at(step)
    before = run.reader(step).state_at(step - 1) if step else None
    blocks, text = set(callout.blocks), callout.text
    ref, hashes = after.blocks.ref, after.blocks.hash
    old = set() if before is None else {b for b in range(1, len(ref)) if before.blocks.ref[b]}
    if blocks:
        counts = [int(number) for number in re.findall(r"(\d+) blocks?\b", text)]
        assert counts == [len(blocks)] or "token" in text
    if text.startswith("released by") and "free now" in text:
        assert all(not ref[block] and block in old for block in blocks)
    elif text.startswith("of "):
        name = text.split(",")[0].removeprefix("of ")
        assert before is not None and blocks <= set(before.block_tables[name]) and all(ref[b] for b in blocks)
    elif text.startswith("found by"):
        assert before is not None and all(ref[block] and before.blocks.hash[block] for block in blocks)
    elif text.startswith("allocated for"):
        assert blocks.isdisjoint(old) and all(ref[block] == 1 for block in blocks)
    elif text.startswith("evicted"):
        counters = run.reader(step).step(step).counters
        assert before is not None and len(blocks) == counters["num_evictions"]
        assert all(before.blocks.hash[block] for block in blocks)
    elif text.startswith(("free:", "free,")):
        assert all(not ref[block] for block in blocks)
        assert not text.startswith("free,") or all(hashes[block] for block in blocks)
    elif text.startswith("shared"):
        assert blocks == {b for b in range(1, len(ref)) if ref[b] > 1}
    elif text.startswith("full"):
        assert all(ref[block] for block in blocks)
    elif " computes " in text:
        rows = {row.request_id: row.num_tokens for row in run.reader(step).step(step).rows}
        assert f"computes {rows[callout.lane]} token" in text
    elif " waits " in text:
        assert callout.lane in after.waiting and callout.lane in text
    else:
        assert text.startswith(("holds", "allocated, empty", "released by")), text


def test_a_preemption_points_at_what_was_released_and_at_what_others_still_hold() -> None:
    stop, before, run = stop_of("preemption", 1)
    texts = [callout.text for callout in callouts(run, step_of(stop, run), stop.request)]
    assert texts[0].startswith("released by eve, free now: 2 blocks")
    assert texts[1].startswith("of eve, still held by others: 10 blocks")
    assert first_step(stop, run, before) == step_of(stop, run) - 1


def test_a_long_way_between_two_stops_is_cut_to_the_steps_before_the_event() -> None:
    stop, before, run = stop_of("paging", 3)
    assert before is not None and first_step(stop, run, before) == step_of(stop, run) - 4
