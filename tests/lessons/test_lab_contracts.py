"""Each sentence of a contract is broken by a wrong file, and each check rejects one: `lessons/course/contracts.py`."""

from __future__ import annotations

import datetime as dt

import pytest

from lessons.course.checking import checks
from lessons.course.contracts import (
    checks_without_a_wrong_file,
    contract,
    languages,
    meant,
    overlaps,
    sentences,
)
from lessons.course.lesson_files import HUNTS, Lab, labs
from lessons.course.mutants import mutants

WRITTEN = [lab for lab in labs() if lab.track != HUNTS]
EACH = pytest.mark.parametrize("each", WRITTEN, ids=lambda each: each.number)
FAMILIES = list({each.folder: each for each in WRITTEN}.values())
"""One lab for each contract file."""
TODAYS = [FAMILIES[(3 * dt.date.today().toordinal() + each) % len(FAMILIES)] for each in range(3)]
"""Those that the slow test runs today: three a day, in turn, because some of them take a minute."""


@EACH
def test_each_sentence_stands_in_the_contract_file_once(each: Lab) -> None:
    found = contract(each)
    said = sentences(each)
    missing = [sentence for sentence in said if len(meant(sentence, found)) != 1]
    assert not missing, (
        "not in contract.yaml, or twice (put each under demands, with its wrong files, or explains):\n"
        + "\n".join(missing)
    )
    entries = [*found.demands, *found.explains]
    said = [sentence for lab in languages(each) for sentence in sentences(lab)]
    unsaid = [entry for entry in entries if not any(sentence.startswith(entry) for sentence in said)]
    assert not unsaid, "contract.yaml: no sentence of the contract begins with:\n" + "\n".join(unsaid)


@EACH
def test_each_demand_is_broken_by_a_wrong_file_and_each_wrong_file_breaks_one(each: Lab) -> None:
    found = contract(each)
    broken = {why for whys in found.demands.values() for why in whys}
    wrong = {mutant.why for lab in languages(each) for mutant in mutants(lab)}
    assert all(found.demands.values()), "contract.yaml: a demand without a wrong file"
    assert not wrong - broken, f"contract.yaml: no demand names the wrong files {sorted(wrong - broken)}"
    assert not broken - wrong, (
        f"mutants.py: no wrong files {sorted(broken - wrong)}, which contract.yaml names"
    )


@EACH
def test_each_check_rejects_a_wrong_file(each: Lab) -> None:
    """The checks of a kernel are shared by its languages, so a wrong file in one of them is enough."""
    without = checks_without_a_wrong_file(each)
    assert not without, f"mutants.py of {each.number}: no wrong file for {', '.join(sorted(without))}"


@EACH
def test_overlaps_name_other_checks(each: Lab) -> None:
    found = contract(each).overlaps
    names = {check.__name__ for lab in languages(each) for check in checks(lab.number)}
    assert {*found, *(name for others in found.values() for name in others)} <= names
    assert all(others and name not in others for name, others in found.items())


@pytest.mark.slow
@pytest.mark.parametrize("each", TODAYS, ids=lambda each: each.number)
def test_a_wrong_file_fails_its_check_alone_or_with_the_named_ones(each: Lab) -> None:
    assert overlaps(each) == contract(each).overlaps
