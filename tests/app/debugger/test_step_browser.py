"""The page Step in a real browser: by keyboard, by mouse, from a link, and 375 px wide."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from app.debugger.runs import path_of
from engine.core.request import Request
from engine.core.sched_output import Reason
from engine.sampling_params import SamplingParams
from engine.trace.adapters import adapter_of, slot_users
from engine.trace.reader import TraceReader
from engine.trace.writer import TraceWriter
from tests.app.debugger.conftest import ROOT
from tests.trace.trace_workloads import header, make_scheduler, random_run, sample

pytestmark = pytest.mark.slow

RUN = "memory-pressure"


@pytest.fixture(scope="module")
def reader() -> TraceReader:
    return TraceReader(path_of(RUN))


def open_step(tab: Page, app_url: str, query: str = f"run={RUN}") -> Locator:
    tab.goto(f"{app_url}/step?{query}")
    view = tab.locator(".step-view")
    expect(tab.locator('.step-view[data-details="ready"][data-map="ready"]')).to_be_visible()
    return view


def is_at(view: Locator, step: int) -> None:
    expect(view).to_have_attribute("data-step", str(step))
    expect(view).to_have_attribute("data-details", "ready")


def click_block(view: Locator, block: int) -> None:
    x, y = view.evaluate(
        """(root, block) => {
            const { cell, columns } = root.view.map.grid;
            return [(block % columns + 0.5) * cell, (Math.floor(block / columns) + 0.5) * cell];
        }""",
        block,
    )
    view.locator("canvas.map").click(position={"x": x, "y": y})


def test_b_stops_at_the_preemption_and_says_who_why_and_what_it_cost(
    app_url: str, tab: Page, reader: TraceReader
) -> None:
    event = reader.next_event("preempt", -1)
    assert event is not None
    view = open_step(tab, app_url)
    tab.keyboard.press("b")
    is_at(view, event.step)
    expect(view.locator(".notice")).to_contain_text("preempt")
    sentence = view.locator(".sentence")
    expect(sentence).to_contain_text(f"{event.request_id} was preempted")
    expect(sentence).to_contain_text(re.compile(r"needed \d+ block.* when \d+ (was|were) free"))
    expect(sentence).to_contain_text(re.compile(r"released \d+ blocks"))
    expect(view.locator(".event.preempt")).to_contain_text(re.compile("recomputed"))
    expect(view.locator(".source")).to_contain_text("engine/core/scheduler.py:")
    expect(view.locator(".spoken")).to_contain_text(f"Step {event.step}.")


def test_every_key_moves_where_it_says(app_url: str, tab: Page, reader: TraceReader) -> None:
    last = reader.num_steps - 1
    view = open_step(tab, app_url)
    for key, step in (
        ("]", 1), (".", 2), ("[", 1), (",", 0), ("}", 10), ("{", 0), ("End", last), ("]", last), ("Home", 0), ("[", 0),
    ):  # fmt: skip
        tab.keyboard.press(key)
        is_at(view, step)
    preempted = [event.step for event in reader.events("preempt")]
    for key, step in (("b", preempted[0]), ("b", preempted[1]), ("B", preempted[0])):
        tab.keyboard.press(key)
        is_at(view, step)
    tab.keyboard.press("?")
    expect(view.locator("dialog")).to_be_visible()
    tab.keyboard.press("Escape")
    expect(view.locator("dialog")).to_be_hidden()


def test_space_plays_to_the_breakpoint(app_url: str, tab: Page, reader: TraceReader) -> None:
    event = reader.next_event("preempt", -1)
    assert event is not None
    view = open_step(tab, app_url)
    view.locator(".rate").evaluate("(rate) => { rate.value = 60; }")
    tab.keyboard.press("Space")
    expect(view).to_have_class(re.compile("playing"))
    is_at(view, event.step)
    expect(view).not_to_have_class(re.compile("playing"))


def test_a_block_is_selected_with_the_keyboard_alone_and_walks_through_its_events(
    app_url: str, tab: Page, reader: TraceReader
) -> None:
    events = [event.step for event in _block_events(reader, 2)]
    view = open_step(tab, app_url, f"run={RUN}&step={events[0]}")
    for key in ("Shift+ArrowRight", "Shift+ArrowRight", "Shift+ArrowRight", "Enter"):
        tab.keyboard.press(key)
    expect(view.locator(".block-facts")).to_contain_text("block 2")
    expect(view.locator("canvas.map")).to_have_attribute("aria-label", re.compile("selected block 2$"))
    expect(view.locator(".history").first).to_contain_text(f"{len(events)} events")
    later = sorted({step for step in events if step > events[0]})
    for step in later[:2]:
        tab.keyboard.press("n")
        is_at(view, step)
    tab.keyboard.press("p")
    is_at(view, later[0])
    tab.keyboard.press("Escape")
    expect(view.locator(".block-facts")).to_contain_text("no block selected")


def _block_events(reader: TraceReader, block: int) -> list:
    kinds = ("alloc", "ref", "unref", "free", "seal", "evict")
    found = [event for kind in kinds for event in reader.events(kind) if event.block == block]
    return sorted(found, key=lambda event: event.step)


def test_a_clicked_block_says_who_holds_it(app_url: str, tab: Page, reader: TraceReader) -> None:
    step = 20
    owners = reader.state_at(step).owners
    block = max(owners, key=lambda block: len(owners[block]))
    view = open_step(tab, app_url, f"run={RUN}&step={step}")
    click_block(view, block)
    facts = view.locator(".block-facts")
    expect(facts).to_contain_text(f"ref {len(owners[block])}")
    assert facts.locator("button.name").all_inner_texts() == owners[block]
    expect(facts).to_contain_text(f"hash {reader.state_at(step).blocks.hash_hex(block)}")
    expect(tab).to_have_url(re.compile(f"block={block}"))


def test_a_selected_request_shows_its_table_and_the_link_brings_it_back(
    app_url: str, tab: Page, reader: TraceReader
) -> None:
    step = 20
    name, table = next(iter(reader.state_at(step).block_tables.items()))
    view = open_step(tab, app_url, f"run={RUN}&step={step}")
    view.locator(f'.batch [data-request="{name}"]').click()
    facts = view.locator(".request-facts")
    expect(facts).to_contain_text(f"{len(table)} blocks")
    expect(facts).to_contain_text("admitted")
    tab.keyboard.press("]")
    is_at(view, step + 1)
    expect(tab).to_have_url(re.compile(rf"step={step + 1}.*request={name}"))
    tab.reload()
    is_at(tab.locator(".step-view"), step + 1)
    expect(tab.locator(".request-facts")).to_contain_text(name)


def test_the_reason_of_a_waiting_request_is_told_in_a_sentence(
    app_url: str, tab: Page, reader: TraceReader
) -> None:
    step = next(step for step in range(reader.num_steps) if reader.state_at(step).waiting)
    name = reader.state_at(step).waiting[0]
    view = open_step(tab, app_url, f"run={RUN}&step={step}")
    view.locator(f'[data-why="{name}"]').click()
    expect(view.locator(".why")).to_contain_text(f"{name} waits because")


def test_the_holder_of_an_adapter_slot_is_named_beside_the_batch_and_in_the_reason(
    app_url: str, tab: Page
) -> None:
    lora = TraceReader(path_of("lora"))
    step = lora.steps_with(Reason.NO_LORA_SLOT)[0]
    [(adapter, [holder])] = slot_users(lora, lora.step(step)).items()
    waiting = lora.state_at(step).waiting[0]
    view = open_step(tab, app_url, f"run=lora&step={step}")
    slots = view.locator(".slots")
    expect(slots).to_contain_text("1 of 1 in use")
    expect(slots).to_contain_text(adapter.partition("|")[0])
    expect(slots.locator("button.name")).to_have_text(holder)
    expect(view.locator(".waiting")).to_contain_text(f"needs {adapter_of(lora.find(waiting))}")
    view.locator(f'[data-why="{waiting}"]').click()
    expect(view.locator(".why")).to_contain_text(f"{holder} uses")
    open_step(tab, app_url)
    expect(view.locator(".slots")).to_be_hidden()


def test_the_timeline_scrubs_and_a_range_of_it_is_looked_at_closer(
    app_url: str, tab: Page, reader: TraceReader
) -> None:
    view = open_step(tab, app_url)
    timeline = view.locator("canvas.timeline")
    box = timeline.bounding_box()
    assert box is not None
    tab.mouse.move(box["x"] + 100, box["y"] + 20)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    tab.mouse.up()
    middle = int(view.get_attribute("data-step") or 0)
    assert abs(middle - reader.num_steps / 2) < reader.num_steps / 10
    timeline.focus()
    tab.keyboard.press("ArrowRight")
    is_at(view, middle + 1)
    expect(timeline).to_have_attribute("aria-valuenow", str(middle + 1))
    events = box["y"] + box["height"] - 12  # stepping has moved nothing on the page
    tab.mouse.move(box["x"] + box["width"] * 0.4, events)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] * 0.6, events)
    tab.mouse.up()
    expect(view.locator(".range")).to_contain_text("steps")
    view.get_by_role("button", name="whole run").click()
    expect(view.locator(".range")).to_have_text("")


def test_a_request_that_is_searched_for_becomes_a_breakpoint(
    app_url: str, tab: Page, reader: TraceReader
) -> None:
    request = max(reader.requests, key=lambda request: request.added)
    view = open_step(tab, app_url)
    tab.keyboard.press("/")
    tab.keyboard.type(request.request_id)
    tab.keyboard.press("Enter")
    expect(view.locator(".request-facts")).to_contain_text("arrived")
    view.locator('[data-break="preempt"]').uncheck()
    view.locator('[data-break="request"]').check()
    tab.keyboard.press("b")
    is_at(view, request.added)


def test_on_a_narrow_screen_all_of_it_is_there_and_nothing_sticks_out(app_url: str, tab: Page) -> None:
    tab.set_viewport_size({"width": 375, "height": 800})
    view = open_step(tab, app_url)
    tab.keyboard.press("b")
    expect(view.locator(".sentence")).to_contain_text("preempted")
    for part in (".batch", ".waiting", "canvas.map", "canvas.timeline"):
        expect(view.locator(part)).to_be_visible()
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    widest = view.evaluate(
        """(root) => Math.max(...[...root.querySelectorAll("canvas, .bar, .breaks, .right")]
            .map((element) => element.getBoundingClientRect().right))"""
    )
    assert widest <= 375


def test_a_name_that_looks_like_markup_is_shown_as_it_is(app_url: str, tab: Page, tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>"
    scheduler = make_scheduler()
    with TraceWriter(tmp_path / "odd.itrace", header(), scheduler) as tracer:
        request = Request(name, list(range(9)), SamplingParams(max_tokens=3), 0)
        scheduler.add(request)
        tracer.add(request)
        out = scheduler.schedule()
        result = sample(scheduler, out, random.Random(0))
        tracer.step(out, result, scheduler.update(out, result), 0.0)
    view = open_step(tab, app_url, f"run=file:{tmp_path / 'odd.itrace'}")
    expect(view.locator(".batch button.name")).to_have_text(name)


def test_two_runs_one_after_the_other_do_not_mix(app_url: str, tab: Page, tmp_path: Path) -> None:
    run = random_run(tmp_path / "other.itrace", 3)
    open_step(tab, app_url)
    view = open_step(tab, app_url, f"run=file:{run.path}&step=10")
    is_at(view, 10)
    expect(view.locator(".title")).to_have_text("other")
    expect(view.locator(".last")).to_contain_text(str(len(run.snapshots) - 1))


def test_the_benchmark_in_the_browser_plays_and_jumps(app_home: Path, chromium: str) -> None:
    command = ["-m", "app.cli.main", "bench", "debugger", "--browser", str(path_of(RUN)), "--json"]
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PREP_HOME": str(app_home), "PREP_CHROMIUM": chromium},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    cost = json.loads(done.stdout)
    assert (cost["jump_inside"]["count"], cost["jump_anywhere"]["count"]) == (40, 10)
    assert cost["frames_per_s"] > 0 and cost["steps_per_s"] > 0
