"""Each sentence of a contract is broken by a wrong file, and each check rejects one: `lessons/course/contracts.py`."""

from __future__ import annotations

from collections import defaultdict

import pytest

from lessons.course.checking import checks
from lessons.course.contracts import contract, meant, overlaps, sentences
from lessons.course.lesson_files import HUNTS, Lab, labs
from lessons.course.mutants import mutants

WRITTEN = [each for each in labs() if each.track != HUNTS]
WITHOUT_CONTRACT_FILE = {each.number for each in WRITTEN if each.track == "kernels"}
"""Labs whose sentences are not yet mapped to wrong files. This set may only shrink."""
MAPPED = pytest.mark.parametrize(
    "each",
    [each for each in WRITTEN if each.number not in WITHOUT_CONTRACT_FILE],
    ids=lambda each: each.number,
)
RUN_AGAIN = ("block-manager", "fair-share", "sampler")
"""Labs whose overlaps the slow tier computes again; `python -m lessons.course.contracts LAB` does it for any."""


def test_every_lab_has_a_contract_file_but_these() -> None:
    assert {each.number for each in WRITTEN if contract(each) is None} == WITHOUT_CONTRACT_FILE


@MAPPED
def test_each_sentence_stands_in_the_contract_file_once(each: Lab) -> None:
    found = contract(each)
    assert found is not None
    said = sentences(each)
    assert [sentence for sentence in said if len(meant(sentence, found)) != 1] == []
    entries = [*found.demands, *found.explains]
    assert [entry for entry in entries if not any(each.startswith(entry) for each in said)] == []


@MAPPED
def test_each_demand_is_broken_by_a_wrong_file_and_each_wrong_file_breaks_one(each: Lab) -> None:
    found = contract(each)
    assert found is not None
    broken = {why for whys in found.demands.values() for why in whys}
    assert all(found.demands.values()) and broken == {mutant.why for mutant in mutants(each)}


def test_each_check_rejects_a_wrong_file() -> None:
    """The checks of a kernel are shared by its languages, so a wrong file in one of them is enough."""
    rejecting: dict[str, set[str]] = defaultdict(set)
    for each in WRITTEN:
        rejecting[each.checks_id] |= {mutant.check for mutant in mutants(each)}
    without = {
        each.number: sorted({check.__name__ for check in checks(each.number)} - rejecting[each.checks_id])
        for each in WRITTEN
    }
    assert {name: names for name, names in without.items() if names} == {}


@MAPPED
def test_overlaps_name_checks(each: Lab) -> None:
    found = contract(each)
    assert found is not None
    names = {check.__name__ for check in checks(each.number)}
    assert {*found.overlaps, *(name for others in found.overlaps.values() for name in others)} <= names


@pytest.mark.slow
@pytest.mark.parametrize(
    "each", [each for each in WRITTEN if each.number in RUN_AGAIN], ids=lambda each: each.number
)
def test_a_wrong_file_fails_its_check_alone_or_with_the_named_ones(each: Lab) -> None:
    found = contract(each)
    assert found is not None and overlaps(each) == found.overlaps
