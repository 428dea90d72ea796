"""The sentence of a step: its figures are those of the engine's own objects, captured while it ran."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.debugger.runs import RECORDED
from engine.core.kv_manager import KVManager, PrefixHit
from engine.core.request import Request, RequestStatus
from engine.core.sched_output import SchedulerOutput
from engine.core.scheduler import Scheduler, StepPlan
from engine.core.stats import StepStats
from engine.trace import preemption_cost as cost_module
from engine.trace import sentence as sentence_module
from engine.trace.format import TraceError
from engine.trace.history import RequestHistory
from engine.trace.preemption_cost import preemption_cost, released
from engine.trace.reader import TraceReader
from engine.trace.sentence import LIMIT, sentence
from engine.trace.why import victim_rule, why
from tests.seeds import seeds
from tests.trace.trace_workloads import Run, random_run

ABORTED = RequestStatus.FINISHED_ABORTED


@dataclass
class Loss:
    """A preemption as it happened in the scheduler."""

    step: int
    request_id: str
    blocks: int
    shared: int
    tokens: int
    needy: str
    """For whom."""


@dataclass
class Witness:
    """Facts captured from the scheduler's objects."""

    losses: list[Loss] = field(default_factory=list)
    starts: list[tuple[int, str, int, int]] = field(default_factory=list)
    """(step, request, tokens of the hit, of these from the host)"""
    needy: str = ""
    """For whom the scheduler is looking for blocks."""
    stats: dict[int, StepStats] = field(default_factory=dict)
    """The statistics of each step."""
    slid: int = 0
    """Blocks that the last updated request gave back because they are behind its window."""
    returned: dict[tuple[int, str], int] = field(default_factory=dict)
    """(step, request that ended) -> blocks of its table, and those that slid out of its window in that step."""


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Witness:
    seen = Witness()
    preempt, start, finish = Scheduler._preempt, Scheduler._start, Scheduler._finish
    describe = KVManager.describe
    slide, room = KVManager.free_behind_window, Scheduler._make_room

    def spy_preempt(self: Scheduler, victim: Request) -> None:
        blocks = [block for block in victim.blocks if block is not self.kv.pool.null_block]
        shared = sum(block.ref_count > 1 for block in blocks)
        loss = Loss(
            self.stats.step, victim.request_id, len(blocks), shared, victim.num_computed_tokens, seen.needy
        )
        preempt(self, victim)
        seen.losses.append(loss)

    def spy_room(self: Scheduler, request: Request, num_tokens: int, plan: StepPlan) -> list[int] | None:
        seen.needy = request.request_id
        return room(self, request, num_tokens, plan)

    def spy_start(self: Scheduler, request: Request, num_hit_tokens: int, hit: PrefixHit) -> None:
        host = len(hit.host) * self.kv.block_size
        seen.starts.append((self.stats.step, request.request_id, num_hit_tokens, host))
        start(self, request, num_hit_tokens, hit)

    def spy_slide(self: KVManager, request: Request) -> int:
        seen.slid = slide(self, request)
        return seen.slid

    def spy_stats(self: KVManager, stats: StepStats) -> None:
        describe(self, stats)
        seen.stats[stats.step] = stats

    def spy_finish(self: Scheduler, request: Request, status: object) -> None:
        held = sum(block is not self.kv.pool.null_block for block in request.blocks)
        seen.returned[self.stats.step, request.request_id] = held + (0 if status is ABORTED else seen.slid)
        finish(self, request, status)

    monkeypatch.setattr(KVManager, "free_behind_window", spy_slide)
    monkeypatch.setattr(KVManager, "describe", spy_stats)
    monkeypatch.setattr(Scheduler, "_preempt", spy_preempt)
    monkeypatch.setattr(Scheduler, "_make_room", spy_room)
    monkeypatch.setattr(Scheduler, "_start", spy_start)
    monkeypatch.setattr(Scheduler, "_finish", spy_finish)
    return seen


def recorded(path: Path, seed: int, witness: Witness) -> tuple[Run, TraceReader]:
    for memory in (witness.losses, witness.starts, witness.returned, witness.stats):
        memory.clear()
    witness.slid = 0  # of a run with a sliding window
    run = random_run(path / "run.itrace", seed)
    return run, TraceReader(run.path)


@pytest.mark.parametrize("first_seed", range(0, 60, 20))
def test_costs_and_sentences_have_the_figures_of_the_schedulers_own_objects(
    tmp_path: Path, witness: Witness, first_seed: int
) -> None:
    num_back = 0
    for seed in range(first_seed, first_seed + 20):
        run, reader = recorded(tmp_path, seed, witness)
        num_back += check_costs(reader, witness)
        for step, out in enumerate(run.outputs):
            check_sentence(reader, step, out, witness)
    assert num_back > 10


def check_costs(reader: TraceReader, witness: Witness) -> int:
    """Return the number of preempted requests that came back."""
    num_back = 0
    for loss in witness.losses:
        if loss.request_id not in reader.step(loss.step).preempted:
            continue  # aborted while the step was in flight
        cost = preemption_cost(reader, loss.request_id, loss.step)
        assert (cost.blocks, cost.blocks_shared) == (loss.blocks, loss.shared)
        assert cost.tokens_lost == loss.tokens
        request = reader.find(loss.request_id, loss.step)
        back = next((s for s in witness.starts if s[1] == loss.request_id and s[0] > loss.step), None)
        ended = reader.num_steps if request.ended is None else request.ended - request.aborted
        if back is None or back[0] > ended:  # aborted in the step that started it: the trace has no row
            assert (cost.steps_waited, cost.tokens_found) == (None, None)
        else:
            assert cost.steps_waited == back[0] - loss.step
            assert (cost.tokens_found, cost.tokens_swapped_in) == (back[2], back[3])
            num_back += 1
    return num_back


def check_sentence(reader: TraceReader, step: int, out: SchedulerOutput, witness: Witness) -> None:
    text = sentence(reader, step)
    assert text == sentence(reader, step)
    assert len(text) <= LIMIT + 100 and text.endswith(".") and "?" not in text, text
    names = reader.step(step).preempted
    losses = [loss for loss in witness.losses if loss.step == step and loss.request_id in names]
    if len(losses) == 1:
        (loss,) = losses
        (entry,) = [e for e in out.not_scheduled if e.request_id == loss.request_id]
        needy = "it" if loss.needy == loss.request_id else loss.needy
        assert text.startswith(f"{loss.request_id} was preempted: {needy} needed "), text
        assert_mentions(text, entry.details["need"], "block", f" when {entry.details['free']} w")
    elif losses:
        assert text.startswith(f"{len(losses)} requests were preempted, ")
    if losses:
        assert_mentions(text, sum(loss.blocks for loss in losses), "block")
        assert_mentions(text, sum(loss.tokens for loss in losses), "computed token")
    else:
        assert "preempted" not in text
    stats = witness.stats[step]
    evicted = re.search(r"(\d+) cached blocks were evicted", text)
    if evicted or re.match(r".*ached block \d+", text):
        assert stats.num_evictions == (int(evicted[1]) if evicted else 1), text
    elif not losses:
        assert stats.num_evictions == 0, text
    judged = re.search(r"decoded, (\d+) of (\d+) drafted", text)
    if judged:
        assert (int(judged[1]), int(judged[2])) == (stats.num_accepted_tokens, stats.num_draft_tokens)
    decoded = re.search(r"(\d+) requests decoded one token each", text)
    if decoded and not reader.step(step).aborted:  # a row aborted in flight is not in the trace
        assert stats.num_decode_tokens == int(decoded[1])
    for name in re.findall(r"(\S+) was aborted and released", text):
        lost = [loss.blocks for loss in witness.losses if (loss.step, loss.request_id) == (step, name)]
        when = step if (step, name) in witness.returned else step - 1  # in flight, or before
        assert_mentions(text, witness.returned[when, name] or lost[0], "block")
    record = reader.step(step)
    for word, names in (
        ("admitted", record.admitted),
        ("resumed", record.resumed),
        ("preempted", record.preempted),
    ):
        assert not names or word in text, f"{word} is a change of a request's state: {text}"
        assert len(names) > 3 or all(name in text for name in names), text
    assert_admissions(text, step, witness, reader)
    for name, reason in reader.step(step).finished:
        if f"{name} finished (" in text:
            blocks = witness.returned[step, name]
            assert f"{name} finished ({reason}) and released {blocks} block" in text


def one_block_more(record: dict[str, Any], number: int) -> tuple[int, int]:
    blocks, shared = released(record, number)
    return blocks + 1, shared


_needy = sentence_module._needy
position_before = RequestHistory.position_before
PLANTED = {
    "one block more": ("released", one_block_more),
    "shared blocks are not told apart": ("released", lambda *args: (released(*args)[0], 0)),
    "the state a step later": ("position_before", lambda request, step: position_before(request, step + 1)),
    "a token less": ("position_before", lambda request, step: max(0, position_before(request, step) - 1)),
    "the victim in place of who needed it": ("_needy", lambda facts, victim: victim),
    "always another request": ("_needy", lambda facts, victim: None),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_wrong_figure_planted_in_the_sentence_is_caught(
    tmp_path: Path, witness: Witness, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    name, mistake = PLANTED[planted]
    for owner in (cost_module, sentence_module, RequestHistory):
        if hasattr(owner, name):
            monkeypatch.setattr(owner, name, mistake)
    with pytest.raises(AssertionError):
        for seed in range(20):
            run, reader = recorded(tmp_path, seed, witness)
            check_costs(reader, witness)
            for step, out in enumerate(run.outputs):
                check_sentence(reader, step, out, witness)


def assert_mentions(text: str, count: int, noun: str, behind: str = "") -> None:
    assert re.search(rf"\b{count} {noun}{'' if count == 1 else 's'}\b{re.escape(behind)}", text), text


def assert_admissions(text: str, step: int, witness: Witness, reader: TraceReader) -> None:
    admitted = reader.step(step).admitted
    if len(admitted) != 1 or f"{admitted[0]} was admitted" not in text:
        return
    (hit,) = [s[2] for s in witness.starts if s[:2] == (step, admitted[0])]
    prompt = reader.find(admitted[0], step).num_prompt_tokens
    said = f"({hit} of its {prompt} prompt token" if hit else "(no prefix cached)"
    assert said in text, text


def test_the_cost_of_what_was_no_preemption_is_refused(tmp_path: Path) -> None:
    reader = TraceReader(random_run(tmp_path / "run.itrace", 1).path)
    name = reader.requests[0].request_id
    step = next(s for s in range(reader.num_steps) if name not in reader.step(s).preempted)
    with pytest.raises(TraceError, match=f"not preempted in step {step}"):
        preemption_cost(reader, name, step)


def test_a_run_that_still_grows_has_the_same_sentences_as_its_file(tmp_path: Path) -> None:
    """All but what a preemption found on resume: that is told once the request has come back."""
    run = random_run(tmp_path / "run.itrace", 5)
    whole = TraceReader(run.path)
    header, *lines = gzip.decompress(run.path.read_bytes()).splitlines()
    growing = TraceReader.growing("live", header)
    for line in lines:
        growing.feed(line)
        step = growing.num_steps - 1
        if json.loads(line)["t"] == "step":
            first = sentence(growing, step)
            if whole.step(step).preempted:
                assert "when it resumed" not in first and "was preempted" in first
            else:
                assert first == sentence(whole, step)
    assert [sentence(growing, n) for n in range(whole.num_steps)] == [
        sentence(whole, n) for n in range(whole.num_steps)
    ]


def test_a_request_that_computes_its_tokens_again_is_not_said_to_compute_its_prompt() -> None:
    reader = TraceReader(RECORDED / "recompute.itrace")
    dan = next(request for request in reader.requests if request.request_id == "dan")
    said = {
        step: why(reader, "dan", step).sentence
        for step, outputs in zip(dan.row_steps, dan.row_outputs, strict=True)
        if step > dan.preempted[0] or not outputs
    }
    assert "its prompt is not finished" in said[dan.row_steps[0]]
    again = [text for step, text in said.items() if step > dan.preempted[0] and "not finished" in text]
    assert again and all("its recomputation is not finished" in text for text in again)


@pytest.mark.parametrize("seed", seeds(8))
def test_victims_are_those_that_the_named_policy_says(tmp_path: Path, seed: int) -> None:
    reader = TraceReader(random_run(tmp_path / "run.itrace", seed).path)
    named = {"fcfs": "the last to arrive", "priority": "the lowest priority, among equals the last to arrive"}
    policy = reader.header["config"]["scheduler"]["policy"]
    for event in reader.events("preempt"):
        state, victims = reader.state_at(event.step - 1), reader.step(event.step).preempted
        gone = reader.step(event.step).aborted
        ran = [reader.find(name, event.step - 1) for name in state.running if name not in gone]
        arrival = {r.request_id: (r.record["arrival"], r.number) for r in ran}
        priority = {r.request_id: r.record["priority"] if policy == "priority" else 0 for r in ran}
        order = sorted(arrival, key=lambda name: (priority[name], *arrival[name]))
        assert set(order[-len(victims) :]) == set(victims)
        assert f"(policy {policy}: {named[policy]})" in why(reader, event.request_id, event.step).sentence
    own = TraceReader(random_run(tmp_path / "own.itrace", seed).path)
    own.header["scheduler_cls"] = "mine:ShortestFirst"
    assert not any(victim_rule(own, event.step) for event in own.events("preempt")), "its order is unknown"
