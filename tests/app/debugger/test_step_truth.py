"""The page Step shows what the engine did: its text layer against copies of the engine's own objects."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from urllib.parse import quote

import pytest
from playwright.sync_api import Page

from engine.core.sched_output import SchedulerOutput, reason_of
from tests.trace.trace_workloads import Run, random_run

NUM_TRACES = 50
STEPS_EACH = 4
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


def reason_shown(out: SchedulerOutput, name: str) -> str:
    entry = reason_of(out, name)
    if entry is None:
        return "arrived during the step"
    figures = ", ".join(f"{figure} {value}" for figure, value in entry.details.items())
    return f"{entry.reason} {figures}".strip()


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("truth")
    return [random_run(folder / f"truth-{seed}.itrace", seed) for seed in range(NUM_TRACES)]


@pytest.mark.slow
def test_the_text_of_the_page_is_the_engines_state_in_50_random_runs(
    app_url: str, tab: Page, traced: list[Run]
) -> None:
    rng = random.Random(50)
    for run in traced:
        steps = rng.sample(range(len(run.snapshots)), STEPS_EACH)
        tab.goto(f"{app_url}/step?run={quote(f'file:{run.path}')}&step={steps[0]}")
        tab.locator(READY.format(steps[0])).wait_for()
        tab.get_by_text("state as text").click()
        for step in steps:
            tab.locator(".step-view").evaluate("(root, step) => root.view.goTo(step)", step)
            tab.locator(READY.format(step)).wait_for()
            shown = Shown(tab.locator("pre.state").inner_text().split("\n"))
            try:
                assert_is_the_engine(shown, step, run)
            except (AssertionError, StopIteration) as error:
                raise AssertionError(f"{run.path.name}, step {step}: " + "\n".join(shown.lines)) from error


def test_the_runs_meet_what_the_page_must_tell(traced: list[Run]) -> None:
    assert sum(run.num_preemptions for run in traced) > 20
    assert sum(run.num_evictions for run in traced) > 20
    assert sum(len(run.aborted) for run in traced) > 20
    assert any(max(snapshot.refs[1:]) > 1 for run in traced for snapshot in run.snapshots)
