"""Comparisons of engines: their oracles against the simulator, and their sources."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from quizzes.claims.claim_list import BANK, read_claims
from quizzes.experiments import Context, get
from quizzes.oracles import landscape as paper
from quizzes.question_bank import load_bank

QUESTIONS = ("Q002", "Q049", "Q091", "Q125", "Q126", "Q127", "Q136")


def run(name: str, **args: Any) -> Any:
    found = get(name)
    return found.run(Context(), **found.check(args))


@pytest.mark.parametrize(("rows", "context"), [(1, 0), (16, 200), (32, 800), (48, 400)])
def test_a_batch_reaches_what_its_bytes_allow(rows: int, context: int) -> None:
    point = run(
        "performance.roofline",
        model="llama-2-7b",
        hardware="a100-40",
        dtype="float16",
        rows=rows,
        context=context,
    )
    assert point.tokens_per_s == pytest.approx(paper.batch_rate(rows, context, 1555), rel=1e-6)


@pytest.mark.parametrize("context", [0, 80])
def test_a_large_batch_is_below_the_rate_of_bytes_alone(context: int) -> None:
    point = run(
        "performance.roofline",
        model="llama-2-7b",
        hardware="a100-40",
        dtype="float16",
        rows=600,
        context=context,
    )
    assert point.tokens_per_s < paper.batch_rate(600, context, 1555) * (1 + 1e-9)


def test_a_stream_on_a_cpu_scales_with_channels_and_against_bits() -> None:
    assert paper.bus_gb_per_s(2, 5600) == pytest.approx(89.6)
    assert paper.stream_rate(8, 4800, 8.0, 4) == pytest.approx(4 * paper.stream_rate(8, 4800, 8.0, 16))
    assert paper.stream_rate(12, 4800, 8.0, 16) == pytest.approx(1.5 * paper.stream_rate(8, 4800, 8.0, 16))


def test_the_days_between_releases_are_those_of_the_calendar() -> None:
    question = load_bank().question("landscape.release_pace")
    for first, first_day, last, last_day in question.params["pair"].choice:
        days = (date.fromisoformat(last_day) - date.fromisoformat(first_day)).days
        assert f"'{first_day} {last_day}': {days}" in question.params["days"].expr
        assert paper.days_per_minor(first, first_day, last, last_day) * (last - first) == pytest.approx(days)
        assert paper.minors_behind(first, first_day, last, last_day, days) == pytest.approx(last - first)


def test_the_topic_answers_its_interview_questions_and_dates_its_sources() -> None:
    bank = load_bank()
    ours = [bank.question(entry.id) for entry in bank if entry.topic == "landscape"]
    assert set(QUESTIONS) <= {covered for question in ours for covered in question.covers}
    assert sum(question.is_machine_graded for question in ours) >= 0.8 * len(ours) >= 0.8 * 14
    for question in ours:
        typed = any(choice.right is True for choice in question.choices)
        if typed and question.stage != "manager":
            assert any(source.as_of or source.version for source in question.sources), question.id


def test_every_external_fact_of_the_first_three_documents_can_be_looked_up() -> None:
    facts = []
    for name in ("facts_s0.yaml", "facts_s1.yaml", "facts_s2.yaml"):
        claims = read_claims(BANK / name)
        assert not claims.problems
        facts += [claims.claim(entry.id) for entry in claims]
    assert len(facts) == 54 and {claim.kind for claim in facts} == {"external-fact"}
    for claim in facts:
        assert claim.fact is not None, claim.id
        source = claim.fact.source
        assert source.as_of and (source.version or source.url), claim.id
        assert len(claim.fact.says.split()) > 5, claim.id
        if claim.test is not None:
            assert claim.wording, claim.id
