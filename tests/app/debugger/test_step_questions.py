"""Quiz me on this step: every answer is what the engine's own objects said, and wrong ones are refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from app.debugger import step_questions
from app.debugger.next_step import next_step
from app.debugger.step_questions import (
    KINDS,
    NO_REQUEST,
    REASON_WORDS,
    Question,
    in_words,
    is_right,
    questions,
)
from app.trace_tools.decision_source import deciding_line
from engine.core.blocks import Block, BlockPool
from engine.core.sched_output import reason_of
from engine.trace.reader import TraceReader
from engine.trace.sentence import sentence
from tests.app.debugger.test_big_runs import columns_here
from tests.trace.trace_workloads import Run, random_run

SEEDS = range(0, 200, 4)
"""Seeds of `random_run` without host tiers and sliding windows: 50 runs."""


@dataclass
class Witness:
    """A run, and which cached contents were dropped in which order."""

    run: Run
    dropped: dict[int, list[int]] = field(default_factory=dict)
    """step -> blocks"""


def recorded(path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[TraceReader, Witness]:
    dropped: list[int] = []
    per_step: dict[int, list[int]] = {}
    forget = BlockPool._forget

    def spy(self: BlockPool, block: Block) -> None:
        if block.block_hash is not None and self.on_event is not None:  # not the host's pool
            dropped.append(block.block_id)
        forget(self, block)

    def on_step(step: int) -> None:
        per_step[step] = dropped.copy()
        dropped.clear()

    with monkeypatch.context() as patch:
        patch.setattr(BlockPool, "_forget", spy)
        run = random_run(path / f"{seed}.itrace", seed, on_step=on_step)
    return TraceReader(run.path), Witness(run, per_step)


def truth(question: Question, witness: Witness) -> object:
    """The answer from the scheduler's objects and plans, without the trace."""
    run, step, after = witness.run, question.step, question.step + 1
    now = run.snapshots[step]
    subject = question.prompt.split()[0]
    if question.kind == "shared":
        return {choice for choice in question.choices if now.refs[int(choice.split()[1])] > 1}
    if question.kind == "next_block":
        rows = (
            (n, row)
            for n in range(1, 100)
            for row in run.outputs[step + n].scheduled
            if row.request_id == subject
        )
        return next(n for n, row in rows if row.new_block_ids)
    out, then = run.outputs[after], run.snapshots[after]
    if question.kind == "victim":
        return (out.preempted_request_ids or [NO_REQUEST])[0]
    if question.kind == "hit":
        return next(row.start for row in out.scheduled if row.request_id == subject and row.init)
    if question.kind == "admitted":
        return {row.request_id for row in out.scheduled if row.init} & set(question.choices)
    if question.kind == "why_waits":
        entry = reason_of(out, subject)
        return entry and REASON_WORDS[entry.reason]
    if question.kind == "free_after":
        return len(then.eviction_order)
    if question.kind == "num_tokens":
        return sum(row.num_tokens for row in out.scheduled)
    if question.kind == "holds":
        return len(then.tables[subject])
    assert question.kind == "evicted_first"
    return next(c for c in question.choices if c.split(",")[0] == f"block {witness.dropped[after][0]}")


def check(reader: TraceReader, witness: Witness, seed: int) -> Counter[str]:
    asked: Counter[str] = Counter()
    for step in range(reader.num_steps):
        for question in questions(reader, step, seed):
            asked[question.kind] += 1
            right = truth(question, witness)
            assert is_right(question, right), (question, right)
            check_form(question)
    return asked


def check_form(question: Question) -> None:
    if question.form == "number":
        assert isinstance(question.answer, int) and not question.choices
        wrong: list[object] = [question.answer - 1, question.answer + 1, "", "many", None]
    else:
        assert 1 <= len(question.choices) <= 6 and len(set(question.choices)) == len(question.choices)
        wrong = [choice for choice in question.choices if choice != question.answer]
    if question.form == "choice":
        assert question.answer in question.choices and len(question.choices) > 1
    if question.form == "multi":
        answer = question.answer
        assert isinstance(answer, frozenset) and answer <= set(question.choices)
        wrong = [answer ^ {choice} for choice in question.choices] + list(question.choices)
    for given in wrong:
        assert not is_right(question, given), (question, given)
    assert in_words(question.answer) and question.explanation.endswith(".")


@pytest.mark.parametrize("first", range(0, 50, 10))
def test_every_answer_of_fifty_random_runs_is_the_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    asked: Counter[str] = Counter()
    for seed in SEEDS[first : first + 10]:
        asked += check(*recorded(tmp_path, seed, monkeypatch), seed)
    assert set(asked) == set(KINDS) and min(asked.values()) >= 3, asked


def test_with_host_memory_questions_stop_where_blocks_come_back_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    num_back = 0
    for seed in range(1, 80, 4):
        reader, witness = recorded(tmp_path, seed, monkeypatch)
        asked += check(reader, witness, seed)
        for step in range(reader.num_steps - 1):
            if reader.step(step + 1).copy_in:
                num_back += 1
                assert {question.kind for question in questions(reader, step, seed)} <= {"shared"}
    assert num_back > 10 and len(asked) > 6


def test_where_the_run_went_by_other_rules_only_the_state_is_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    for seed in (2, 3, 6, 7):  # with a sliding window
        asked += check(*recorded(tmp_path, seed, monkeypatch), seed)
    assert set(asked) == {"shared"}
    reader, _ = recorded(tmp_path, 0, monkeypatch)
    reader.header["scheduler_cls"] = "mine:Policy"
    assert all(next_step(reader, step) is None for step in range(reader.num_steps))


def test_a_step_whose_outcome_hangs_on_a_token_is_not_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_stops = num_drafts = 0
    for seed in SEEDS:
        reader, _ = recorded(tmp_path, seed, monkeypatch)
        for step in range(reader.num_steps - 1):
            after = reader.step(step + 1)
            stops = any(reason == "stop" for _, reason in after.finished)
            drafts = "num_draft_tokens" in after.counters
            if stops or drafts:
                num_stops, num_drafts = num_stops + stops, num_drafts + drafts
                plan = next_step(reader, step)  # agrees if the last token it may have is one that stops, too
                assert plan is None or (
                    not drafts and set(plan.returned) == {name for name, _ in after.finished}
                )
    assert num_stops > 20 and num_drafts > 20


def test_the_same_seed_asks_the_same_and_another_seed_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, _ = recorded(tmp_path, 8, monkeypatch)
    steps = range(reader.num_steps)
    first = [questions(reader, step, 1) for step in steps]
    assert first == [questions(reader, step, 1) for step in steps]
    assert first != [questions(reader, step, 2) for step in steps]
    assert questions(reader, -1) == questions(reader, reader.num_steps) == []


true_next_step, true_is_right = next_step, is_right
PLANTED = {
    "the plan of the step after next": ("next_step", lambda reader, step: true_next_step(reader, step + 1)),
    "numbers within one count as right": (
        "is_right",
        lambda question, given: question.form != "number" or abs(int(given or 0) - question.answer) <= 1,
    ),
    "a set that contains the answer counts": (
        "is_right",
        lambda question, given: question.form != "multi" or question.answer <= set(given),
    ),
    "any choice counts": (
        "is_right",
        lambda question, given: given in question.choices or true_is_right(question, given),
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_mistake_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str) -> None:
    name, mutant = PLANTED[planted]
    monkeypatch.setattr(step_questions, name, mutant)
    monkeypatch.setitem(globals(), name, mutant)
    with pytest.raises((AssertionError, StopIteration, KeyError, TypeError, ValueError)):
        for seed in SEEDS:
            check(*recorded(tmp_path, seed, monkeypatch), seed)


def test_the_state_of_another_step_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Off by one: the page shows one state and the question means another."""
    readers = [recorded(tmp_path, seed, monkeypatch) for seed in (8, 12, 20)]
    state_at = TraceReader.state_at
    monkeypatch.setattr(TraceReader, "state_at", lambda self, step: state_at(self, max(0, step - 1)))
    with pytest.raises((AssertionError, KeyError)):
        for reader, witness in readers:
            check(reader, witness, 8)


def test_a_run_opened_by_its_columns_has_the_same_sentences_lines_and_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (0, 1, 2, 8):
        whole, _ = recorded(tmp_path, seed, monkeypatch)
        columns = columns_here(whole.path)
        for step in range(whole.num_steps):
            assert sentence(columns, step) == sentence(whole, step)
            assert deciding_line(columns, step) == deciding_line(whole, step)
            assert questions(columns, step, seed) == questions(whole, step, seed)
