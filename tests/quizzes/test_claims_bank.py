"""All claims: none is missing, every test decides something, and the slow test holds court over all of them."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from quizzes import lint
from quizzes.claims.claim import RUNNABLE
from quizzes.claims.claim_list import load_claims
from quizzes.claims.court import check_flip, judge
from quizzes.experiments.running import run_here

CLAIMS = load_claims()
COUNTS = {"S0": 94, "S1": 125, "S2": 31, "S3": 133, "S4": 78}
"""Claims of each document."""
RUNS = [entry.id for entry in CLAIMS if entry.run]

_results: dict[str, dict[str, Any]] = {}


def run(name: str, args: dict[str, Any]) -> dict[str, Any]:
    key = json.dumps([name, args], sort_keys=True, default=str)
    if key not in _results:
        _results[key] = run_here(name, args)
    return _results[key]


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


@pytest.mark.slow
def test_no_test_is_so_easy_that_every_claim_passes() -> None:
    """Over all claims that have been judged by counting, each verdict occurs, and none dominates."""
    verdicts = Counter(judge(CLAIMS.claim(name), run).verdict for name in RUNS[::7] if not _needs_model(name))
    assert len(verdicts) >= 3 and max(verdicts.values()) < 0.8 * verdicts.total(), verdicts


@pytest.mark.slow
@pytest.mark.parametrize(
    "claim_id", [name for name in RUNS if not lint.needs_model(CLAIMS.entries[name].run)][::8]
)  # every eighth; all of them in the slow test below
def test_a_counting_test_decides(claim_id: str) -> None:
    ruling = judge(CLAIMS.claim(claim_id), run)
    assert ruling.verdict in ("confirmed", "refuted", "depends")
    assert ruling.wording and all(case.holds is not None for case in ruling.cases)


@pytest.mark.slow
@pytest.mark.parametrize("claim_id", RUNS)
def test_every_test_can_be_held(claim_id: str) -> None:
    """Also those with a model or a clock: a verdict, or a reason why there is none here. Witnesses do flip."""
    claim = CLAIMS.claim(claim_id)
    ruling = judge(claim, run)
    if ruling.verdict in ("inconclusive", "skipped"):
        assert ruling.reason or any(case.reason or case.holds is None for case in ruling.cases)
    else:
        assert ruling.wording
    check_flip(claim, run)


def _needs_model(claim_id: str) -> bool:
    return lint.needs_model(CLAIMS.entries[claim_id].run)
