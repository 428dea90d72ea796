"""The page Step shows what the engine did: its text layer against copies of the engine's own objects."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page

from app.debugger.mini_map import owner_looks
from app.debugger.request_colours import NUM_COLOURS
from app.debugger.runs import open_run
from app.debugger.trace_index import TraceIndex
from app.debugger.views.phases import PHASES, phases
from engine.core.request import RequestStatus
from engine.core.sched_output import SchedulerOutput, reason_of
from tests.seeds import SEED
from tests.trace.trace_workloads import Run, Snapshot, random_run

NUM_TRACES = 50
NUM_SHOWN = 25
"""Traces of which the browser shows STEPS_EACH steps: others in every run with another seed."""
STEPS_EACH = 8
READY = '.step-view[data-details="ready"][data-map="ready"][data-step="{}"]'


@dataclass
class Shown:
    """The text layer, read back."""

    lines: list[str]

    def one(self, pattern: str) -> re.Match[str]:
        return next(match for line in self.lines if (match := re.fullmatch(pattern, line)))

    def all(self, pattern: str) -> list[re.Match[str]]:
        return [match for line in self.lines if (match := re.fullmatch(pattern, line))]

    def blocks(self, state: str) -> set[int]:
        text = self.one(f"{state} blocks: (.*)")[1]
        spans = [] if text == "none" else [list(map(int, part.split("-"))) for part in text.split()]
        return {block for span in spans for block in range(span[0], span[-1] + 1)}


def assert_is_the_engine(shown: Shown, step: int, run: Run) -> None:
    engine, out, aborted = run.snapshots[step], run.outputs[step], run.aborted
    blocks = range(1, len(engine.refs))
    assert shown.lines[0] == f"step {step}"
    shared = {block for block in blocks if engine.refs[block] > 1}
    used = {block for block in blocks if engine.refs[block] == 1}
    cached = {block for block in blocks if engine.refs[block] == 0 and engine.hashes[block] is not None}
    assert (shown.blocks("shared"), shown.blocks("used"), shown.blocks("cached")) == (shared, used, cached)

    counts = shown.one(r"blocks (\d+): used (\d+), of these shared (\d+); free (\d+), of these cached (\d+)")
    expected = [len(blocks), len(used | shared), len(shared), len(engine.eviction_order), len(cached)]
    assert list(map(int, counts.groups())) == expected

    sizes = shown.one(r"running (\d+), waiting (\d+), tokens (\d+)")
    finished = {line[1] for line in shown.all(r"finished (\S+): .*")}
    # What was aborted while its step was in flight is no part of the step any more.
    meant = [row for row in out.scheduled if row.request_id in {*engine.running, *finished}]
    assert {row.request_id for row in out.scheduled if row not in meant} <= set(aborted)
    tokens = sum(row.num_tokens for row in meant)
    expected = [len(engine.running), len(engine.waiting), tokens]
    assert list(map(int, sizes.groups())) == expected

    rows = shown.all(r"running (\S+): (.*); computed (\d+)/(\d+); table ?([\d ]*)")
    assert [row[1] for row in rows] == engine.running
    scheduled = {row.request_id: row.num_tokens for row in meant}
    for row in rows:
        name = row[1]
        assert int(row[3]) == engine.num_computed[name]
        assert int(row[4]) == engine.num_tokens[name]
        assert list(map(int, row[5].split())) == engine.tables[name]
        if name in scheduled:
            assert re.fullmatch(rf"(prefill|decode) {scheduled[name]}", row[2])
        else:
            assert row[2] == f"not scheduled, {reason_shown(out, name)}"

    assert finished <= {row.request_id for row in out.scheduled}
    assert finished.isdisjoint(engine.running)

    queue = shown.all(r"waiting (\S+): (.*)")
    assert [entry[1] for entry in queue] == engine.waiting
    for entry in queue:
        assert entry[2] == reason_shown(out, entry[1])
    assert [line[1] for line in shown.all(r"preempted (\S+)")] == out.preempted_request_ids


DRAWN = """(root) => {
    const { view } = root, owners = view.owners(), most = owners.looks.length / owners.counts.length;
    const was = [...root.querySelectorAll("[data-count]")].map((count) => {
        const name = count.dataset.count, before = root.querySelector(`[data-was="${name}"]`)?.textContent ?? "";
        return [name, [count.textContent, before.replace(" was ", "") || count.textContent]];
    });
    return {
        looks: [...owners.counts].map((n, i) => [...owners.looks.slice(i * most, i * most + Math.min(n, most))]),
        owners: [...owners.counts],
        most,
        lanes: view.lanes.shown,
        counts: Object.fromEntries(was),
        hits: view.hits(),
        sentence: root.querySelector(".sentence").textContent,
    };
}"""
"""Reads what the canvases draw."""


def assert_drawn_is_the_engine(drawn: dict[str, Any], step: int, run: Run, index: TraceIndex) -> None:
    engine, out = run.snapshots[step], run.outputs[step]
    numbers = {summary.request_id: summary.number for summary in index.requests if summary.added <= step}
    holders: dict[int, list[int]] = {}
    for name, table in engine.tables.items():
        for block in filter(None, table):
            holders.setdefault(block, []).append(index.looks[numbers[name]])
    for block, looks in enumerate(drawn["looks"]):
        held = holders.get(block, [])
        assert drawn["owners"][block] == len(held)
        assert sorted(looks) == sorted(held) or len(held) > drawn["most"], block
    for name, (now, before) in drawn["counts"].items():
        if name in ("used", "shared", "cached", "free"):
            assert int(now) == count_of(name, engine), name
            assert step == 0 or int(before) == count_of(name, run.snapshots[step - 1]), name
    for name in engine.running + engine.waiting:
        [(look, spans)] = [
            (look, spans)
            for other, look, spans, _ in drawn["lanes"]
            if other == name and spans and spans[0][1] <= step <= spans[-1][2]
        ]
        assert look == index.looks[numbers[name]]
        phase = next(PHASES[phase] for phase, first, last in spans if first <= step <= last)
        assert phase in (("waiting", "preempted") if name in engine.waiting else ("prefill", "decode"))
    found = [row for row in out.scheduled if row.init and row.request_id in engine.tables]
    size = index.block_size
    assert set(drawn["hits"]) == {
        block for row in found for block in engine.tables[row.request_id][: row.start // size] if block
    }
    for name in out.preempted_request_ids:
        assert name in drawn["sentence"] and "preempted" in drawn["sentence"]


def count_of(state: str, engine: Snapshot) -> int:
    """Number of blocks in a state."""
    blocks = range(1, len(engine.refs))
    if state in ("used", "shared"):
        return sum(engine.refs[block] == 1 if state == "used" else engine.refs[block] > 1 for block in blocks)
    has_content = state == "cached"
    return sum(
        not engine.refs[block] and (engine.hashes[block] is not None) == has_content for block in blocks
    )


def reason_shown(out: SchedulerOutput, name: str) -> str:
    entry = reason_of(out, name)
    if entry is None:
        return "arrived during the step"
    need = "another needed" if entry.reason == "lower_priority" else "need"
    words = {"free": "free then", "need": need}
    figures = ", ".join(f"{words.get(figure, figure)} {value}" for figure, value in entry.details.items())
    return f"{entry.reason} {figures}".strip()


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("truth")
    return [random_run(folder / f"truth-{seed}.itrace", seed) for seed in range(NUM_TRACES)]


@pytest.mark.slow
def test_the_text_of_the_page_is_the_engines_state_in_random_runs(
    app_url: str, tab: Page, traced: list[Run]
) -> None:
    rng = random.Random(50 + SEED)
    for run in rng.sample(traced, NUM_SHOWN):
        steps = rng.sample(range(len(run.snapshots)), STEPS_EACH)
        index = open_run(f"file:{run.path}").index
        tab.goto(f"{app_url}/step?run={quote(f'file:{run.path}')}&step={steps[0]}")
        tab.locator(READY.format(steps[0])).wait_for()
        tab.get_by_text("state as text").click()
        for step in steps:
            tab.locator(".step-view").evaluate("(root, step) => root.view.goTo(step)", step)
            tab.locator(READY.format(step)).wait_for()
            shown = Shown(tab.locator("pre.state").inner_text().split("\n"))
            try:
                assert_is_the_engine(shown, step, run)
                assert_drawn_is_the_engine(tab.locator(".step-view").evaluate(DRAWN), step, run, index)
            except (AssertionError, StopIteration) as error:
                raise AssertionError(f"{run.path.name}, step {step}: " + "\n".join(shown.lines)) from error


def life(run: Run, number: int) -> dict[int, str]:
    """Step -> phase of a request, from the engine's own queues and plans. A name may be used again after an abort."""
    request, found = run.requests[number], {}
    name, is_new, has_token = request.request_id, True, False
    later = [index for index, other in enumerate(run.requests) if other.request_id == name and index > number]
    until = run.arrivals[later[0]] if later else len(run.snapshots)
    for step in range(run.arrivals[number], until):
        now, out = run.snapshots[step], run.outputs[step]
        row = next((row for row in out.scheduled if row.request_id == name), None)
        if name in out.preempted_request_ids or row and row.init:
            has_token = False
        if name in now.waiting:
            found[step] = "waiting" if is_new else "preempted"
        elif name in now.running or row and request.status is not RequestStatus.FINISHED_ABORTED:
            is_new = False
            found[step] = "decode" if has_token else "prefill"
            known = run.snapshots[step - 1].num_tokens.get(name, 0) if step else 0
            has_token |= bool(row) and row.start + row.num_tokens >= max(known, len(request.prompt_token_ids))
        else:
            break
    return found


def test_lanes_and_looks_are_those_of_the_engines_queues(traced: list[Run]) -> None:
    num_crowded = 0
    for run in traced:
        shown = open_run(f"file:{run.path}")
        lives = [life(run, number) for number in range(len(run.requests))]
        for summary, expected in zip(shown.index.requests, lives, strict=True):
            spans = phases(shown.index, summary)
            drawn = {step: span.phase for span in spans for step in range(span.first, span.last + 1)}
            assert drawn == expected, (run.path.name, summary.request_id)
        living = []
        for step, now in enumerate(run.snapshots):
            names = {*now.running, *now.waiting}
            living.append(
                [n for n, steps in enumerate(lives) if step in steps and run.requests[n].request_id in names]
            )
        num_crowded += max(map(len, living)) > NUM_COLOURS
        for numbers in living:
            assert len({shown.index.looks[number] for number in numbers}) == len(numbers)
    assert 0 < num_crowded < NUM_TRACES - 10


def test_the_looks_of_a_block_are_those_of_the_tables_that_hold_it(traced: list[Run]) -> None:
    for run in traced:
        shown = open_run(f"file:{run.path}")
        for step in range(0, len(run.snapshots), 5):
            looks = {
                request: shown.index.looks[shown.reader(step).find(request, step).number]
                for request in run.snapshots[step].tables
            }
            holders: dict[int, list[int]] = {}
            for request, table in run.snapshots[step].tables.items():
                for block in table:
                    holders.setdefault(block, []).append(looks[request])
            assert owner_looks(shown, step) == holders


def test_the_runs_meet_what_the_page_must_tell(traced: list[Run]) -> None:
    assert sum(run.num_preemptions for run in traced) > 20
    assert sum(run.num_evictions for run in traced) > 20
    assert sum(len(run.aborted) for run in traced) > 20
    assert any(max(snapshot.refs[1:]) > 1 for run in traced for snapshot in run.snapshots)
