"""Plausible mistakes in the diff and in what a fork replays: a test catches each of them."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import ModuleType

import pytest

import engine.trace
from engine.trace import scripted_run
from engine.trace.fork import fork
from engine.trace.reader import TraceReader
from tests.mutation import Mutation, read_mutations
from tests.trace import test_trace_diff, test_trace_fork
from tests.trace.fork_workloads import crowded_run, first_difference
from tests.trace.trace_workloads import random_run

TRACE = Path(engine.trace.__path__[0])
WORKLOADS = "a fork without a change, over random workloads"

DIFF_MODULES = ("run_totals", "divergence", "diff")
"""In import order: each may use those before it."""
DIFF = read_mutations("""
run_totals
    test_a_preemption_that_changes_no_row_of_anybody_else_is_found
        preemptions_are_no_decision in RunTotals._take
            _ if 'pre' in record else _1 => _1
    test_a_shorter_chunk_is_found_with_both_lengths
        only_who_runs_counts_and_not_how_much in RunTotals._take
            (keys[row.number], row.start, row.num_tokens) => keys[row.number]
    test_a_swap_out_is_the_difference_and_not_the_resumption_that_it_shortens
        copies_are_no_decision in copies_of
            not counters => True
    test_namesakes_are_compared_in_their_order
        namesakes_are_one_request in keys_of
            request.request_id if count == 1 else _ => request.request_id
    test_each_requests_figures_are_counted_by_hand
        what_is_computed_again_is_not_seen in RunTotals._take
            max(0, min(end, life.reached) - row.start) => 0
    test_budgets_of_a_fork_count_from_its_step_on
        a_forks_budget_holds_for_all_its_steps in budgets_of
            before if _ else after => after
divergence
    test_a_request_held_back_for_a_step_is_found
        the_sides_reasons_are_swapped in describe
            [_reason(a, key, step) for key in shown] => [_reason(b, key, step) for key in shown]
    test_a_longer_run_is_told_where_the_other_is_over
        the_end_of_one_run_is_no_difference in divergences_of
            steps.append(left[0]) => pass
diff
    test_times_are_compared_only_where_both_runs_had_a_clock
        scripted_steps_have_times in figures_of
            clock(a.reader) == clock(b.reader) == 'wall' => True
    test_other_words_are_flagged_by_their_position
        tokens_are_compared_by_their_number in _compare_tokens
            one != other => False
    test_sums_are_those_of_the_steps
        waiting_ends_with_the_first_start in _waiting_steps
            request.stays => request.stays[:1]
    test_blocks_that_differ_under_the_same_decisions_are_said
        block_events_are_not_compared in diff
            first_difference(one.blocks, other.blocks) => None
        the_workload_is_taken_to_be_the_same in diff
            a.workload_hash == b.workload_hash => True
""")

SCRIPT = read_mutations(f"""
script
    {WORKLOADS}
        cache_resets_are_forgotten in read_script
            resets.add(step) => pass
        drafts_are_all_confirmed in ScriptedRequest.drafts_at
            (row.drafts - passed, _) => (row.drafts, row.drafts)
        rows_have_no_drafts in _note_drafts
            num_drafts > 0 => num_drafts > 99
        drafts_confirmed_beyond_the_end_are_lost in _note_drafts
            confirmed, beyond = confirmed + more, beyond - more => pass
        a_stop_is_no_end in ScriptedRequest.make
            self.end == 'stop' => False
        idle_steps_at_the_end_are_cut in read_script
            Script(_1, _2, idle, ...) => Script(_1, _2, 0, ...)
        salts_are_forgotten in ScriptedRequest.make
            record['salt'] => None
        adapters_are_forgotten in ScriptedRequest.make
            record['lora'] => None
        priorities_are_forgotten in ScriptedRequest.make
            record['priority'] => 0
    test_a_stop_string_ends_a_request_after_as_many_tokens_in_any_step
        a_stop_string_is_found_at_once in _scripted
            scripted.patience = _ => scripted.patience = 99
""")


def load(patch: pytest.MonkeyPatch, mutation: Mutation, names: tuple[str, ...]) -> ModuleType:
    """Copies of modules of engine/trace, in import order, one of them with the mistake; returns the last."""
    for name in names:
        source = (TRACE / f"{name}.py").read_text(encoding="utf-8")
        copy = ModuleType(f"engine.trace.{name}")
        patch.setitem(sys.modules, copy.__name__, copy)  # the next copies import it
        mutant = mutation.apply(source) if name == mutation.module else source
        exec(compile(mutant, copy.__name__, "exec", dont_inherit=True), copy.__dict__)
    return copy


@pytest.mark.parametrize("mutation", DIFF, ids=lambda mutation: mutation.name)
def test_a_mistake_in_the_diff_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutation: Mutation
) -> None:
    monkeypatch.setattr(test_trace_diff, "diff", load(monkeypatch, mutation, DIFF_MODULES).diff)
    test = getattr(test_trace_diff, mutation.caught_by)
    seeds = [{"seed": seed} for seed in range(8)] if "seed" in inspect.signature(test).parameters else [{}]
    with pytest.raises((AssertionError, AttributeError)):
        for values in seeds:
            test(tmp_path, **values)


@pytest.mark.parametrize("mutation", SCRIPT, ids=lambda mutation: mutation.name)
def test_a_mistake_in_what_is_replayed_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutation: Mutation
) -> None:
    mutant = load(monkeypatch, mutation, ("script",))
    monkeypatch.setattr(scripted_run, "read_script", mutant.read_script)
    if mutation.caught_by == WORKLOADS:
        assert any(differs(tmp_path, seed) for seed in range(40)), f"{mutation.name} survives 40 workloads"
    else:
        with pytest.raises(AssertionError):
            getattr(test_trace_fork, mutation.caught_by)(tmp_path)


def differs(folder: Path, seed: int) -> bool:
    """Whether a fork without a change is not the recorded run, in one of two workloads."""
    for record in (crowded_run, random_run):
        record(folder / "run.itrace", seed)
        reader = TraceReader(folder / "run.itrace")
        result = fork(reader, folder / "fork.itrace")
        if result.failure or first_difference(reader, TraceReader(result.path)):
            return True
    return False
