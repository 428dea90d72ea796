"""All claims: none is missing, every test decides something, and the slow test holds court over all of them."""

from __future__ import annotations

import csv
import re
from collections import Counter
from itertools import combinations
from typing import Any

import pytest

from quizzes import lint
from quizzes.claims.claim import RUNNABLE, Claim, Fact
from quizzes.claims.claim_list import BANK, load_claims
from quizzes.claims.court import CaseOutcome, check_flip, decide_test, judge
from quizzes.lint_texts import false_statements
from tests.quizzes.runs import run_once

CLAIMS = load_claims()
COUNTS = {"S0": 94, "S1": 125, "S2": 31, "S3": 133, "S4": 78}
"""Claims of each document."""
RUNS = [entry.id for entry in CLAIMS if entry.run]


BY_HAND = {
    "confirmed": ("S1-21", "S3-51", "S3-122"),
    "refuted": ("S1-88", "S0-62", "S3-21", "S1-24", "S3-50", "S3-126"),
    "depends": ("S2-25",),
}
"""Verdicts that were worked out by hand; the court finds them by experiment."""


def test_every_file_holds_claims() -> None:
    assert CLAIMS.problems == []


def test_none_is_missing() -> None:
    wanted = {
        f"{document}-{number:02d}" for document, count in COUNTS.items() for number in range(1, count + 1)
    }
    assert sorted(wanted - {entry.id for entry in CLAIMS}) == []
    assert sorted({entry.id for entry in CLAIMS} - wanted) == []


def test_what_can_be_run_has_a_test() -> None:
    assert [entry.id for entry in CLAIMS if entry.kind in RUNNABLE and not entry.run] == []


def test_facts_name_a_source_with_a_version_or_a_date() -> None:
    for entry in CLAIMS:
        fact = CLAIMS.claim(entry.id).fact
        if fact is not None:
            assert fact.source.ref and (fact.source.version or fact.source.as_of), entry.id


@pytest.mark.parametrize("verdict", BY_HAND)
def test_the_court_finds_what_was_worked_out_by_hand(verdict: str) -> None:
    for claim_id in BY_HAND[verdict]:
        claim = CLAIMS.claim(claim_id)
        assert judge(claim, run_once).verdict == verdict, claim_id
        check_flip(claim, run_once)


@pytest.mark.slow
def test_no_test_is_so_easy_that_every_claim_passes() -> None:
    """Over all claims that have been judged by counting, each verdict occurs, and none dominates."""
    verdicts = Counter(
        judge(CLAIMS.claim(name), run_once).verdict for name in RUNS[::7] if not _needs_model(name)
    )
    assert len(verdicts) >= 3 and max(verdicts.values()) < 0.8 * verdicts.total(), verdicts


@pytest.mark.slow
@pytest.mark.parametrize("claim_id", RUNS)
def test_every_test_can_be_held(claim_id: str) -> None:
    """A test that counts decides; one with a model or a clock may give a reason why not. Witnesses do flip."""
    claim = CLAIMS.claim(claim_id)
    ruling = judge(claim, run_once)
    if ruling.verdict in ("inconclusive", "skipped"):
        assert _needs_model(claim_id)
        assert ruling.reason or any(case.reason or case.holds is None for case in ruling.cases)
    else:
        assert ruling.wording and list(false_statements(ruling.wording)) == []
    check_flip(claim, run_once)


def _exhibits() -> dict[str, list[dict[str, str]]]:
    """Return the lines of the kept table by claim."""
    lines: dict[str, list[dict[str, str]]] = {}
    with (BANK.parent / "EXHIBITS.tsv").open(encoding="utf-8") as file:
        for line in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            lines.setdefault(line["claim"], []).append(line)
    return lines


def _one_sided(lines: dict[str, list[dict[str, str]]], claims: dict[str, Claim]) -> list[str]:
    """Return the claims said to depend without a case that holds and one that fails within their conditions."""
    found = []
    for name, claim in claims.items():
        if claim.test is None or lines[name][0]["verdict"] != "depends":
            continue
        settings: dict[Any, list[bool]] = {}
        for number, (case, line) in enumerate(zip(claim.test.cases, lines[name], strict=True)):
            if not case.outside and not case.until and line["outcome"] in ("holds", "fails"):
                key = case.setting if claim.test.form == "conjunctive" else number
                settings.setdefault(key, []).append(line["outcome"] == "holds")
        if {all(parts) for parts in settings.values()} != {True, False}:
            found.append(name)
    return found


def _judged() -> dict[str, Claim]:
    lines = _exhibits()
    return {name: CLAIMS.claim(name) for name in RUNS if name in lines}


def test_the_kept_table_shows_the_cases_of_the_bank() -> None:
    lines = _exhibits()
    cases = {
        name: [" ".join(case.when.split()) for case in claim.test.cases]
        for name, claim in _judged().items()
        if claim.test is not None
    }
    assert {name: [line["case"] for line in lines[name]] for name in cases} == cases
    counted = {
        name: [bool(case.outside) for case in claim.test.cases]
        for name, claim in _judged().items()
        if claim.test
    }
    assert {
        name: [line["outcome"].startswith("not counted") for line in lines[name]] for name in counted
    } == counted


def test_the_kept_verdicts_follow_from_the_kept_outcomes() -> None:
    lines, outcomes = _exhibits(), {"holds": True, "fails": False, "undecided": None}
    for name, claim in _judged().items():
        assert claim.test is not None
        cases = tuple(
            CaseOutcome(line["case"], {}, outcomes[line["outcome"].rsplit(": ", 1)[-1]])
            for line in lines[name]
        )
        assert lines[name][0]["verdict"] == decide_test(claim.test, cases), name


def test_what_depends_has_cases_within_its_conditions_that_differ() -> None:
    lines, claims = _exhibits(), _judged()
    assert _one_sided(lines, claims) == []
    tests = sum(lines[name][0]["verdict"] == "depends" for name in claims)
    facts = sum(entry.fact == "depends" and not entry.run for entry in CLAIMS)
    assert tests + facts <= 125, "those that are true in practice and false as worded among them"


@pytest.mark.parametrize("outcome", ["holds", "fails"])
def test_a_one_sided_claim_that_is_marked_depends_is_found(outcome: str) -> None:
    lines, claims = _exhibits(), _judged()
    for name in [name for name in claims if lines[name][0]["verdict"] == "depends"]:
        of_one_kind = [{**line, "outcome": outcome} for line in lines[name]]
        assert _one_sided({**lines, name: of_one_kind}, {name: claims[name]}) == [name]
        test = claims[name].test
        assert test is not None
        left_out = [
            case.model_copy(update={"outside": "beyond the claim"}) if line["outcome"] == outcome else case
            for case, line in zip(test.cases, lines[name], strict=True)
        ]
        narrowed = claims[name].model_copy(update={"test": test.model_copy(update={"cases": left_out})})
        assert test.form == "conjunctive" or _one_sided(lines, {name: narrowed}) == [name]


def test_a_fact_on_which_a_claim_depends_names_both_cases() -> None:
    source = {"ref": "a page", "version": "0.32.0"}
    assert Fact.model_validate(
        {"verdict": "depends", "says": "x", "source": source, "right_if": "a", "wrong_if": "b"}
    )
    with pytest.raises(ValueError, match="name the two cases"):
        Fact.model_validate({"verdict": "depends", "says": "x", "source": source, "right_if": "a"})


NO_CONTENT = set("a an the of to is are be it its in on for and or by that".split())
SAME = {"bound": "limit", "bottleneck": "limit", "bandwidth": "limit", "arithmetic": "compute"}


def _words(text: str) -> frozenset[str]:
    """Return the words of a claim that carry content, with one word for each meaning."""
    words = {SAME.get(word, word) for word in re.findall(r"[a-z0-9_%]+", text.lower())}
    return frozenset(words - NO_CONTENT)


def _twins() -> list[tuple[str, str]]:
    words = {entry.id: _words(entry.claim) for entry in CLAIMS if entry.run}
    return [
        (one, other)
        for one, other in combinations(words, 2)
        if len(words[one] & words[other]) >= 0.7 * len(words[one] | words[other])
    ]


def test_the_search_for_twins_finds_those_that_are_known() -> None:
    assert {("S3-27", "S3-95"), ("S3-28", "S3-96")} <= set(_twins())


@pytest.mark.slow
@pytest.mark.parametrize("pair", _twins(), ids="=".join)
def test_claims_in_the_same_words_have_the_same_verdict(pair: tuple[str, str]) -> None:
    verdicts = {judge(CLAIMS.claim(name), run_once).verdict for name in pair} - {"inconclusive", "skipped"}
    assert len(verdicts) <= 1, verdicts


def _needs_model(claim_id: str) -> bool:
    return lint.needs_model(CLAIMS.entries[claim_id].run)
