"""Programs to mend: the given one fails, the solution passes, and every mutant is caught by the check it names."""

from __future__ import annotations

import pytest

from prep_common.sandbox import Limits
from quizzes.autopsies.programs import (
    Mutant,
    Program,
    UnknownProgram,
    checks,
    guest_for,
    mutants,
    programs,
    read,
    run_checks,
)
from tests.quizzes.repairs import repairs

MUTANTS = [(folder, mutant) for folder in programs() for mutant in mutants(folder)]


@pytest.mark.slow
@pytest.mark.parametrize("folder", programs())
def test_the_given_program_fails_and_the_solution_passes(folder: str) -> None:
    given = run_checks(folder, read(folder))
    assert any(not result.ok for result in given)
    assert all(result.why for result in given if not result.ok)
    failed = [result for result in run_checks(folder, read(folder, "solution")) if not result.ok]
    assert failed == []


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "mutant"), MUTANTS, ids=lambda value: getattr(value, "check", value))
def test_a_mutant_is_caught_by_the_check_that_it_names(folder: str, mutant: Mutant) -> None:
    [result] = run_checks(folder, mutant.source, names=[mutant.check])
    assert not result.ok


@pytest.mark.slow
@pytest.mark.parametrize("folder", programs())
def test_right_repairs_of_other_shapes_pass(folder: str) -> None:
    """One guest runs all checks of a repair, which saves most of the time."""
    for name, source in repairs(folder).items():
        with guest_for(folder, source, Limits(seconds=120, megabytes=1500)) as guest:
            guest.load()
            program = Program(guest, source)
            for check in checks(folder).values():
                try:
                    check(program)
                except Exception as error:
                    raise AssertionError(f"{name} fails {check.__name__}: {error}") from error


@pytest.mark.parametrize("folder", programs())
def test_every_check_catches_something(folder: str) -> None:
    """A check that the given program and all mutants pass could be left out, or is broken."""
    caught = {mutant.check for mutant in mutants(folder)}
    rest = set(checks(folder)) - caught
    caught |= {
        result.name for result in run_checks(folder, read(folder), names=rest) if rest and not result.ok
    }
    for mutant in mutants(folder) if rest - caught else []:
        caught |= {r.name for r in run_checks(folder, mutant.source, names=rest - caught or {""}) if not r.ok}
    assert set(checks(folder)) == caught


@pytest.mark.parametrize("folder", programs())
def test_there_are_mutants_and_a_question(folder: str) -> None:
    from quizzes.question_bank import load_bank

    assert len(mutants(folder)) >= 6 and len(repairs(folder)) >= 6
    bank = load_bank()
    questions = [bank.question(entry.id) for entry in bank if entry.kind == "code"]
    assert folder in {question.code.folder for question in questions}


def test_a_method_that_does_not_return_its_result_is_told_so() -> None:
    repair = read("paged_allocator", "solution").replace(
        "return self.slot(name, self", "self.slot(name, self"
    )
    name = "check_a_block_is_taken_when_the_last_is_full"
    [result] = run_checks("paged_allocator", repair, names=[name])
    assert result.says.startswith("append(name) returns the slot")
    assert result.why.startswith("append returned None; expected the slot ")


def test_the_given_program_is_told_what_the_checks_call() -> None:
    names = ["check_a_name_is_used_once"]
    for source in (read("paged_allocator"), read("paged_allocator").replace('"""', '"""Mine. ', 1)):
        [result] = run_checks("paged_allocator", source, names=names)
        assert result.why == (
            "this is still the given program, but the checks call PagedAllocator(num_blocks, block_size)"
        )
    [result] = run_checks("paged_allocator", read("paged_allocator") + "x = 1\n", names=names)
    assert "PagedAllocator" in result.why and "given program" not in result.why


def test_after_two_stops_the_other_checks_do_not_run() -> None:
    endless = "class PagedAllocator:\n    def __init__(self, *args):\n        while True: pass\n"
    limits = Limits(seconds=20, call_seconds=0.2, megabytes=1500)
    results = run_checks("paged_allocator", endless, limits)
    told = [result.why.startswith("not run: your code was stopped 2 times") for result in results]
    assert told == [False, False] + [True] * (len(results) - 2)


def test_a_repair_that_does_not_even_parse_fails_every_check_with_the_reason() -> None:
    results = run_checks("block_manager", "class BlockManager(:\n")
    assert all(not result.ok and "SyntaxError" in result.why for result in results)


def test_an_unknown_program_is_told_with_those_that_exist() -> None:
    with pytest.raises(UnknownProgram, match="block_manager"):
        read("blok_manager")
