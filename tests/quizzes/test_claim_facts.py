"""Facts can be looked up, discussions have two sides, and the tests beside them decide something."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quizzes.claims.claim import Claim
from quizzes.claims.claim_list import BANK, read_claims
from quizzes.claims.court import check_flip, judge
from quizzes.experiments.registry import get
from tests.quizzes.runs import run_once

FILES = sorted([*BANK.glob("facts_s*.yaml"), *BANK.glob("judgements_s*.yaml")])
FAST_SECONDS = 10
"""Experiments that are expected to take longer are left to `prep claims verify`."""


def read(path: Path) -> list[Claim]:
    found = read_claims(path)
    assert found.problems == []
    return [found.claim(entry.id) for entry in found]


ALL = [claim for path in FILES for claim in read(path)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_keeps_to_its_document_and_kind(path: Path) -> None:
    kind, _, document = path.stem.partition("_")
    for claim in read(path):
        assert claim.id.startswith(document.upper() + "-")
        assert claim.kind == {"facts": "external-fact", "judgements": "judgement"}[kind]


@pytest.mark.parametrize("claim", [c for c in ALL if c.fact], ids=lambda claim: claim.id)
def test_a_fact_names_a_source_with_a_date(claim: Claim) -> None:
    assert claim.fact is not None
    source = claim.fact.source
    assert re.fullmatch(r"20\d\d(-\d\d){0,2}", source.as_of or ""), "as_of: a year, a month or a day"
    assert source.url or source.version, "where to look it up: an address, or a file of a release"
    if "vllm/" in source.ref and ".py" in source.ref:
        assert source.version, "files of vLLM move: name the release"
    assert source.url is None or source.url.startswith("https://")
    assert len(claim.fact.says.split()) >= 8


@pytest.mark.parametrize("claim", [c for c in ALL if c.discussion], ids=lambda claim: claim.id)
def test_a_discussion_has_two_sides_and_something_better(claim: Claim) -> None:
    assert claim.discussion is not None
    sides = (claim.discussion.for_, claim.discussion.against, claim.discussion.better)
    assert len({" ".join(side.split()) for side in sides}) == len(sides)
    assert all(len(side.split()) >= 8 for side in sides)


def quick(claim: Claim) -> bool:
    return claim.test is not None and get(claim.test.run).seconds <= FAST_SECONDS


@pytest.mark.parametrize(
    "claim", [c for c in ALL if quick(c)][::4], ids=lambda claim: claim.id
)  # all: test_claims_bank
def test_a_test_decides(claim: Claim) -> None:
    ruling = judge(claim, run_once)
    assert ruling.verdict in ("confirmed", "refuted", "depends", "outdated")
    assert ruling.wording
    if claim.fact is not None:
        assert ruling.verdict == claim.fact.verdict, "what the engine shows and what the source says agree"
    check_flip(claim, run_once)
