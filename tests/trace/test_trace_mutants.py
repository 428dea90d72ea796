"""Plausible mistakes in the diff and in what a fork replays: a test of ours catches each of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

import engine.trace
from engine.trace import fork as fork_module
from engine.trace.fork import fork
from engine.trace.reader import TraceReader
from tests.trace import test_trace_diff as about_diff
from tests.trace import test_trace_fork as about_fork
from tests.trace.fork_workloads import crowded_run, first_difference
from tests.trace.trace_workloads import random_run

TRACE = Path(engine.trace.__path__[0])


@dataclass(frozen=True)
class Mutation:
    name: str
    old: str
    new: str
    caught_by: Callable[[Path], object] | None = None
    """None: forks without a change, over random workloads."""


def load(module: str, mutation: Mutation) -> ModuleType:
    """A copy of a module of engine/trace with the mistake in it."""
    source = (TRACE / f"{module}.py").read_text()
    assert source.count(mutation.old) == 1, "the mutation fits one place"
    copy = ModuleType(f"{module}_{mutation.name}")
    sys.modules[copy.__name__] = copy  # dataclasses look their module up
    exec(
        compile(source.replace(mutation.old, mutation.new), f"{module} with {mutation.name}", "exec"),
        copy.__dict__,
    )
    return copy


DIFF = [
    Mutation(
        "preemptions_are_no_decision",
        'frozenset(keys[number] for number in record["pre"]) if "pre" in record else _NOBODY,',
        "_NOBODY,",
        about_diff.test_a_preemption_that_changes_no_row_of_anybody_else_is_found,
    ),
    Mutation(
        "only_who_runs_counts_and_not_how_much",
        "hash((keys[row.number], row.start, row.num_tokens))",
        "hash(keys[row.number])",
        about_diff.test_a_shorter_chunk_is_found_with_both_lengths,
    ),
    Mutation(
        "namesakes_are_one_request",
        'request.request_id if count == 1 else f"{request.request_id}#{count}"',
        "request.request_id",
        about_diff.test_namesakes_are_compared_in_their_order,
    ),
    Mutation(
        "the_sides_reasons_are_swapped",
        "Side(_decided(one, other, _budgets(a)(step)), [_reason(a, key, step) for key in told])",
        "Side(_decided(one, other, _budgets(a)(step)), [_reason(b, key, step) for key in told])",
        about_diff.test_a_request_held_back_for_a_step_is_found,
    ),
    Mutation(
        "the_end_of_one_run_is_no_difference",
        "                steps.append(left[0])\n",
        "                pass\n",
        about_diff.test_a_longer_run_is_told_where_the_other_is_over,
    ),
    Mutation(
        "what_is_computed_again_is_not_seen",
        "max(0, min(end, life.reached) - row.start)",
        "0",
        about_diff.test_each_requests_figures_are_counted_by_hand,
    ),
    Mutation(
        "a_forks_budget_holds_for_all_its_steps",
        'before if fork and step < fork.get("at", 0) else after',
        "after",
        about_diff.test_budgets_of_a_fork_count_from_its_step_on,
    ),
    Mutation(
        "scripted_steps_have_times",
        'if clock(a.reader) == clock(b.reader) == "wall":',
        "if True:",
        about_diff.test_times_are_compared_only_where_both_runs_had_a_clock,
    ),
    Mutation(
        "block_events_are_not_compared",
        "first_blocks=_first_difference(one.blocks, other.blocks)",
        "first_blocks=None",
        about_diff.test_blocks_that_differ_under_the_same_decisions_are_said,
    ),
    Mutation(
        "tokens_are_compared_by_their_number",
        "        if one != other:\n            return f",
        "        if False:\n            return f",
        about_diff.test_other_words_are_flagged_by_their_position,
    ),
    Mutation(
        "waiting_ends_with_the_first_start",
        "for stay in request.stays)\n    return max(0, last - request.added - ran)",
        "for stay in request.stays[:1])\n    return max(0, last - request.added - ran)",
        lambda folder: [about_diff.test_sums_are_those_of_the_steps(folder, seed) for seed in range(8)],
    ),
    Mutation(
        "the_workload_is_taken_to_be_the_same",
        "same_workload=a.workload_hash == b.workload_hash",
        "same_workload=True",
        about_diff.test_blocks_that_differ_under_the_same_decisions_are_said,
    ),
]

SCRIPT = [
    Mutation("cache_resets_are_forgotten", "            resets.add(step)", "            pass"),
    Mutation(
        "drafts_are_all_confirmed",
        "return row.drafts - passed, max(0, row.confirmed - passed)",
        "return row.drafts, row.drafts",
    ),
    Mutation("rows_have_no_drafts", "        if num_drafts > 0:\n", "        if num_drafts > 99:\n"),
    Mutation(
        "drafts_confirmed_beyond_the_end_are_lost",
        "            confirmed, beyond = confirmed + more, beyond - more\n",
        "",
    ),
    Mutation("a_stop_is_no_end", 'if self.end == "stop":', 'if self.end == "never":'),
    Mutation(
        "idle_steps_at_the_end_are_cut",
        "return Script(requests, reader.num_steps, idle,",
        "return Script(requests, reader.num_steps, 0,",
    ),
    Mutation("salts_are_forgotten", '            cache_salt=record["salt"],\n', ""),
    Mutation("adapters_are_forgotten", '            lora_key=record["lora"],\n', ""),
    Mutation("priorities_are_forgotten", '            priority=record["priority"],\n', ""),
    Mutation(
        "a_stop_string_is_found_at_once",
        "        scripted.patience = history.ended - spoke\n",
        "        scripted.patience = 99\n",
        about_fork.test_a_stop_string_ends_a_request_after_as_many_tokens_in_any_step,
    ),
]


@pytest.mark.parametrize("mutation", DIFF, ids=lambda mutation: mutation.name)
def test_a_mistake_in_the_diff_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutation: Mutation
) -> None:
    assert mutation.caught_by is not None
    monkeypatch.setattr(about_diff, "diff", load("diff", mutation).diff)
    with pytest.raises((AssertionError, AttributeError)):
        mutation.caught_by(tmp_path)


@pytest.mark.parametrize("mutation", SCRIPT, ids=lambda mutation: mutation.name)
def test_a_mistake_in_what_is_replayed_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutation: Mutation
) -> None:
    mutant = load("script", mutation)
    monkeypatch.setattr(fork_module, "read_script", mutant.read_script)
    if mutation.caught_by is None:
        assert any(differs(tmp_path, seed) for seed in range(40)), f"{mutation.name} survives 40 workloads"
    else:
        with pytest.raises(AssertionError):
            mutation.caught_by(tmp_path)


def differs(folder: Path, seed: int) -> bool:
    """Whether a fork without a change is not the recorded run, in one of two workloads."""
    for record in (crowded_run, random_run):
        record(folder / "run.itrace", seed)
        reader = TraceReader(folder / "run.itrace")
        result = fork(reader, folder / "fork.itrace")
        if result.failure or first_difference(reader, TraceReader(result.path)):
            return True
    return False
